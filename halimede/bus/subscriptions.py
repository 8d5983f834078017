"""One subscription's bounded queue, and the task that empties it: written once for all adapters.

A message is acknowledged after its handler, never before. Each subscription is handled in order and by itself, so
acknowledgements of one connection may leave in another order than the messages came (MQTT 4.6 asks clients to keep
it; Mosquitto and EMQX look at the packet identifier alone). Holding a fast subscription's acknowledgements back for
a slow one would block both.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace

import structlog

from halimede.bus.held import Ticket
from halimede.bus.message import BusStats, Packet, Receive, ReceiveNow
from halimede.bus.packets import matches, split_shared

log = structlog.get_logger()


class Subscription:
    """Queue and pump of one filter. QoS 0 is dropped when it is full, oldest first; QoS 1 never is.

    QoS 1 needs no bound here: the connection's receive maximum is one, since the broker sends no more than that
    before it gets acknowledgements. (Mosquitto 2.0.11 keeps to it only until the first one, or where it is 1; then what
    it queues for a client, ``max_queued_messages``, is the bound.)

    With a ``limit`` of 0 there is no queue: ``receive`` is a plain function, called as a message comes.

    ``later``: the receiver acknowledges each message by itself, with the packet's ``done``. ``asked``: the broker is to
    be asked for it; otherwise it is handled as it comes, because an earlier client of the session has asked.
    """

    def __init__(
        self,
        filter_: str,
        qos: int,
        receive: Receive | ReceiveNow,
        limit: int,
        stats: BusStats,
        *,
        later: bool = False,
        asked: bool = True,
    ) -> None:
        self.filter = filter_
        self.qos = qos
        self.asked = asked
        self._later = later
        self._group, plain = split_shared(filter_)
        self._levels = plain.split("/")
        self._receive = receive
        self._limit = limit
        self.at_once = not limit
        self._stats = stats
        self._waiting: deque[tuple[Packet, Ticket | None]] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    def takes(self, topic: list[str]) -> bool:
        """Whether a topic, given as its levels, belongs to this subscription."""
        return matches(self._levels, topic)

    def offer(self, packet: Packet, acknowledge: Ticket | None) -> None:
        """Queue a message that has arrived, or hand it over at once."""
        if self.at_once:
            self.hand_over(packet)
            if acknowledge:
                acknowledge()
            return
        if len(self._waiting) >= self._limit and not self._make_room() and acknowledge is None:
            self._stats.dropped += 1
            return
        self._waiting.append((packet, acknowledge))
        self._changed.set()

    def disown(self) -> None:
        """The connection is gone: what waits here is still handled, but nobody expects an acknowledgement."""
        self._waiting = deque((packet, None) for packet, _ in self._waiting)

    def close(self) -> None:
        """Drop what waits, and end ``pump`` once the handler at work has returned.

        Messages of a shared filter are left unacknowledged, so that a broker that can hand them to another member
        does; those of a plain one would only take up the connection's window for ever.
        """
        self._closed = True
        for _, acknowledge in self._waiting:
            self._stats.dropped += 1
            if acknowledge and not self._group:
                acknowledge()
        self._waiting.clear()
        self._changed.set()

    async def pump(self) -> None:
        """Hand over message after message until closed or cancelled."""
        while not self._closed:
            if not self._waiting:
                self._changed.clear()
                await self._changed.wait()
                continue
            packet, acknowledge = self._waiting.popleft()
            later = self._later
            if later and acknowledge:
                packet = replace(packet, done=acknowledge)
            try:
                await self._receive(packet)  # type: ignore[misc]  # it has a queue
            except Exception:
                self._stats.failed_handlers += 1
                log.exception("receiver failed", topic=packet.topic)
                later = False
            if acknowledge and not later:
                acknowledge()

    def hand_over(self, packet: Packet) -> None:
        """Have a message handled now, of a subscription without a queue."""
        try:
            self._receive(packet)
        except Exception:
            self._stats.failed_handlers += 1
            log.exception("receiver failed", topic=packet.topic)

    def _make_room(self) -> bool:
        """Drop the oldest message that nobody expects an acknowledgement for; return whether there was one."""
        for index, (_, acknowledge) in enumerate(self._waiting):
            if acknowledge is None:
                del self._waiting[index]
                self._stats.dropped += 1
                return True
        return False
