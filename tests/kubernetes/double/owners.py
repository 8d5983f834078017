"""The admission plugin OwnerReferencesPermissionEnforcement, which a cluster may have.

Whoever makes an object block the deletion of its owner needs the right to set finalizers of that owner; whoever gives
an object another owner needs the right to delete that object.
"""

from __future__ import annotations

from typing import Any

from tests.kubernetes.double.access import Access, Act
from tests.kubernetes.double.definitions import Kinds
from tests.kubernetes.double.errors import ApiError
from tests.kubernetes.double.kinds import Kind

Body = dict[str, Any]


class Owners:
    """Asks ``access`` about owners that a write names."""

    def __init__(self, access: Access, kinds: Kinds) -> None:
        self._access = access
        self._kinds = kinds

    def check(self, user: str, kind: Kind, namespace: str, new: Body, old: Body | None = None) -> None:
        """Let a write of ``new`` pass, or refuse it with 403."""
        given, had = _references(new), _references(old or {})
        if given == had:
            return
        name = (new.get("metadata") or {}).get("name") or ""
        if old is not None:
            self._ask(user, Act.on(kind, "delete", namespace, name), kind, name, "cannot set an ownerRef")
        for reference in given:
            if not reference.get("blockOwnerDeletion") or reference in had:
                continue
            owner = self._kinds.of(str(reference.get("apiVersion")), str(reference.get("kind")))
            if owner is not None:
                act = Act.on(owner, "update", namespace, str(reference.get("name")), "finalizers")
                self._ask(user, act, kind, name, "cannot set blockOwnerDeletion")

    def _ask(self, user: str, act: Act, kind: Kind, name: str, what: str) -> None:
        try:
            self._access.check(user, act)
        except ApiError as error:
            said = f'{kind.resource} "{name}" is forbidden: {what}: {error}'
            details = {"name": name, "group": kind.group, "kind": kind.plural}
            raise ApiError(403, "Forbidden", said, details=details) from error


def _references(body: Body) -> list[Body]:
    metadata = body.get("metadata")
    found = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
