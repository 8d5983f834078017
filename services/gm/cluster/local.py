"""The standalone cluster: resources in GM's own store, edited over the bus.

Everything is held in memory as well, so that reading costs nothing and a write is the only thing that touches the
file. Statuses do not change the resource version here, so a stale one can only mean that the user edited in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from halimede.api import Resource
from halimede.messages import Event, Status
from halimede.names import Key
from services.gm.cluster.port import Applied, ConflictError, EventType, Memory, Stored
from services.gm.database import Database, StoreError
from services.gm.store import Store, require

log = structlog.get_logger()


class LocalCluster:
    """Cluster and Editor on the store ``path``; open inside ``async with``, by one GM at a time."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path)
        self._store = Store(self._database)
        self._resources: dict[Key, Stored] = {}
        # a set of keys, in order: however many edits there are, it is no longer than the list of resources
        self._changed: dict[Key, None] = {}
        self._change = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._database.__enter__()
        try:
            self._resources = {stored.key: stored for stored in self._store.load()}
        except BaseException:
            self._database.__exit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.__exit__(kind, error, trace)

    # --- Cluster ----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Counts the starts of GM on this store."""
        return self._database.epoch

    @property
    def identity(self) -> str:
        """Of the store."""
        return self._database.identity

    @property
    def complete(self) -> bool:
        """False unless no earlier store can have been lost (see ``Database.lost``)."""
        return not self._database.lost

    def get(self, key: Key) -> Stored | None:
        """Return a resource."""
        return self._resources.get(key)

    def resources(self, plural: str = "", namespace: str = "") -> Iterator[Stored]:
        """Return all resources (of one kind, of one namespace)."""
        for key, stored in self._resources.items():
            if plural in {"", key.plural} and namespace in {"", key.namespace}:
                yield stored

    async def changes(self) -> AsyncIterator[Key]:
        """Yield keys that were edited; one consumer."""
        while True:
            await self._change.wait()
            self._change.clear()
            while self._changed:
                key = next(iter(self._changed))
                del self._changed[key]
                yield key

    async def write_status(self, key: Key, status: Status, resource_version: str) -> None:
        """Replace a status. Raises ConflictError if the resource was edited since."""
        stored = self._resources.get(key)
        if stored is None or stored.resource_version != resource_version:
            raise ConflictError(f"{key} was edited while its status was made")
        self._store.write_status(key, status)
        self._resources[key] = Stored(stored.resource, status)

    async def finalize(self, key: Key, uid: str) -> None:
        """Let a resource go whose deletion was asked for."""
        stored = self._resources.get(key)
        if stored is not None and stored.uid == uid and stored.deleting:
            self._store.remove(key, uid, stored.resource.metadata.generation)
            del self._resources[key]
            self._announce(key)

    async def bury(self, uid: str, generation: int) -> None:
        """Remember that a uid was deleted."""
        self._store.bury(uid, generation)

    def buried(self, uid: str) -> int | None:
        """Return the last generation of a uid that was deleted."""
        return self._store.buried(uid)

    async def record(self, type_: EventType, reason: str, about: str, message: str) -> None:
        """Add to the event log, if there is room: nothing that happens may fail because it cannot be told."""
        try:
            self._store.add_event(type_, reason, about, message)
        except StoreError as error:
            log.warning("event not kept", reason=reason, about=about, message=message, error=str(error))

    async def remember(self, memory: Memory) -> None:
        """Keep reports and nodes."""
        self._store.remember(memory.reports, memory.nodes)

    async def forget_node(self, node: str) -> None:
        """Drop what is kept of a node."""
        self._store.forget_node(node)

    async def recall(self) -> Memory:
        """Return what was remembered."""
        return self._store.recall()

    # --- Editor -----------------------------------------------------------------------------------------------

    async def apply(self, resource: Resource[Any]) -> Applied:
        """Create or edit."""
        applied = self._store.apply(self._resources.get(resource.key), resource)
        if applied.outcome != "unchanged":
            self._resources[resource.key] = applied.stored
            self._announce(resource.key)
        return applied

    async def delete(self, key: Key) -> Stored:
        """Ask for deletion."""
        stored = self._store.mark_deleted(require(self._resources.get(key), key))
        self._resources[key] = stored
        self._announce(key)
        return stored

    def events(self, after: int, about: str, limit: int) -> list[Event]:
        """Return events, oldest first."""
        return self._store.events(after, about, limit)

    def _announce(self, key: Key) -> None:
        self._changed[key] = None
        self._change.set()
