"""The part of the controller manager that cleans up: dependents of objects that are gone, and emptied namespaces."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kubernetes.double.definitions import Kinds
from tests.kubernetes.double.kinds import NAMESPACE, Kind
from tests.kubernetes.double.removal import Remover, Wish
from tests.kubernetes.double.store import Event, Storage, Store, Version

Named = tuple[Storage, tuple[str, str]]
#: what it lets pass
DELAY_S = 0.05


class Garbage:
    """Looks, a little later, at what changed."""

    def __init__(self, store: Store, kinds: Kinds, remover: Remover) -> None:
        self._store = store
        self._kinds = kinds
        self._remover = remover
        self._due: dict[Named, None] = {}
        self._dependents: dict[str, set[Named]] = {}
        self._wake = asyncio.Event()
        store.listeners.append(self._noted)

    def _noted(self, storage: Storage, event: Event) -> None:
        version = event.new or event.old
        if version is None:
            return
        named = (storage, version.name)
        meta = version.metadata
        due = []
        for owner in meta.get("ownerReferences") or ():
            held = self._dependents.setdefault(owner["uid"], set())
            if event.new is None:
                held.discard(named)
            elif named not in held or event.old is None:
                held.add(named)
                due.append(named)
        if event.new is None:
            due += self._dependents.get(meta["uid"], ())
            if meta.get("namespace"):
                due.append((NAMESPACE.storage, ("", meta["namespace"])))
        elif meta.get("deletionTimestamp"):
            due.append(named)
        if due:
            self._due.update(dict.fromkeys(due))
            self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(DELAY_S)
            self._wake.clear()
            due, self._due = self._due, {}
            for storage, name in due:
                kind = self._kinds.stored().get(storage)
                version = self._store.get(storage, name)
                if kind is not None and version is not None:
                    self._look(kind, version)

    def _look(self, kind: Kind, version: Version) -> None:
        meta = version.metadata
        if meta.get("deletionTimestamp"):
            if kind is NAMESPACE:
                self._empty(version)
            return
        owners = meta.get("ownerReferences") or []
        if not owners:
            return
        if not any(self._alive(version, owner) for owner in owners):
            self._remover.delete(kind, version.name, Wish(uid=meta["uid"]))

    def _alive(self, version: Version, owner: dict[str, Any]) -> bool:
        kind = self._kinds.of(owner.get("apiVersion", ""), owner.get("kind", ""))
        if kind is None:
            return False
        namespace = version.metadata.get("namespace", "") if kind.namespaced else ""
        found = self._store.get(kind.storage, (namespace, owner["name"]))
        return found is not None and bool(found.metadata["uid"] == owner["uid"])

    def _empty(self, namespace: Version) -> None:
        name, left = namespace.metadata["name"], False
        for storage, kind in self._kinds.stored().items():
            if not kind.namespaced:
                continue
            for key in [each for each in self._store.table(storage).objects if each[0] == name]:
                self._remover.delete(kind, key, Wish(grace=0))
                left = left or self._store.get(storage, key) is not None
        if not left:
            self._store.remove(NAMESPACE.storage, namespace.name)
