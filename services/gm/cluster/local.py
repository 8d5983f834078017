"""The standalone cluster: resources in GM's own store, edited over the bus.

All resources are in memory as well, so only writes access the file. Statuses do not change the resource version here,
so a stale version means that the user edited the resource in between.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from halimede.api import Resource, admit
from halimede.api.worker_environment import SESSION_KEY_DIGITS
from halimede.messages import Event, Status
from halimede.names import Key
from halimede.system import sqlite
from services.gm.cluster.port import (
    Applied,
    ClusterWorkers,
    ConflictError,
    EventType,
    Happening,
    LostVersion,
    Memory,
    Outcome,
    Ref,
    StoredResource,
)
from services.gm.cluster.sqlite_file import Database, StoreError
from services.gm.cluster.store import ResourceStore, outcome_of, require
from services.gm.rate_limit import EventDeduplicator

log = structlog.get_logger()

DAMAGED = "the store was damaged, or removed while in use: GM created a new one and moved the old one to"
#: resources in all: the most that a node's sync may name, and thus the most that a node can hold
MAX_RESOURCES = 10_000


class LocalCluster:
    """Cluster and Editor on the store ``path``; open inside ``async with``, by one GM at a time."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path)
        self._store = ResourceStore(self._database)
        self._resources: dict[Key, StoredResource] = {}
        # a set of keys in order: it is never longer than the list of resources, however many edits there are
        self._changed: dict[Key, None] = {}
        self._change = asyncio.Event()
        self._repeats = EventDeduplicator()
        #: nodes that users have drained
        self._drained: set[str] = set()
        #: resources whose latest status is only in memory, because the store could not be written
        self._unwritten: set[Key] = set()
        #: why the last write of reports failed
        self._unremembered = ""

    async def __aenter__(self) -> Self:
        self._database.__enter__()
        try:
            self._resources = {stored.key: stored for stored in self._store.load()}
            if self._database.put_aside:
                self._store.add_event("Warning", "StoreQuarantined", "gm", f"{DAMAGED} {self._database.put_aside}")
        except BaseException:
            self._database.__exit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(StoreError):
            self._write_rest()
        self._database.__exit__(kind, error, trace)

    # --- Cluster ----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The number of starts of GM on this store."""
        return self._database.epoch

    async def overtake(self, epoch: int) -> bool:
        """Raise the epoch: this store's lock and ``refuse_a_second`` ensure that there is no other GM."""
        self._database.raise_epoch(epoch)
        return True

    @property
    def leads(self) -> bool:
        """Always True: the store is locked while it is open."""
        return True

    @property
    def failures(self) -> int:
        """The number of failed writes to the store."""
        return self._database.failures

    def check(self) -> str:
        """Write the statuses that are only in memory; return why that, or another write, would fail."""
        try:
            self._write_rest()
        except StoreError as error:
            return str(error)
        return self._database.check() or self._unremembered

    @property
    def quarantined(self) -> str:
        """Names of damaged files that were moved aside and still exist, with the reasons."""
        return sqlite.quarantined(self._database.path)

    async def repair(self) -> None:
        """Replace a store that was damaged or removed by a new one, filled from memory."""
        damage = await asyncio.to_thread(self._database.damage)
        if not damage:
            return
        try:
            self._database.renew(damage, lambda: self._store.refill(self._resources.values(), self._drained))
        except StoreError as error:
            log.critical("store not renewed", error=str(error))
            return
        self._unwritten.clear()
        log.critical("store renewed", reason=damage, put_aside=self._database.put_aside)
        await self.record("Warning", "StoreQuarantined", "gm", f"{DAMAGED} {self._database.put_aside}")

    @property
    def identity(self) -> str:
        """The identity of the store."""
        return self._database.identity

    @property
    def complete(self) -> bool:
        """False if an earlier store may have been lost (see ``Database.lost``)."""
        return not self._database.lost

    def session_key(self, uid: str) -> str:
        """Return the session key of a service, derived from the secret of the store."""
        return _session_key(self._database.session_secret, uid)

    def get(self, key: Key) -> StoredResource | None:
        """Return a resource."""
        return self._resources.get(key)

    def exists(self, key: Key, uid: str) -> bool:
        """Whether the resource exists with this uid."""
        stored = self._resources.get(key)
        return stored is not None and stored.uid == uid

    def resources(self, plural: str = "", namespace: str = "") -> Iterator[StoredResource]:
        """Return all resources (of one kind, of one namespace)."""
        for key, stored in self._resources.items():
            if plural in {"", key.plural} and namespace in {"", key.namespace}:
                yield stored

    def namesakes(self, key: Key) -> tuple[StoredResource, ...]:  # noqa: ARG002
        """Always empty: ``apply`` refuses a name that another group has."""
        return ()

    async def changes(self) -> AsyncIterator[Happening]:
        """Yield keys that were edited, to one consumer."""
        while True:
            await self._change.wait()
            self._change.clear()
            while self._changed:
                key = next(iter(self._changed))
                del self._changed[key]
                yield key

    async def write_status(self, stored: StoredResource, status: Status) -> None:
        """Replace a status. Raises ConflictError if the resource was edited since.

        While the store cannot be written, the status stays in memory: nodes repeat the reports that it is made from.
        """
        now = self._resources.get(stored.key)
        if now is None or now.resource_version != stored.resource_version:
            raise ConflictError(f"{stored.key} was edited while its status was computed")
        self._resources[stored.key] = StoredResource(now.resource, status)
        if self._unwritten:
            self._unwritten.add(stored.key)
            return
        try:
            self._store.write_statuses({stored.key: status})
        except StoreError as error:
            self._unwritten.add(stored.key)
            log.critical("statuses not stored", error=str(error))

    async def edit(self, stored: StoredResource, fields: Mapping[str, Any]) -> None:
        """Set fields of a spec. Raises ConflictError if the resource was edited since, or is gone."""
        now = self._resources.get(stored.key)
        if now is None or now.resource_version != stored.resource_version:
            raise ConflictError(f"{stored.key} was edited in the meantime")
        await self.apply(admit({**now.resource.body, "spec": {**now.resource.body["spec"], **fields}}))

    async def add_finalizer(self, key: Key, uid: str) -> None:
        """Do nothing: here each deletion waits."""

    async def finalize(self, key: Key, uid: str) -> None:
        """Remove a resource whose deletion was requested."""
        stored = self._resources.get(key)
        if stored is not None and stored.uid == uid and stored.deleting:
            self._store.remove(key, uid, stored.resource.metadata.generation)
            del self._resources[key]
            self._announce(key)

    def workers(self, key: Key) -> ClusterWorkers:  # noqa: ARG002
        """Always empty: nodes start the workers."""
        return ClusterWorkers()

    async def secrets(
        self,
        namespace: str,  # noqa: ARG002
        names: Collection[str],
    ) -> Mapping[str, dict[str, Any] | None]:
        """There are no Secrets: return None for each name."""
        return dict.fromkeys(names)

    async def pod_warnings(
        self,
        namespace: str,  # noqa: ARG002
        uids: Collection[str],  # noqa: ARG002
    ) -> Mapping[str, tuple[str, str]]:
        """Return nothing: there are no pods."""
        return {}

    async def ensure(self, body: dict[str, Any]) -> None:
        """Do nothing: nodes start the workers."""

    async def remove(self, ref: Ref, uid: str) -> None:
        """Do nothing: no objects were made."""

    async def bury(self, uid: str, generation: int) -> None:
        """Remember that a uid was deleted."""
        self._store.bury(uid, generation)

    def deleted_generation(self, uid: str) -> int | None:
        """Return the last generation of a uid that was deleted."""
        return self._store.deleted_generation(uid)

    async def record(self, type_: EventType, reason: str, about: str, message: str) -> None:
        """Add to the event log if the store can be written: an action must not fail because of its event."""
        times = self._repeats.times(reason, about)
        if not times:
            return
        try:
            self._store.add_event(type_, reason, about, message, times=times)
        except StoreError as error:
            log.warning("event not stored", reason=reason, about=about, message=message, error=str(error))

    async def remember(self, memory: Memory) -> None:
        """Store reports and nodes, and statuses that could not be written before. Raises StoreError."""
        self._unremembered = ""
        try:
            self._write_rest()
            if memory.reports or memory.nodes:
                self._store.remember(memory.reports, memory.nodes)
        except StoreError as error:
            self._unremembered = str(error)
            raise

    async def forget_node(self, node: str) -> None:
        """Drop the stored data of a node."""
        self._store.forget_node(node)
        self._drained.discard(node)

    async def recall(self) -> Memory:
        """Return what was remembered."""
        memory = self._store.recall()
        self._drained = set(memory.drained)
        return memory

    # --- Editor -----------------------------------------------------------------------------------------------

    async def apply(self, resource: Resource[Any], lost: LostVersion | None = None) -> Applied:
        """Create or edit. Raises ConflictError at the limit of resources."""
        self._check_limit(resource)
        applied = self._store.apply(self._resources.get(resource.key), resource, lost)
        if applied.outcome != "unchanged":
            self._resources[resource.key] = applied.stored
            self._announce(resource.key)
        return applied

    def try_apply(self, resource: Resource[Any]) -> Outcome:
        """Return what ``apply`` would do. Raises ConflictError as it does."""
        self._check_limit(resource)
        return outcome_of(self._resources.get(resource.key), resource)

    def _check_limit(self, resource: Resource[Any]) -> None:
        if resource.key not in self._resources and len(self._resources) >= MAX_RESOURCES:
            raise ConflictError(f"there are already {MAX_RESOURCES} resources: delete some that are not needed")

    async def delete(self, key: Key) -> StoredResource:
        """Request deletion."""
        stored = self._store.mark_deleted(require(self._resources.get(key), key))
        self._resources[key] = stored
        self._announce(key)
        return stored

    async def mark_drained(self, node: str, *, drained: bool) -> None:
        """Store whether a node is drained."""
        self._store.mark_drained(node, drained=drained)
        (self._drained.add if drained else self._drained.discard)(node)

    def events(self, after: int, about: str, limit: int, before: int = 0) -> list[Event]:
        """Return events, oldest first."""
        return self._store.events(after, about, limit, before)

    def _write_rest(self) -> None:
        """Write the statuses that are only in memory. Raises StoreError."""
        if self._unwritten:
            stored = (self._resources.get(key) for key in self._unwritten)
            self._store.write_statuses({s.key: s.status for s in stored if s and s.status})
            log.info("statuses stored again", statuses=len(self._unwritten))
            self._unwritten.clear()

    def _announce(self, key: Key) -> None:
        self._changed[key] = None
        self._change.set()


@lru_cache(maxsize=1024)  # each message to a node about the service needs it
def _session_key(secret: str, uid: str) -> str:
    return hmac.new(secret.encode(), uid.encode(), hashlib.sha256).hexdigest()[:SESSION_KEY_DIGITS]
