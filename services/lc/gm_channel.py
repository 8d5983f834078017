"""The channel to GM: checks, orders and stores GM's messages, and sends syncs of the node's resources.

Nothing depends on the broker having kept anything. A sync goes out on every connection, when GM appears or has a new
epoch, and every few minutes; sooner while GM has not answered. Messages of an epoch lower than one seen are an old
leader's and are ignored.

A body must agree with its topic, but its spec is not judged here: one that this LC cannot read is held and reported,
so that GM and whoever wrote it learn of it.
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
from halimede.bus.message import Announcement, Delivery, Packet
from halimede.bus.ordering import MAX_INTEGER, SequenceNumber, check_epoch
from halimede.bus.port import Bus
from halimede.errors import BusError, InvalidFieldError
from halimede.messages import Delete, GmPresence, Held, Presence, ResourceBody, Sync, Synced
from halimede.names import Key
from halimede.system.backoff import exponential
from services.lc.status_reporter import NodeStatusReporter
from services.lc.store import NodeResource, NodeStore, ResourceVersion

log = structlog.get_logger()
#: seconds between two syncs: at least; when GM has answered; at first when it has not
LEAST_S, PERIOD_S, UNANSWERED_S = 0.5, 300.0, 10.0
MAX_UID = 64
#: seconds between two looks at the store: a fault is to be named within 15 s
STORE_S = 5.0
#: seconds that the first sync waits where another store's presence was found: if its LC lives, it takes the connection
#: back within that time, and this one has started nothing that is the other's
STRANGER_S = 2.0


class InsertDecision(Enum):
    """What to do with an insert."""

    STORE = auto()
    #: another uid of the same name: the old one is buried for good, and its workers belong to nobody
    REPLACE = auto()
    #: held already: acknowledge it again, change nothing
    SAME = auto()
    #: overtaken by a newer generation
    STALE = auto()
    #: overtaken by a delete
    BURIED = auto()


class DeleteDecision(Enum):
    """What to do with a delete."""

    DROP = auto()
    #: nothing of that name is held: acknowledge it again
    ABSENT = auto()
    #: a resource of the same name but another uid is held: it stays
    FOREIGN = auto()


def on_insert(held: ResourceVersion | None, new: ResourceVersion, buried: int | None) -> InsertDecision:
    """Decide on an insert; the same one twice changes nothing.

    Order is the generation and the uid, never arrival. ``buried`` is the generation on the tombstone of the new uid,
    None without one: up to that this node was told to forget it, and what comes later with no higher generation is a
    message that was overtaken. GM names the last generation of a resource that is deleted, and one less where the
    resource only has no place on this node: that one may come back.
    """
    if buried is not None and new.generation <= buried:
        return InsertDecision.BURIED
    if held is None:
        return InsertDecision.STORE
    if held.uid != new.uid:
        return InsertDecision.REPLACE
    if new.generation == held.generation:
        return InsertDecision.SAME
    return InsertDecision.STORE if new.generation > held.generation else InsertDecision.STALE


def on_delete(held: ResourceVersion | None, uid: str) -> DeleteDecision:
    """Decide on a delete. The uid gets its tombstone in every case."""
    if held is None:
        return DeleteDecision.ABSENT
    return DeleteDecision.DROP if held.uid == uid else DeleteDecision.FOREIGN


class GmChannel:
    """The node's end of the channel. ``changed`` is called when the node holds something else than before."""

    def __init__(
        self,
        node: str,
        bus: Bus,
        *,
        labels: Mapping[str, str],
        store: NodeStore,
        reporter: NodeStatusReporter,
        changed: Callable[[], None],
    ) -> None:
        self._node = node
        self._bus = bus
        self._store = store
        self._reporter = reporter
        self._changed = changed
        self._gm_online = False
        self._wanted = asyncio.Event()
        self.presence = OwnPresence(node, bus, labels=labels, store=store, overwritten=self._wanted.set)
        #: what asks for a sync once more while something is missing
        self._asking: asyncio.TimerHandle | None = None
        self._unanswered = False
        #: whether something was dropped since the last sync was made: GM may answer what is not so any more
        self._dropped = False
        self._number = 0
        #: syncs sent; whether GM has answered one on this connection, and when it last answered any
        self.syncs = 0
        self.synced = False
        self._synced_at: float | None = None

    @property
    def sync_age_s(self) -> float | None:
        """Seconds since GM answered a sync, None if it never has."""
        return None if self._synced_at is None else asyncio.get_running_loop().time() - self._synced_at

    def announce(self) -> Announcement:
        """Birth and will of the next connection, with an epoch of its own that our reports carry, too."""
        announcement = self.presence.announce()
        self._reporter.epoch = self.presence.epoch
        return announcement

    async def start(self) -> None:
        """Subscribe."""
        self._bus.on_connect(self._connected)
        # first of all: GM's presence makes us sync, and by then we know whether somebody else was here
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
            self.lack(lacking=False)

    async def _sync_always(self) -> None:
        unanswered = 1
        while True:
            patience = exponential(unanswered, UNANSWERED_S, PERIOD_S)
            again = self._unanswered and not await _set_within(self._wanted, patience) and self._unanswered
            if not again:
                await _set_within(self._wanted, PERIOD_S)
            unanswered = unanswered + 1 if again else 1
            self._wanted.clear()
            if self.presence.strange:
                self.presence.strange = False
                await asyncio.sleep(STRANGER_S)
            with contextlib.suppress(sqlite3.Error):  # still no room
                self._store.settle()
            if self._bus.connected:
                await self.presence.publish_again()
                await self._sync()
            await asyncio.sleep(LEAST_S)

    async def watch_store(self) -> None:
        """Look whether the store is whole and can be written, and name it in our presence if not, until cancelled."""
        while True:
            await asyncio.sleep(STORE_S)
            self.presence.name_trouble(self._store.trouble())
            if self._bus.connected:
                await self._report_quarantine()

    async def _report_quarantine(self) -> None:
        if self._store.put_aside:
            await self._bus.dead_letter(Packet(f"file:{self._store.path}", b""), self._store.put_aside)
            self._store.put_aside = ""

    def lack(self, *, lacking: bool) -> None:
        """Say whether something held here names what is not: GM may think that it is, so ask, less and less often."""
        if not lacking and self._asking:
            self._asking.cancel()
            self._asking = None
        elif lacking and not self._asking:
            self._ask_later(1)

    def _ask_later(self, times: int) -> None:
        pause = exponential(times, UNANSWERED_S, PERIOD_S)
        self._asking = asyncio.get_running_loop().call_later(pause, self._ask, times)

    def _ask(self, times: int) -> None:
        self._wanted.set()
        self._ask_later(times + 1)

    # --- what GM says ------------------------------------------------------------------------------------------

    async def _on_insert(self, delivery: Delivery[ResourceBody]) -> None:
        key, stamp = _key(delivery.names), self._followed(delivery)
        if stamp is None or self._overtaken(key, stamp):
            return
        identity = _identity(delivery.body, delivery.names)
        held = self._store.held.get(key)
        what = on_insert(held.identity if held else None, identity, self._store.buried(identity.uid))
        log.info("insert", key=str(key), uid=identity.uid, generation=identity.generation, decision=what.name)
        if what in {InsertDecision.STORE, InsertDecision.REPLACE}:
            self._store.put(NodeResource(key, identity.uid, identity.generation, delivery.body), stamp)
            self._changed()
        elif what is InsertDecision.SAME:
            self._reporter.again(key)

    async def _on_delete(self, delivery: Delivery[Delete]) -> None:
        key, stamp = _key(delivery.names), self._followed(delivery)
        if stamp is None or self._overtaken(key, stamp):
            return
        gone = ResourceVersion(delivery.body.uid, _bounded(delivery.body.generation, "generation"))
        held = self._store.held.get(key)
        what = on_delete(held.identity if held else None, gone.uid)
        log.info("delete", key=str(key), uid=gone.uid, decision=what.name)
        self._store.bury(gone, key, stamp)
        if what is DeleteDecision.DROP:
            self._store.drop(key)
            self._dropped = True
            self._changed()
        elif what is DeleteDecision.ABSENT:
            self._store.owe_farewell(key)
            self._changed()
        else:
            self._reporter.again(key)

    async def _on_synced(self, delivery: Delivery[Synced]) -> None:
        if self._followed(delivery) is None:
            return
        self._unanswered, self.synced = False, True
        self._synced_at = asyncio.get_running_loop().time()
        if self._dropped:
            self._wanted.set()
        if not self._store.complete:
            self._store.complete = True
            self._changed()

    async def _on_gm(self, delivery: Delivery[GmPresence]) -> None:
        gm, seen = delivery.body, self._store.gm_epoch
        if check_epoch(gm.epoch) < seen:
            log.warning("presence of an older GM ignored", epoch=gm.epoch, seen=seen)
            if gm.online:
                self._wanted.set()  # our sync says what we follow: a GM whose store was lost counts on from there
            return
        appeared = gm.online and (not self._gm_online or gm.epoch > seen)
        self._gm_online = gm.online
        self._store.saw_gm_epoch(gm.epoch)
        if appeared:
            self._reporter.resend()
            self._wanted.set()

    def _followed(self, delivery: Delivery[Any]) -> SequenceNumber | None:
        """Return the stamp of a message of a GM that this node may follow, None of any other.

        Raises InvalidFieldError without an epoch, and of one that no clock explains.
        """
        stamp = SequenceNumber.read({"epoch": "", **delivery.properties})
        if check_epoch(stamp.epoch) < self._store.gm_epoch:
            log.warning("message of an older GM ignored", topic=delivery.address.text, epoch=stamp.epoch)
            return None
        self._store.saw_gm_epoch(stamp.epoch)
        return stamp

    def _overtaken(self, key: Key, stamp: SequenceNumber) -> bool:
        overtaken = self._store.said.later(key, stamp)
        if overtaken:
            log.info("late message ignored", key=str(key), number=stamp.number)
        return overtaken

    # --- what the node says ------------------------------------------------------------------------------------

    async def _connected(self) -> None:
        await self._report_quarantine()
        self.synced = False
        self._gm_online = False  # if it is there, its retained presence comes with the subscription
        self._reporter.resend()
        self._wanted.set()

    async def _sync(self) -> None:
        holds = [
            Held(plural=h.key.plural, namespace=h.key.namespace, name=h.key.name, uid=h.uid, generation=h.generation)
            for h in self._store.held.values()
        ]
        self._unanswered, self._dropped = True, False
        self._number += 1
        try:
            sync = Sync(epoch=self.presence.epoch, gm_epoch=self._store.gm_epoch, holds=holds)
            stamp = SequenceNumber(self.presence.epoch, self._number)
            await self._bus.publish(topics.SYNC.at(node=self._node), sync, properties=stamp.properties)
        except BusError as error:
            log.info("sync not sent", error=str(error))
        else:
            self.syncs += 1


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await event.wait()
    return False


