"""The rules of deletion: preconditions, finalizers, a pod's grace. Dependents go in the background."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.kubernetes.double import errors
from tests.kubernetes.double.kinds import NAMESPACE, POD, Kind
from tests.kubernetes.double.store import Store, Version


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a DeleteOptions says."""

    uid: str | None = None
    grace: int | None = None

    @classmethod
    def read(cls, body: dict[str, Any], query: dict[str, str]) -> Wish:
        """Read body and query; the body wins."""
        preconditions = body.get("preconditions") or {}
        policy = body.get("propagationPolicy") or query.get("propagationPolicy") or "Background"
        if policy != "Background":
            said = f'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "{policy}"'
            raise errors.ApiError(422, "Invalid", said, details={})
        grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        return cls(
            uid=preconditions.get("uid"),
            grace=None if grace is None else int(grace),
        )


class Remover:
    """Deletes objects from a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def delete(self, kind: Kind, name: tuple[str, str], wish: Wish) -> tuple[Version, bool]:
        """Ask for an object's deletion; return its last (or next) state, and whether it is gone."""
        version = self._store.get(kind.storage, name)
        if version is None:
            raise errors.not_found(kind, name[1])
        self._precede(kind, version, wish)
        body = version.copy()
        meta = body["metadata"]
        grace = _grace(kind, body, wish)
        held = bool(meta.get("finalizers")) or kind is NAMESPACE
        if not held and grace == 0:
            self._store.remove(kind.storage, name, body)
            return Version(body), True
        if not meta.get("deletionTimestamp"):
            at = datetime.now(UTC) + timedelta(seconds=grace)
            meta["deletionTimestamp"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
            meta["deletionGracePeriodSeconds"] = grace
            if meta.get("generation"):
                meta["generation"] += 1
        meta["deletionGracePeriodSeconds"] = min(grace, meta.get("deletionGracePeriodSeconds", grace))
        if kind is NAMESPACE:
            body["status"] = {**body.get("status", {}), "phase": "Terminating"}
        if body != version.body:
            version = self._store.put(kind.storage, body)
        return version, False

    @staticmethod
    def _precede(kind: Kind, version: Version, wish: Wish) -> None:
        meta = version.metadata
        if wish.uid is not None and wish.uid != meta["uid"]:
            said = (
                f"the UID in the precondition ({wish.uid}) does not match the UID in record ({meta['uid']}). "
                "The object might have been deleted and then recreated"
            )
            raise errors.conflict(kind, meta["name"], said)


def _grace(kind: Kind, body: dict[str, Any], wish: Wish) -> int:
    """A pod on a node waits for the kubelet, which deletes it again with no grace."""
    if kind is not POD:
        return 0
    if not body.get("spec", {}).get("nodeName") or body.get("status", {}).get("phase") in {"Failed", "Succeeded"}:
        return 0
    asked = wish.grace if wish.grace is not None else body["spec"].get("terminationGracePeriodSeconds", 30)
    return max(0, int(asked))
