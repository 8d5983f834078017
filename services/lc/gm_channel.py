"""The node's end of the channel to GM (``GmChannel``), and its presence on the broker (``OwnPresence``).

GM sends inserts (resources to hold) and deletes. A uid is the life of a resource, a generation a version of its spec.
Each message passes ``on_insert`` or ``on_delete``, which decide by uid and generation; then it is stored, and wakes the
loop that plans. Another loop sends syncs: the list of the stored resources, to which GM answers with the missing
inserts and deletes, and then with ``synced``. So the node does not depend on messages that the broker retained. A sync
is due on every connection of the node or of GM, when GM has a new epoch (number of its life), and every few minutes;
sooner while GM has not answered. Messages with an epoch below the highest one come from an old GM and are ignored.

A body must agree with its topic, but its spec is not validated here: an unreadable spec is stored and reported, so that
GM and its author learn of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any

import structlog

import halimede
from halimede import codec, topics
from halimede.api import kinds
from halimede.api.base import ObjectMeta, convert
from halimede.api.worker_environment import SESSION_KEY_PROPERTY, WITH_SESSIONS, session_digest, session_key_pattern
from halimede.bus.message import Announcement, Delivery, Packet
from halimede.bus.ordering import MAX_INTEGER, SequenceNumber, check_epoch
from halimede.bus.port import Bus, refused_names
from halimede.errors import BusError, InvalidFieldError
from halimede.messages import Delete, GmPresence, Held, Presence, ResourceBody, Sync, Synced
from halimede.names import Key
from halimede.system.backoff import exponential
from services.lc.planning.plan import WorkerBackend
from services.lc.status_reporter import NodeStatusReporter
from services.lc.store import NodeResource, NodeStore, ResourceVersion

log = structlog.get_logger()
#: seconds between two syncs: at least; after an answer of GM; the first interval without an answer
MIN_PERIOD_S, PERIOD_S, UNANSWERED_S = 0.5, 300.0, 10.0
#: most characters of a uid
MAX_UID = 64
#: most deleted uids in a sync
MAX_DELETED = 100
#: seconds between two checks of the store: a fault must be reported within 15 s
STORE_CHECK_S = 5.0
#: seconds that the first sync waits if the presence of an LC with another store was received: if that LC runs, it takes
#: the connection back within that time, before this LC has started workers
RIVAL_S = 2.0


class InsertDecision(Enum):
    """The decision on an insert."""

    #: it is stored, in place of an earlier generation if there is one
    STORE = auto()
    #: another uid of the same name: the old uid is deleted for good, and its workers belong to no resource
    REPLACE = auto()
    #: stored already: acknowledge it again, change nothing, and check its files for changes
    SAME = auto()
    #: a newer generation is stored: it is ignored
    STALE = auto()
    #: a delete has arrived before it: it is ignored
    BURIED = auto()


class DeleteDecision(Enum):
    """The decision on a delete."""

    #: the stored resource is dropped
    DROP = auto()
    #: no resource of that name is stored: acknowledge the delete again
    ABSENT = auto()
    #: a resource of the same name but another uid is stored: it stays
    FOREIGN = auto()


def on_insert(current: ResourceVersion | None, new: ResourceVersion, tombstone: int | None) -> InsertDecision:
    """Decide on an insert; the same insert twice changes nothing.

    ``current``: the stored version of that name; None: none is stored. ``new``: the version in the insert.
    ``tombstone``: the generation up to which GM has deleted the new uid; None: it has not.

    Generation and uid define the order, never arrival. An insert up to the generation of a delete was sent before the
    delete. For a deleted resource GM sends its last generation, and one less if the resource is only no longer placed
    on this node: then the same generation may return.
    """
    if tombstone is not None and new.generation <= tombstone:
        return InsertDecision.BURIED
    if current is None:
        return InsertDecision.STORE
    if current.uid != new.uid:
        return InsertDecision.REPLACE
    if new.generation == current.generation:
        return InsertDecision.SAME
    return InsertDecision.STORE if new.generation > current.generation else InsertDecision.STALE


def on_delete(current: ResourceVersion | None, uid: str) -> DeleteDecision:
    """Decide on a delete of a uid; ``current``: the stored version of that name. A tombstone is stored in any case."""
    if current is None:
        return DeleteDecision.ABSENT
    return DeleteDecision.DROP if current.uid == uid else DeleteDecision.FOREIGN


class GmChannel:
    """The node's end of the channel: ``start`` subscribes, ``run`` sends syncs, ``watch_store`` checks the store.

    ``labels``: the node's. ``workers``: the node's workers, whose services a sync names. ``changed`` is called after
    each change of the stored resources; ``repeated`` with the key of a resource that GM has sent again: a user may have
    applied it because its files have changed.
    """

    def __init__(
        self,
        node: str,
        bus: Bus,
        *,
        labels: Mapping[str, str],
        store: NodeStore,
        workers: WorkerBackend,
        reporter: NodeStatusReporter,
        changed: Callable[[], None],
        repeated: Callable[[Key], None],
    ) -> None:
        self._node = node
        self._workers = workers
        self._bus = bus
        self._store = store
        self._reporter = reporter
        self._changed = changed
        self._repeated = repeated
        #: epoch and connection of the GM that is online, None while no GM is online
        self._gm_connection: tuple[int, int] | None = None
        self._sync_due = asyncio.Event()
        self.presence = OwnPresence(node, bus, labels=labels, store=store, overwritten=self._sync_due.set)
        #: timer of the next sync while a referenced resource is missing
        self._resync_timer: asyncio.TimerHandle | None = None
        #: whether GM has not answered the last sync
        self._unanswered = False
        #: whether a resource was dropped since the last sync: GM's answer may be outdated
        self._dropped = False
        #: number of the last sync, by which GM orders syncs; number of syncs that the broker accepted
        self._number = 0
        self.syncs = 0
        #: whether GM has answered a sync on this connection
        self.synced = False
        #: the event loop's time of GM's last answer
        self._synced_at: float | None = None

    @property
    def sync_age_s(self) -> float | None:
        """Seconds since GM answered a sync; None: it never has."""
        return None if self._synced_at is None else asyncio.get_running_loop().time() - self._synced_at

    def announce(self) -> Announcement:
        """Return birth and will of the next connection, with a new epoch that reports carry as well."""
        announcement = self.presence.announce()
        self._reporter.epoch = self.presence.epoch
        return announcement

    async def start(self) -> None:
        """Subscribe to GM's messages; called once, before the first connection."""
        self._bus.on_connect(self._connected)
        # first of all: GM's presence triggers a sync, which must know whether another LC was here
        await self.presence.start()
        await self._bus.subscribe(topics.INSERT.filter(node=self._node), self._on_insert)
        await self._bus.subscribe(topics.DELETE.filter(node=self._node), self._on_delete)
        await self._bus.subscribe(topics.SYNCED.filter(node=self._node), self._on_synced)
        await self._bus.subscribe(topics.GM_PRESENCE.filter(), self._on_gm)

    async def run(self) -> None:
        """Send syncs when they are due, until cancelled."""
        try:
            await self._sync_always()
        finally:
            self.set_lacking(lacking=False)

    async def _sync_always(self) -> None:
        """Send syncs without end."""
        unanswered = 1
        while True:
            patience = exponential(unanswered, UNANSWERED_S, PERIOD_S)
            # GM has not answered, no sync became due within the patience, and GM has not answered meanwhile
            retry = self._unanswered and not await _is_set_within(self._sync_due, patience) and self._unanswered
            if not retry:
                await _is_set_within(self._sync_due, PERIOD_S)
            unanswered = unanswered + 1 if retry else 1
            self._sync_due.clear()
            if self.presence.has_rival:
                self.presence.has_rival = False
                await asyncio.sleep(RIVAL_S)
            with contextlib.suppress(sqlite3.Error):  # the disk is still full
                self._store.settle()
            if not self._bus.connected:
                continue  # a sync is due on the next connection
            await self.presence.republish()
            await self._sync()
            await asyncio.sleep(MIN_PERIOD_S)

    async def watch_store(self) -> None:
        """Check that the store is intact and writable, and publish changed troubles, until cancelled."""
        while True:
            await asyncio.sleep(STORE_CHECK_S)
            self.presence.set_trouble(self._store.trouble())
            if self._bus.connected:
                await self._report_quarantine()

    async def _report_quarantine(self) -> None:
        """Publish as a dead letter that a damaged store was moved aside."""
        if self._store.put_aside:
            await self._bus.dead_letter(Packet(f"file:{self._store.path}", b""), self._store.put_aside)
            self._store.put_aside = ""

    def set_lacking(self, *, lacking: bool) -> None:
        """Set whether a stored resource names a missing one: then syncs are sent, less and less often."""
        if not lacking and self._resync_timer:
            self._resync_timer.cancel()
            self._resync_timer = None
        elif lacking and not self._resync_timer:
            self._schedule_resync(1)

    def _schedule_resync(self, attempts: int) -> None:
        """Schedule the next sync because of a missing resource, after ``attempts`` - 1 such syncs."""
        pause = exponential(attempts, UNANSWERED_S, PERIOD_S)
        self._resync_timer = asyncio.get_running_loop().call_later(pause, self._resync, attempts)

    def _resync(self, attempts: int) -> None:
        """Have a sync sent because of a missing resource, and schedule the next one."""
        self._sync_due.set()
        self._schedule_resync(attempts + 1)

    # --- messages from GM --------------------------------------------------------------------------------------

    async def _on_insert(self, delivery: Delivery[ResourceBody]) -> None:
        """Process an insert. Raises InvalidFieldError."""
        key, stamp = _key(delivery.names), self._current_stamp(delivery)
        if stamp is None or self._is_overtaken(key, stamp):
            return
        identity = _identity(delivery.body, delivery.names)
        resource = self._store.resources.get(key)
        decision = on_insert(resource.identity if resource else None, identity, self._store.tombstone(identity.uid))
        stored_key = resource.session_key if resource and resource.uid == identity.uid else ""
        session_key = _session_key(delivery.properties) or stored_key
        if decision is InsertDecision.SAME and session_key != stored_key:
            decision = InsertDecision.STORE
        log.info("insert", key=str(key), uid=identity.uid, generation=identity.generation, decision=decision.name)
        if decision in {InsertDecision.STORE, InsertDecision.REPLACE}:
            self._store.put(NodeResource(key, identity.uid, identity.generation, delivery.body, session_key), stamp)
            self._changed()
        elif decision is InsertDecision.SAME:
            self._reporter.report_again(key)
            self._repeated(key)

    async def _on_delete(self, delivery: Delivery[Delete]) -> None:
        """Process a delete. Raises InvalidFieldError."""
        key, stamp = _key(delivery.names), self._current_stamp(delivery)
        if stamp is None or self._is_overtaken(key, stamp):
            return
        version = ResourceVersion(delivery.body.uid, _check_bound(delivery.body.generation, "generation"))
        resource = self._store.resources.get(key)
        decision = on_delete(resource.identity if resource else None, version.uid)
        log.info("delete", key=str(key), uid=version.uid, decision=decision.name)
        self._store.put_tombstone(version, key, stamp)
        if decision is DeleteDecision.DROP:
            self._store.drop(key)
            self._dropped = True
            self._changed()
        elif decision is DeleteDecision.ABSENT:
            self._store.add_uncleared(key)
            if not self._store.complete:  # its workers run until GM knows all that this node runs
                self._sync_due.set()
            self._changed()
        else:
            self._reporter.report_again(key)

    async def _on_synced(self, delivery: Delivery[Synced]) -> None:
        """Process the end of GM's answer to a sync: the store is complete now, unless GM has lost resources."""
        if self._current_stamp(delivery) is None:
            return
        self._unanswered, self.synced = False, True
        self._synced_at = asyncio.get_running_loop().time()
        if self._dropped:
            self._sync_due.set()
        if not self._store.complete and not delivery.body.unknown:
            self._store.complete = True
            self._changed()

    async def _on_gm(self, delivery: Delivery[GmPresence]) -> None:
        """Process GM's presence: report and sync on each new connection of GM."""
        gm, highest = delivery.body, self._store.gm_epoch
        if check_epoch(gm.epoch) < highest:
            log.warning("presence of an older GM ignored", epoch=gm.epoch, highest=highest)
            if gm.online:
                self._sync_due.set()  # the sync contains the known epoch: a GM with a lost store continues from there
            return
        connection = (gm.epoch, gm.connection) if gm.online else None
        # a GM of an earlier version does not number its connections
        is_new = connection is not None and (not gm.connection or connection != self._gm_connection)
        self._gm_connection = connection
        self._store.record_gm_epoch(gm.epoch)
        if is_new:
            self._reporter.resend()
            self._sync_due.set()

    def _current_stamp(self, delivery: Delivery[Any]) -> SequenceNumber | None:
        """Return the sequence number of a message, and store GM's epoch; None: it is from an outdated GM, and ignored.

        Raises InvalidFieldError without an epoch, or with one that fits no clock.
        """
        stamp = SequenceNumber.read({"epoch": "", **delivery.properties})
        if check_epoch(stamp.epoch) < self._store.gm_epoch:
            log.warning("message of an older GM ignored", topic=delivery.address.text, epoch=stamp.epoch)
            return None
        self._store.record_gm_epoch(stamp.epoch)
        return stamp

    def _is_overtaken(self, key: Key, stamp: SequenceNumber) -> bool:
        """Whether GM has sent a later message about the resource, which has arrived before."""
        has_later = self._store.message_order.has_later(key, stamp)
        if has_later:
            log.info("late message ignored", key=str(key), number=stamp.number)
        return has_later

    # --- messages to GM ----------------------------------------------------------------------------------------

    async def _connected(self) -> None:
        """Process a new connection: report everything again, and sync."""
        await self._report_quarantine()
        self.synced = False
        self._reporter.resend()
        self._sync_due.set()

    async def _sync(self) -> None:
        """Send a sync: all stored resources, and services of running workers that a lost store had."""
        holds = [_sync_item(resource) for resource in self._store.resources.values()]
        if not self._store.complete:  # GM may have lost these as well
            uids = {worker.service: worker.uid for worker in self._workers.running.values()}
            holds += [
                Held(plural=key.plural, namespace=key.namespace, name=key.name, uid=uid, generation=0)
                for key, uid in uids.items()
                if key not in self._store.resources and not self._store.has_tombstone(uid)
            ]
        self._unanswered, self._dropped = True, False
        self._number += 1
        try:
            deleted = self._store.latest_tombstones(MAX_DELETED)
            sync = Sync(epoch=self.presence.epoch, gm_epoch=self._store.gm_epoch, holds=holds, deleted=deleted)
            stamp = SequenceNumber(self.presence.epoch, self._number)
            await self._bus.publish(topics.SYNC.at(node=self._node), sync, properties=stamp.properties)
        except BusError as error:
            log.info("sync not sent", error=str(error))
        else:
            self.syncs += 1


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, at most ``seconds``; return whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await event.wait()
    return False


