"""The channel to GM: what it sends to this node is checked, decided on and stored; what the node holds is told to it.

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
from collections.abc import Callable, Mapping
from typing import Any

import structlog

import halimede
from halimede import codec, topics
from halimede.api import kinds
from halimede.api.base import ObjectMeta, convert
from halimede.bus.port import Announcement, Bus, Delivery, Packet
from halimede.errors import BusError, InvalidFieldError
from halimede.messages import Delete, GmPresence, Held, Presence, ResourceBody, Sync, Synced
from halimede.names import Key
from services.lc import decide
from services.lc.decide import MAX_INTEGER, Identity
from services.lc.report import Reporter
from services.lc.store import Held as HeldHere
from services.lc.store import Store

log = structlog.get_logger()

#: seconds between two syncs: at least; when GM has answered; at first when it has not
LEAST_S, PERIOD_S, UNANSWERED_S = 0.5, 300.0, 10.0
MAX_UID = 64


class Channel:
    """The node's end of the channel. ``changed`` is called when the node holds something else than before."""

    def __init__(
        self,
        node: str,
        bus: Bus,
        *,
        labels: Mapping[str, str],
        store: Store,
        reporter: Reporter,
        changed: Callable[[], None],
    ) -> None:
        self._node = node
        self._labels = dict(labels)
        self._bus = bus
        self._store = store
        self._reporter = reporter
        self._changed = changed
        self._epoch = 0
        self._gm_online = False
        self._wanted = asyncio.Event()
        self._unanswered = False

    def announce(self) -> Announcement:
        """Birth and will of the next connection, with an epoch of its own."""
        self._epoch = self._store.next_presence_epoch()
        birth = Presence(
            node=self._node,
            epoch=self._epoch,
            online=True,
            version=halimede.__version__,
            cpus=os.cpu_count() or 0,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            labels=self._labels,
        )
        will = Presence(node=self._node, epoch=self._epoch, online=False)
        return Announcement(self._packet(birth), self._packet(will))

    async def start(self) -> None:
        """Subscribe."""
        self._bus.on_connect(self._connected)
        await self._bus.subscribe(topics.INSERT.filter(node=self._node), self._on_insert)
        await self._bus.subscribe(topics.DELETE.filter(node=self._node), self._on_delete)
        await self._bus.subscribe(topics.SYNCED.filter(node=self._node), self._on_synced)
        await self._bus.subscribe(topics.GM_PRESENCE.filter(), self._on_gm)

    async def run(self) -> None:
        """Send syncs when they are due, until cancelled."""
        patience = UNANSWERED_S
        while True:
            again = self._unanswered and not await _set_within(self._wanted, patience) and self._unanswered
            if not again:
                await _set_within(self._wanted, PERIOD_S)
            patience = min(patience * 2, PERIOD_S) if again else UNANSWERED_S
            self._wanted.clear()
            if self._bus.connected:
                await self._sync()
            await asyncio.sleep(LEAST_S)

    # --- what GM says ------------------------------------------------------------------------------------------

    async def _on_insert(self, delivery: Delivery[ResourceBody]) -> None:
        if not self._followed(delivery):
            return
        key, identity = _key(delivery.names), _identity(delivery.body, delivery.names)
        held = self._store.held.get(key)
        what = decide.on_insert(held.identity if held else None, identity, self._store.buried(identity.uid))
        log.info("insert", key=str(key), uid=identity.uid, generation=identity.generation, decision=what.name)
        if what in {decide.Insert.STORE, decide.Insert.REPLACE}:
            self._store.put(HeldHere(key, identity.uid, identity.generation, delivery.body))
            self._changed()
        elif what is decide.Insert.SAME:
            self._reporter.again(key)

    async def _on_delete(self, delivery: Delivery[Delete]) -> None:
        if not self._followed(delivery):
            return
        key, gone = _key(delivery.names), Identity(delivery.body.uid, _bounded(delivery.body.generation, "generation"))
        held = self._store.held.get(key)
        what = decide.on_delete(held.identity if held else None, gone.uid)
        log.info("delete", key=str(key), uid=gone.uid, decision=what.name)
        self._store.bury(gone)
        if what is decide.Delete.DROP:
            self._store.drop(key)
            self._changed()
        elif what is decide.Delete.ABSENT:
            self._store.owe_farewell(key)
            self._changed()
        else:
            self._reporter.again(key)

    async def _on_synced(self, delivery: Delivery[Synced]) -> None:
        if not self._followed(delivery):
            return
        self._unanswered = False
        if not self._store.complete:
            self._store.complete = True
            self._changed()

    async def _on_gm(self, delivery: Delivery[GmPresence]) -> None:
        gm, seen = delivery.body, self._store.gm_epoch
        if _bounded(gm.epoch, "epoch") < seen:
            log.warning("presence of an older GM ignored", epoch=gm.epoch, seen=seen)
            return
        appeared = gm.online and (not self._gm_online or gm.epoch > seen)
        self._gm_online = gm.online
        self._store.saw_gm_epoch(gm.epoch)
        if appeared:
            self._reporter.resend()
            self._wanted.set()

    def _followed(self, delivery: Delivery[Any]) -> bool:
        """Whether a message is of a GM that this node may follow. Raises InvalidFieldError without an epoch."""
        text = delivery.properties.get("epoch", "")
        if not text.isascii() or not text.isdigit() or len(text) > len(str(MAX_INTEGER)):
            raise InvalidFieldError("epoch", text, "send GM's epoch as a user property")
        epoch = _bounded(int(text), "epoch")
        if epoch < self._store.gm_epoch:
            log.warning("message of an older GM ignored", topic=delivery.address.text, epoch=epoch)
            return False
        self._store.saw_gm_epoch(epoch)
        return True

    # --- what the node says ------------------------------------------------------------------------------------

    async def _connected(self) -> None:
        self._gm_online = False  # if it is there, its retained presence comes with the subscription
        self._reporter.resend()
        self._wanted.set()

    async def _sync(self) -> None:
        holds = [
            Held(plural=h.key.plural, namespace=h.key.namespace, name=h.key.name, uid=h.uid, generation=h.generation)
            for h in self._store.held.values()
        ]
        self._unanswered = True
        try:
            await self._bus.publish(topics.SYNC.at(node=self._node), Sync(epoch=self._epoch, holds=holds))
        except BusError as error:
            log.info("sync not sent", error=str(error))

    def _packet(self, presence: Presence) -> Packet:
        payload = codec.encode(topics.PRESENCE, presence)
        return Packet(topics.PRESENCE.at(node=self._node).text, payload, qos=1, retain=True)


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await event.wait()
    return False


def _key(names: Mapping[str, str]) -> Key:
    return Key(names["plural"], names["ns"], names["name"])


def _identity(body: ResourceBody, names: Mapping[str, str]) -> Identity:
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
    return Identity(metadata.uid, _bounded(metadata.generation, "metadata.generation"))


def _bounded(value: int, field: str) -> int:
    if value > MAX_INTEGER:
        raise InvalidFieldError(field, value, f"send at most {MAX_INTEGER}")
    return value
