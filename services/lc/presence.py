"""The node's presence on the broker: birth and will of each connection, and protection against overwriting.

Two LCs of one name would take the connection from one another for ever, and a late will of ours would hide us from
whoever asks the broker. So the node listens to its own presence, and says its birth again where it was overwritten.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping

import structlog

import halimede
from halimede import codec, topics
from halimede.bus.message import Announcement, Delivery, Packet
from halimede.bus.port import Bus
from halimede.errors import BusError
from halimede.messages import Presence
from services.lc.store.database import NodeStore

log = structlog.get_logger()

#: seconds that the first sync waits where another store's presence was found: if its LC lives, it takes the connection
#: back within that time, and this one has started nothing that is the other's
STRANGER_S = 2.0


class OwnPresence:
    """The retained presence of this node. ``overwritten`` is called when ``say_again`` has something to publish."""

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
        self._birth = Packet("", b"")

    @property
    def alone(self) -> bool:
        """Whether no other LC has taken our name for a while: then further connections of ours are nobody else's."""
        now = asyncio.get_running_loop().time()
        return self._bus.connected and self._confirmed == self.epoch and now - self._confirmed_at >= STRANGER_S

    def announce(self) -> Announcement:
        """Birth and will of the next connection, with an epoch of its own."""
        self.epoch = self._store.next_presence_epoch()
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
        )
        will = Presence(node=self._node, epoch=self.epoch, online=False, store=self._store.identity)
        self._birth = self._packet(birth)
        return Announcement(self._birth, self._packet(will))

    async def start(self) -> None:
        """Subscribe."""
        await self._bus.subscribe(topics.PRESENCE.filter(node=self._node), self._on_presence, cleared=self._on_cleared)

    async def say_again(self) -> None:
        """Send our birth once more where something else has taken its place."""
        if self._again:
            self._again = False
            try:
                await self._bus.send(self._birth)
            except BusError as error:
                log.info("birth not sent", error=str(error))

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
            log.error("another local controller goes by our name", node=self._node, its_epoch=presence.epoch)
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

    def _packet(self, presence: Presence) -> Packet:
        payload = codec.encode(topics.PRESENCE, presence)
        return Packet(topics.PRESENCE.at(node=self._node).text, payload, qos=1, retain=True)