def _key(names: Mapping[str, str]) -> Key:
    """Return the resource that a topic names."""
    return Key(names["plural"], names["ns"], names["name"])


def _identity(body: ResourceBody, names: Mapping[str, str]) -> ResourceVersion:
    """Return the uid and generation in a resource's body. Raises InvalidFieldError if it does not agree with its topic.

    ``names``: those in the topic.
    """
    api_version, kind = body.get("apiVersion"), body.get("kind")
    if not any((k.api_version, k.kind, k.plural) == (api_version, kind, names["plural"]) for k in kinds()):
        raise InvalidFieldError("kind", kind, f"use a known kind with the plural {names['plural']}")
    metadata = convert(body.get("metadata"), ObjectMeta, "metadata")
    for field, value, name in (("namespace", metadata.namespace, "ns"), ("name", metadata.name, "name")):
        if value != names[name]:
            raise InvalidFieldError(f"metadata.{field}", value, f"the topic is of {names[name]}")
    if not 0 < len(metadata.uid) <= MAX_UID:
        raise InvalidFieldError("metadata.uid", metadata.uid, f"send 1 to {MAX_UID} characters")
    return ResourceVersion(metadata.uid, _check_bound(metadata.generation, "metadata.generation"))


def _sync_item(resource: NodeResource) -> Held:
    """Return how a sync names a stored resource; of a service also the digest of its session key."""
    key = resource.key
    session = session_digest(resource.session_key) if key.plural in WITH_SESSIONS else None
    names = {"plural": key.plural, "namespace": key.namespace, "name": key.name}
    return Held(**names, uid=resource.uid, generation=resource.generation, session=session)


