"""The standalone cluster (``LocalCluster``): resources in GM's own SQLite store, which users edit through GM's API.

Resources are in memory as well, so reading them does not access the file. Writing a status does not change the resource
version here: a new version always means that a user has edited the resource.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
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

#: the beginning of the event's message about a damaged store
DAMAGED = "the store was damaged, or removed while in use: GM created a new one and moved the old one to"
#: most resources in all: a node's sync may name no more, so a node can hold no more
MAX_RESOURCES = 10_000


class LocalCluster:
    """A ``Cluster`` and an ``Editor``, which ``port.py`` describes, on the SQLite file ``path``.

    It is open inside ``async with``, by one GM at a time. Entering raises StoreError.
    """

    def __init__(self, path: Path) -> None:
        self._database = Database(path)
        self._store = ResourceStore(self._database)
        self._resources: dict[Key, StoredResource] = {}
        #: keys that have changed, in order, each once however many edits there are
        self._changed: dict[Key, None] = {}
        self._change = asyncio.Event()
        self._repeats = EventDeduplicator()
        #: nodes that users have drained
        self._drained: set[str] = set()
        #: resources whose latest status is only in memory, because the store could not be written
        self._unwritten: set[Key] = set()
        #: why the last ``remember`` failed; empty: it succeeded
        self._unremembered = ""

    async def __aenter__(self) -> Self:
        self._database.__enter__()
        try:
            self._resources = {stored.key: stored for stored in self._store.load()}
            if self._database.put_aside:
                self._store.add_event("Warning", "StoreQuarantined", "gm", f"{DAMAGED} {self._database.put_aside}")
        except BaseException:
            self._database.__exit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(StoreError):
            self._write_unwritten()
        self._database.__exit__()

    # --- Cluster ----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The number of this run of GM: it rises at each start on this store."""
        return self._database.epoch

    async def overtake(self, epoch: int) -> bool:
        """Raise the epoch above another one; always return True.

        There is no other GM: one with this store has no lock, and one with another store is refused at its start.
        """
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
        """Write the statuses that are only in memory; return why that or another write fails, empty if none does."""
        try:
            self._write_unwritten()
        except StoreError as error:
            return str(error)
        return self._database.check() or self._unremembered

    @property
    def quarantined(self) -> str:
        """Names of damaged files that were moved aside and still exist, with the reasons; empty: none."""
        return sqlite.quarantine_notice(self._database.path)

    async def repair(self) -> None:
        """Replace a file that was damaged or removed by a new one, from memory. A failure is only logged."""
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
        """The random identity of the store. A GM with another one is refused at its start."""
        return self._database.identity

    @property
    def complete(self) -> bool:
        """False if an earlier store may have been lost, as after each start with an empty folder."""
        return not self._database.lost

    def session_key(self, uid: str) -> str:
        """Return the session key of a service, computed from its uid and the secret of the store."""
        return _session_key(self._database.session_secret, uid)

    def get(self, key: Key) -> StoredResource | None:
        """Return a resource; None: there is none."""
        return self._resources.get(key)

    def exists(self, key: Key, uid: str = "") -> bool:
        """Whether a resource exists with this uid (empty: any)."""
        stored = self._resources.get(key)
        return stored is not None and uid in {"", stored.uid}

    def resources(self, plural: str = "", namespace: str = "") -> Iterator[StoredResource]:
        """Yield all resources, or only those of a kind (by its plural) or of a namespace."""
        for key, stored in self._resources.items():
            if plural in {"", key.plural} and namespace in {"", key.namespace}:
                yield stored

    def namesakes(self, key: Key) -> tuple[StoredResource, ...]:  # noqa: ARG002
        """Return no resources of the same name in another API group: ``apply`` refuses such a name."""
        return ()

    async def changes(self) -> AsyncIterator[Happening]:
        """Yield keys of resources that were created, edited or removed, without end, to one caller."""
        while True:
            await self._change.wait()
            self._change.clear()
            while self._changed:
                key = next(iter(self._changed))
                del self._changed[key]
                yield key

    async def write_status(self, stored: StoredResource, status: Status) -> None:
        """Replace a status. Raises ConflictError if the resource was edited since ``stored`` was read, or is gone.

        While the store cannot be written, the status is only in memory: it is made from reports that nodes repeat.
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
        """Set fields of a spec. Raises ConflictError if the resource was edited since ``stored`` was read, or is gone.

        Raises InvalidFieldError if the spec would be invalid, StoreError if it cannot be written.
        """
        now = self._resources.get(stored.key)
        if now is None or now.resource_version != stored.resource_version:
            raise ConflictError(f"{stored.key} was edited in the meantime")
        await self.apply(admit({**now.resource.body, "spec": {**now.resource.body["spec"], **fields}}))

    async def add_finalizer(self, key: Key, uid: str) -> None:
        """Do nothing: here each deletion waits for ``finalize``."""

    async def finalize(self, key: Key, uid: str) -> None:
        """Remove a resource whose deletion was requested. Raises StoreError."""
        stored = self._resources.get(key)
        if stored is not None and stored.uid == uid and stored.deleting:
            self._store.remove(key, uid, stored.resource.metadata.generation)
            del self._resources[key]
            self._announce(key)

    def workers(self, key: Key) -> ClusterWorkers:  # noqa: ARG002
        """Return no objects and no pods: nodes start the workers."""
        return ClusterWorkers()

    async def secrets(self, namespace: str, names: Collection[str]) -> Mapping[str, dict[str, Any] | None]:  # noqa: ARG002
        """Return None for each name: there are no Secrets."""
        return dict.fromkeys(names)

    async def pod_warnings(self, namespace: str, uids: Collection[str]) -> Mapping[str, tuple[str, str]]:  # noqa: ARG002
        """Return nothing: there are no pods."""
        return {}

    async def ensure(self, body: dict[str, Any]) -> None:
        """Do nothing: nodes start the workers."""

    async def remove(self, ref: Ref, uid: str) -> None:
        """Do nothing: no objects were made."""

    async def bury(self, uid: str, generation: int) -> None:
        """Store that a uid was deleted up to a generation. Raises StoreError."""
        self._store.bury(uid, generation)

    def deleted_generation(self, uid: str) -> int | None:
        """Return the last generation of a deleted uid; None: its deletion is not known."""
        return self._store.deleted_generation(uid)

    async def record(self, type_: EventType, reason: str, about: str, message: str) -> None:
        """Add an event to the log, unless it repeats too often; a failure of the store is only logged."""
        times = self._repeats.times(reason, about)
        if not times:
            return
        try:
            self._store.add_event(type_, reason, about, message, times=times)
        except StoreError as error:
            log.warning("event not stored", reason=reason, about=about, message=message, error=str(error))

    async def remember(self, memory: Memory) -> None:
        """Store reports and nodes, and the statuses that are only in memory. Raises StoreError."""
        self._unremembered = ""
        try:
            self._write_unwritten()
            if memory.reports or memory.nodes:
                self._store.remember(memory.reports, memory.nodes)
        except StoreError as error:
            self._unremembered = str(error)
            raise

    async def forget_node(self, node: str) -> None:
        """Drop the stored data of a node. Raises StoreError."""
        self._store.forget_node(node)
        self._drained.discard(node)

    async def recall(self) -> Memory:
        """Return the stored reports and nodes, and the drained nodes."""
        memory = self._store.recall()
        self._drained = set(memory.drained)
        return memory

    # --- Editor -----------------------------------------------------------------------------------------------

    async def apply(self, resource: Resource[Any], lost: LostVersion | None = None) -> Applied:
        """Create or edit a resource, which continues the version ``lost`` that only nodes hold.

        Raises ConflictError as ``Editor.apply`` does, and at the limit of resources, and StoreError.
        """
        self._check_limit(resource)
        applied = self._store.apply(self._resources.get(resource.key), resource, lost)
        if applied.outcome != "unchanged":
            self._resources[resource.key] = applied.stored
            self._announce(resource.key)
        return applied

    def try_apply(self, resource: Resource[Any], lost: LostVersion | None = None) -> Outcome:
        """Return what ``apply`` would do. Raises ConflictError as ``apply`` does."""
        self._check_limit(resource)
        return outcome_of(self._resources.get(resource.key), resource, lost)

    def _check_limit(self, resource: Resource[Any]) -> None:
        """Raise ConflictError if there are too many resources for a new one."""
        if resource.key not in self._resources and len(self._resources) >= MAX_RESOURCES:
            raise ConflictError(f"there are already {MAX_RESOURCES} resources: delete some that are not needed")

    async def delete(self, key: Key) -> StoredResource:
        """Request the deletion of a resource; return it with its deletion time.

        Raises UnknownResourceError and StoreError.
        """
        stored = self._store.mark_deleted(require(self._resources.get(key), key))
        self._resources[key] = stored
        self._announce(key)
        return stored

    async def mark_drained(self, node: str, *, drained: bool) -> None:
        """Store whether a user has drained a node. Raises StoreError."""
        self._store.mark_drained(node, drained=drained)
        (self._drained.add if drained else self._drained.discard)(node)

    def events(self, after: int, about: str, limit: int, before: int = 0) -> list[Event]:
        """Return the newest ``limit`` events about an object (empty: about all), oldest first.

        Their sequence numbers are above ``after``, and below ``before`` unless that is 0.
        """
        return self._store.events(after, about, limit, before)

    def _write_unwritten(self) -> None:
        """Write the statuses that are only in memory. Raises StoreError."""
        if self._unwritten:
            stored = (self._resources.get(key) for key in self._unwritten)
            self._store.write_statuses({s.key: s.status for s in stored if s and s.status})
            log.info("statuses stored again", statuses=len(self._unwritten))
            self._unwritten.clear()

    def _announce(self, key: Key) -> None:
        """Have ``changes`` yield a key."""
        self._changed[key] = None
        self._change.set()


@lru_cache(maxsize=1024)  # each message to a node about the service needs it
def _session_key(secret: str, uid: str) -> str:
    """Return the session key of a service's uid: HMAC-SHA-256 in hexadecimal, cut."""
    return hmac.new(secret.encode(), uid.encode(), hashlib.sha256).hexdigest()[:SESSION_KEY_DIGITS]
