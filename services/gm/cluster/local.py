"""The standalone cluster: resources in GM's own store, edited over the bus.

Everything is held in memory as well, so that reading costs nothing and a write is the only thing that touches the
file. Statuses do not change the resource version here, so a stale one can only mean that the user edited in between.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from halimede.api import Resource
from halimede.messages import Event, Status
from halimede.names import Key
from services.gm.budget import Budgets
from services.gm.cluster.port import Applied, ConflictError, EventType, Memory, Stored
from services.gm.database import Database, StoreError
from services.gm.store import Store, require

log = structlog.get_logger()

#: what a node may say that it follows: far above any clock's seconds, far below what an integer holds
MAX_EPOCH = 2**48
#: resources in all: what one node's sync may name, and thus what it can be told to hold
MAX_RESOURCES = 10_000
#: events a second, and at once: of one reason about one thing, and of one reason about all things
EVENTS_ABOUT, EVENTS_OF = (0.1, 20.0), (20.0, 2000.0)
#: of so many things it is known how often an event was left out
MAX_LEFT_OUT = 1000


class LocalCluster:
    """Cluster and Editor on the store ``path``; open inside ``async with``, by one GM at a time."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path)
        self._store = Store(self._database)
        self._resources: dict[Key, Stored] = {}
        # a set of keys, in order: however many edits there are, it is no longer than the list of resources
        self._changed: dict[Key, None] = {}
        self._change = asyncio.Event()
        self._about: Budgets[tuple[str, str]] = Budgets(*EVENTS_ABOUT)
        self._reasons: Budgets[str] = Budgets(*EVENTS_OF)
        #: events left out since the last one of that reason about that thing was kept
        self._left_out: Counter[tuple[str, str]] = Counter()

    async def __aenter__(self) -> Self:
        self._database.__enter__()
        try:
            self._resources = {stored.key: stored for stored in self._store.load()}
            if self._database.quarantined:
                text = f"the store was damaged: it was put aside as {self._database.quarantined} and a new one begun"
                self._store.add_event("Warning", "StoreQuarantined", "gm", text)
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

    async def overtake(self, epoch: int) -> bool:
        """Count on from there: this store's lock and ``refuse_a_second`` leave nobody else who could be the GM."""
        if epoch > MAX_EPOCH:
            return False
        self._database.raise_epoch(epoch)
        return True

    @property
    def failures(self) -> int:
        """Of the store."""
        return self._database.failures

    def check(self) -> str:
        """Ask the store."""
        return self._database.check()

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
        """Add to the event log, if there is room: nothing that happens may fail because it cannot be told.

        What happens again and again is told now and then, with its count: a flood of events would push all others
        out of the log.
        """
        what = (reason, about)
        if not (self._about.spend(what) and self._reasons.spend(reason)):
            if what in self._left_out or len(self._left_out) < MAX_LEFT_OUT:
                self._left_out[what] += 1
            return
        try:
            self._store.add_event(type_, reason, about, message, times=1 + self._left_out.pop(what, 0))
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
        """Create or edit. Raises ConflictError for one more than there may be."""
        if resource.key not in self._resources and len(self._resources) >= MAX_RESOURCES:
            raise ConflictError(f"there are {MAX_RESOURCES} resources already: delete what is not needed any more")
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

    async def mark_drained(self, node: str, *, drained: bool) -> None:
        """Keep whether a node is to be empty."""
        self._store.mark_drained(node, drained=drained)

    def events(self, after: int, about: str, limit: int, before: int = 0) -> list[Event]:
        """Return events, oldest first."""
        return self._store.events(after, about, limit, before)

    def _announce(self, key: Key) -> None:
        self._changed[key] = None
        self._change.set()
