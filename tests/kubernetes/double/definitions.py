"""Custom resource definitions: what is posted becomes a kind at once."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.double.kinds import BUILT_IN, CRD, Kind
from tests.kubernetes.double.schema import Schema
from tests.kubernetes.double.store import Event, Storage, Store
from tests.kubernetes.podstates import now


class Kinds:
    """Every kind that the server knows now."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_path = {(kind.group, kind.version, kind.plural): kind for kind in BUILT_IN}
        store.listeners.append(self._changed)

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """Return the kind that a path names."""
        return self._by_path.get((group, version, plural))

    def of(self, api_version: str, kind: str) -> Kind | None:
        """Return the kind that an owner reference names."""
        named = (each for each in self._by_path.values() if (each.api_version, each.kind) == (api_version, kind))
        return next(named, None)

    def all(self) -> list[Kind]:
        return list(self._by_path.values())

    def stored(self) -> dict[Storage, Kind]:
        """Return the kind in which each storage keeps its objects."""
        return {kind.storage: kind for kind in self._by_path.values()}

    def _changed(self, storage: Storage, event: Event) -> None:
        if storage != CRD.storage:
            return
        old = event.old.body if event.old else None
        new = event.new.body if event.new else None
        for body in (old, new):
            if body is None:
                continue
            for version in body["spec"]["versions"]:
                self._by_path.pop((body["spec"]["group"], version["name"], body["spec"]["names"]["plural"]), None)
        if new is not None:
            kind = _kind(new)
            self._by_path[kind.group, kind.version, kind.plural] = kind
        elif old is not None:
            self._empty(old)

    def _empty(self, body: dict[str, Any]) -> None:
        storage = (body["spec"]["group"], body["spec"]["names"]["plural"])
        for name in list(self._store.table(storage).objects):
            self._store.remove(storage, name)
        self._store.drop(storage)


def establish(body: dict[str, Any]) -> None:
    """Set what the server itself says of a definition (in place)."""
    spec = body["spec"]
    names = spec["names"]
    names.setdefault("singular", names["kind"].lower())
    names.setdefault("listKind", f"{names['kind']}List")
    spec.setdefault("conversion", {"strategy": "None"})
    conditions = (
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    )
    fields = ("type", "reason", "message")
    holds = {"status": "True", "lastTransitionTime": now()}
    body["status"] = {
        "conditions": [{**holds, **dict(zip(fields, each, strict=True))} for each in conditions],
        "acceptedNames": names,
        "storedVersions": [version["name"] for version in spec["versions"] if version["storage"]],
    }


def _kind(body: dict[str, Any]) -> Kind:
    spec = body["spec"]
    names = spec["names"]
    version = next(each for each in spec["versions"] if each["storage"])
    return Kind(
        group=spec["group"],
        version=version["name"],
        kind=names["kind"],
        plural=names["plural"],
        singular=names.get("singular", ""),
        short=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        namespaced=spec["scope"] == "Namespaced",
        status="status" in version.get("subresources", {}),
        generation=True,
        unconditional=False,
        schema=Schema(version["schema"]["openAPIV3Schema"]),
        columns=tuple(version.get("additionalPrinterColumns", ())),
        fields=tuple(each["jsonPath"].lstrip(".") for each in version.get("selectableFields", ())),
    )