def _key(names: Mapping[str, str]) -> Key:
    return Key(names["plural"], names["ns"], names["name"])


def _identity(body: ResourceBody, names: Mapping[str, str]) -> ResourceVersion:
    """Return the identity of a resource whose body agrees with its topic; raise InvalidFieldError of any other."""
    api_version, word = body.get("apiVersion"), body.get("kind")
    if not any((k.api_version, k.kind, k.plural) == (api_version, word, names["plural"]) for k in kinds()):
        raise InvalidFieldError("kind", word, f"send a known kind whose plural is {names['plural']}")
    metadata = convert(body.get("metadata"), ObjectMeta, "metadata")
    for field, given, wanted in (("namespace", metadata.namespace, "ns"), ("name", metadata.name, "name")):
        if given != names[wanted]:
            raise InvalidFieldError(f"metadata.{field}", given, f"the topic is of {names[wanted]}")
    if not 0 < len(metadata.uid) <= MAX_UID:
        raise InvalidFieldError("metadata.uid", metadata.uid, f"send 1 to {MAX_UID} characters")
    return ResourceVersion(metadata.uid, _bounded(metadata.generation, "metadata.generation"))


def _bounded(value: int, field: str) -> int:
    if value > MAX_INTEGER:
        raise InvalidFieldError(field, value, f"send at most {MAX_INTEGER}")
    return value