def _session_key(properties: Mapping[str, str]) -> str:
    """Return the session key in the properties of an insert; empty: there is none. Raises InvalidFieldError.

    The error does not contain the key, which is a secret.
    """
    key = properties.get(SESSION_KEY_PROPERTY, "")
    if key and not session_key_pattern.fullmatch(key):
        raise InvalidFieldError(SESSION_KEY_PROPERTY, "***", "send 32 hexadecimal digits")
    return key


def _check_bound(value: int, field: str) -> int:
    """Return a number that the store can hold. Raises InvalidFieldError for a larger one."""
    if value > MAX_INTEGER:
        raise InvalidFieldError(field, value, f"send at most {MAX_INTEGER}")
    return value


class OwnPresence:
    """The node's presence: a retained message that says that it is online (birth), or offline (will).

    The will is published by the broker when a connection ends. Each connection has a number, the epoch, which grows. A
    second LC with this node's name, or a late will of an earlier connection, may overwrite the birth. So the LC
    subscribes to its own presence. ``overwritten`` is called when ``republish`` shall be called.
    """

    def __init__(
        self, node: str, bus: Bus, *, labels: Mapping[str, str], store: NodeStore, overwritten: Callable[[], None]
    ) -> None:
        #: URL of the LC's health and metrics; empty: none
        self.http = ""
        #: the number of the latest connection
        self.epoch = 0
        #: all connections of the LC to the broker
        self.connections = [bus]
        #: whether the presence of an LC with another store was found at the start
        self.has_rival = False
        self._node = node
        self._labels = dict(labels)
        self._bus = bus
        self._store = store
        self._overwritten = overwritten
        #: the epoch of this node's last birth that came back from the broker, and the event loop's time of that
        self._confirmed, self._confirmed_at = 0, 0.0
        #: whether the birth must be published again
        self._birth_due = False
        self._trouble = ""
        #: what the last birth named as refused
        self._announced_refusals: list[str] = []

    @property
    def alone(self) -> bool:
        """Whether no other LC has used this name for 2 s: then further connections meet no conflict."""
        now = asyncio.get_running_loop().time()
        return self._bus.connected and self._confirmed == self.epoch and now - self._confirmed_at >= RIVAL_S

    def announce(self) -> Announcement:
        """Return birth and will of the next connection, with a new epoch."""
        self.epoch = self._store.next_presence_epoch()
        will = Presence(node=self._node, epoch=self.epoch, online=False, store=self._store.identity)
        return Announcement(self._birth(), self._packet(will), self._birth)

    def set_trouble(self, trouble: str) -> None:
        """Have the birth published again with a trouble for operators (empty: none), if it or the refusals changed."""
        if trouble != self._trouble or self._refusals() != self._announced_refusals:
            self._trouble = trouble
            self._restore_birth()

    async def start(self) -> None:
        """Subscribe to the node's own presence."""
        await self._bus.subscribe(topics.PRESENCE.filter(node=self._node), self._on_presence, cleared=self._on_cleared)

    async def republish(self) -> None:
        """Publish the birth again if another message has replaced it."""
        if self._birth_due:
            self._birth_due = False
            try:
                await self._bus.send(self._birth())
            except BusError as error:
                log.info("birth message not sent", error=str(error))

    async def _on_presence(self, delivery: Delivery[Presence]) -> None:
        """Check the presence under this node's name: it must be this connection's birth.

        A retained message came before this birth, which is still in flight. If it is from another store, another LC
        uses this name, except at the first start: then it may be left from an earlier LC. A late will of an earlier
        connection would show the node as offline.
        """
        presence, ours = delivery.body, delivery.body.store == self._store.identity
        if ours and presence.online and presence.epoch == self.epoch:
            if self._confirmed != self.epoch:
                self._confirmed, self._confirmed_at = self.epoch, asyncio.get_running_loop().time()
            return
        if not ours and self._confirmed:
            log.error("node name used twice", node=self._node, its_epoch=presence.epoch)
            self._bus.resolve_id_conflict()
        elif not ours:
            self.has_rival = True
        if not delivery.packet.retain:
            self._restore_birth()

    async def _on_cleared(self, _: Mapping[str, str]) -> None:
        """Process that somebody has cleared this node's presence."""
        self._restore_birth()

    def _restore_birth(self) -> None:
        """Have the birth published again, once the broker has received it."""
        if self._confirmed == self.epoch:
            self._birth_due = True
            self._overwritten()

    def _refusals(self) -> list[str]:
        """Return the topics and filters that the broker refuses to this LC."""
        return refused_names(self.connections, birth=topics.PRESENCE.at(node=self._node).text)

    def _birth(self) -> Packet:
        """Return the birth as it is now."""
        self._announced_refusals = self._refusals()
        birth = Presence(
            node=self._node,
            epoch=self.epoch,
            online=True,
            version=halimede.__version__,
            cpus=os.cpu_count() or 0,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            labels=self._labels,
            http=self.http,
            store=self._store.identity,
            trouble=self._trouble,
            refused=self._announced_refusals,
        )
        return self._packet(birth)

    def _packet(self, presence: Presence) -> Packet:
        """Return the retained message with a presence."""
        payload = codec.encode(topics.PRESENCE, presence)
        return Packet(topics.PRESENCE.at(node=self._node).text, payload, qos=1, retain=True)