class OwnPresence:
    """The node's presence on the broker: birth and will of each connection, and its repair when overwritten.

    A second LC of this name or a late will of ours would hide this node. So the node subscribes to its own presence.
    ``overwritten`` is called when ``publish_again`` has something to publish.
    """

    def __init__(
        self, node: str, bus: Bus, *, labels: Mapping[str, str], store: NodeStore, overwritten: Callable[[], None]
    ) -> None:
        #: where the controller's health and metrics are
        self.http = ""
        #: that of the latest connection
        self.epoch = 0
        #: whether another store's presence was found when we came
        self.strange = False
        self._node = node
        self._labels = dict(labels)
        self._bus = bus
        self._store = store
        self._overwritten = overwritten
        #: the epoch of a birth of ours that came back from the broker
        self._confirmed, self._confirmed_at = 0, 0.0
        #: whether our birth has to go out once more
        self._again = False
        self._trouble = ""

    @property
    def alone(self) -> bool:
        """Whether no other LC has taken our name for a while: then further connections of ours are nobody else's."""
        now = asyncio.get_running_loop().time()
        return self._bus.connected and self._confirmed == self.epoch and now - self._confirmed_at >= STRANGER_S

    def announce(self) -> Announcement:
        """Birth and will of the next connection, with an epoch of its own."""
        self.epoch = self._store.next_presence_epoch()
        will = Presence(node=self._node, epoch=self.epoch, online=False, store=self._store.identity)
        return Announcement(self._birth(), self._packet(will))

    def name_trouble(self, trouble: str) -> None:
        """Publish what an operator has to do something about, if it is another than before."""
        if trouble != self._trouble:
            self._trouble = trouble
            self._restore_birth()

    async def start(self) -> None:
        """Subscribe."""
        await self._bus.subscribe(topics.PRESENCE.filter(node=self._node), self._on_presence, cleared=self._on_cleared)

    async def publish_again(self) -> None:
        """Send our birth once more where something else has taken its place."""
        if self._again:
            self._again = False
            try:
                await self._bus.send(self._birth())
            except BusError as error:
                log.info("birth message not sent", error=str(error))

    async def _on_presence(self, delivery: Delivery[Presence]) -> None:
        """Watch what stands under our name: our birth should, and nobody else's word.

        What the broker kept (retained) came before our birth, which is on its way. Of another store it proves that
        another LC goes by our name, unless we come for the first time: then it may be all that is left of an earlier
        one. A will of an earlier connection that comes late would hide us from whoever asks the broker.
        """
        presence, ours = delivery.body, delivery.body.store == self._store.identity
        if ours and presence.online and presence.epoch == self.epoch:
            if self._confirmed != self.epoch:
                self._confirmed, self._confirmed_at = self.epoch, asyncio.get_running_loop().time()
            return
        if not ours and self._confirmed:
            log.error("node name used twice", node=self._node, its_epoch=presence.epoch)
            self._bus.rival()
        elif not ours:
            self.strange = True
        if not delivery.packet.retain:
            self._restore_birth()

    async def _on_cleared(self, _: Mapping[str, str]) -> None:
        self._restore_birth()

    def _restore_birth(self) -> None:
        if self._confirmed == self.epoch:
            self._again = True
            self._overwritten()

    def _birth(self) -> Packet:
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
        )
        return self._packet(birth)

    def _packet(self, presence: Presence) -> Packet:
        payload = codec.encode(topics.PRESENCE, presence)
        return Packet(topics.PRESENCE.at(node=self._node).text, payload, qos=1, retain=True)
