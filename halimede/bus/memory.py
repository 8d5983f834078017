"""A broker in this process, for tests and simulation: the same behaviour as Mosquitto's, and faults on demand.

It needs nothing but an event loop, so a whole system runs in simulated time. Messages are immutable and shared, not
copied: a simulation of a thousand nodes fits into one process.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections import deque
from dataclasses import dataclass, replace
from functools import partial

from halimede.bus.faults import Faults, Wire
from halimede.bus.link import CLOSE_TIMEOUT, Deliver, Ended, Link
from halimede.bus.linked import LinkedBus
from halimede.bus.packets import matches, split_shared
from halimede.bus.port import NO_SUBSCRIBER, SUCCESS, Announce, Packet
from halimede.errors import DisconnectedError

MAX_PACKET = 16 * 1024 * 1024 + 64 * 1024
#: QoS 1 messages that wait for one client beyond its receive maximum; as in our mosquitto.conf
MAX_QUEUED = 20_000
RECEIVE_MAXIMUM = 1000
WINDOW = 1000
LOST = "the message or its acknowledgement was lost"


@dataclass(frozen=True, slots=True)
class _Stored:
    """A message that the broker keeps, with the loop time at which it expires."""

    packet: Packet
    expires: float

    def left(self, now: float) -> Packet | None:
        """Return the packet with the lifetime that it has left, None once that is over."""
        if now >= self.expires:
            return None
        return replace(self.packet, expiry_s=math.ceil(self.expires - now)) if self.packet.expiry_s else self.packet


def _store(packet: Packet) -> _Stored:
    now = asyncio.get_running_loop().time()
    return _Stored(packet, now + packet.expiry_s if packet.expiry_s else math.inf)


class MemoryBroker:
    """Topics, retained messages, shared subscriptions, wills. ``seed`` makes faults and back-off repeatable.

    Attributes:
        overflowed: messages dropped because a client's queue was full; their publishers saw success.

    """

    def __init__(
        self, faults: Faults | None = None, *, seed: int = 0, max_packet: int = MAX_PACKET, max_queued: int = MAX_QUEUED
    ) -> None:
        self.faults = faults or Faults()
        self.chance = random.Random(seed)  # noqa: S311 - faults, not secrets
        self.max_packet = max_packet
        self.max_queued = max_queued
        self.overflowed = 0
        self.running = True
        self.links: dict[str, MemoryLink] = {}
        self._retained: dict[str, _Stored] = {}
        self._turns: dict[tuple[str, str], int] = {}

    def stop(self) -> None:
        """Die as from ``kill -9``: all clients are disconnected, retained messages and sessions are lost."""
        self.running = False
        links, self.links = list(self.links.values()), {}
        self._retained.clear()
        self._turns.clear()
        for link in links:
            link.end(Ended("the broker is gone"))

    def start(self) -> None:
        """Accept clients again."""
        self.running = True

    def restart(self) -> None:
        """Stop and start: clients find an empty broker as soon as their back-off lets them."""
        self.stop()
        self.start()

    def retained(self, topic: str) -> bytes | None:
        """Return the payload of a retained message, None where there is none."""
        stored = self._retained.get(topic)
        packet = stored.left(asyncio.get_running_loop().time()) if stored else None
        return packet.payload if packet else None

    def join(self, link: MemoryLink) -> None:
        """Take a client in, in place of another one of that id."""
        previous = self.links.get(link.client_id)
        if previous:
            self.leave(previous, Ended("session taken over", taken_over=True))
        self.links[link.client_id] = link

    def leave(self, link: MemoryLink, ended: Ended) -> None:
        """Forget a client and publish its will."""
        if self.links.get(link.client_id) is link:
            del self.links[link.client_id]
            link.end(ended)
            if link.will:
                self.route(link.will)

    def route(self, packet: Packet) -> int:
        """Hand a message to everyone who subscribed; return the reason code for its publisher."""
        if packet.retain and packet.payload:
            self._retained[packet.topic] = _store(packet)
        elif packet.retain:
            self._retained.pop(packet.topic, None)
        levels = packet.topic.split("/")
        heard = False
        groups: dict[tuple[str, str], list[tuple[MemoryLink, int]]] = {}
        for link in self.links.values():
            for filter_, entry in link.filters.items():
                if matches(entry.levels, levels):
                    heard = True
                    if entry.group:
                        groups.setdefault((entry.group, filter_), []).append((link, entry.qos))
                    else:
                        link.push(packet, entry.qos)
        for key, members in groups.items():
            turn = self._turns[key] = self._turns.get(key, -1) + 1
            link, qos = members[turn % len(members)]
            link.push(packet, qos)
        return SUCCESS if heard or packet.qos == 0 else NO_SUBSCRIBER

    def replay(self, link: MemoryLink, entry: _Entry) -> None:
        """Send retained messages to a new subscription, unless it is a shared one."""
        if entry.group:
            return
        now = asyncio.get_running_loop().time()
        for topic, stored in self._retained.items():
            packet = stored.left(now)
            if packet and matches(entry.levels, topic.split("/")):
                link.push(packet, entry.qos, retained=True)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One subscription of one client."""

    group: str
    levels: list[str]
    qos: int


class MemoryLink(Link):
    """One client at the broker: its subscriptions, what it has not acknowledged, and what waits for it."""

    def __init__(
        self, broker: MemoryBroker, client_id: str, will: Packet | None, deliver: Deliver, receive_maximum: int
    ) -> None:
        super().__init__(broker.max_packet, WINDOW)
        self.client_id = client_id
        self.will = will
        self.filters: dict[str, _Entry] = {}
        self._broker = broker
        self._deliver = deliver
        self._receive_maximum = receive_maximum
        self._up = Wire(broker.faults, broker.chance, self)
        self._down = Wire(broker.faults, broker.chance, self)
        self._keys = itertools.count()
        self._unacknowledged: set[int] = set()
        self._queue: deque[_Stored] = deque()

    def publish(self, packet: Packet) -> asyncio.Future[int]:
        """Send a packet to the broker, through whatever faults are on."""
        key = next(self._keys)
        answer = self._expect(key)
        if not self._lost():
            self._up.carry(partial(self._published, key, packet, answered=True))
        elif packet.qos == 0:
            self._up.carry(partial(self._answer, key, SUCCESS))
        elif self._broker.chance.random() < 0.5:
            self._up.carry(partial(self._published, key, packet, answered=False))
        else:
            self._up.carry(partial(self._unanswered, key, LOST))
        return answer

    def subscribe(self, filter_: str, qos: int) -> asyncio.Future[int]:
        """Subscribe at the broker, which sends retained messages at once."""
        key = next(self._keys)
        self._up.carry(partial(self._subscribed, key, filter_, qos))
        return self._expect(key)

    def unsubscribe(self, filter_: str) -> asyncio.Future[int]:
        """Unsubscribe at the broker."""
        key = next(self._keys)
        self._up.carry(partial(self._unsubscribed, key, filter_))
        return self._expect(key)

    async def close(self) -> None:
        """Disconnect behind what is under way."""
        self._up.carry(partial(self._broker.leave, self, Ended("closed")))
        await asyncio.wait([self.ended], timeout=CLOSE_TIMEOUT)

    def abort(self, reason: str) -> None:
        """Break the connection: the broker publishes the will."""
        self._broker.leave(self, Ended(reason))

    def push(self, packet: Packet, qos: int, *, retained: bool = False) -> None:
        """Take a message from the broker for this client."""
        packet = replace(packet, qos=min(packet.qos, qos), retain=retained)
        if packet.qos == 0:
            if not self._lost():
                self._down.carry(partial(self._deliver, packet, None))
        elif len(self._unacknowledged) < self._receive_maximum:
            self._transmit(next(self._keys), packet)
        elif len(self._queue) < self._broker.max_queued:
            self._queue.append(_store(packet))
        else:
            self._broker.overflowed += 1

    def _lost(self) -> bool:
        faults = self._broker.faults
        return faults.happens(faults.loss, self._broker.chance)

    def _published(self, key: int, packet: Packet, *, answered: bool) -> None:
        reason = self._broker.route(packet)
        if answered:
            self._down.carry(partial(self._answer, key, reason))
        else:
            self._unanswered(key, LOST)

    def _subscribed(self, key: int, filter_: str, qos: int) -> None:
        group, plain = split_shared(filter_)
        entry = self.filters[filter_] = _Entry(group, plain.split("/"), qos)
        self._down.carry(partial(self._answer, key, qos))
        self._broker.replay(self, entry)

    def _unsubscribed(self, key: int, filter_: str) -> None:
        self.filters.pop(filter_, None)
        self._down.carry(partial(self._answer, key, SUCCESS))

    def _transmit(self, number: int, packet: Packet) -> None:
        """Deliver a QoS 1 message; it takes a place of the receive maximum until it is acknowledged."""
        self._unacknowledged.add(number)
        if self.ended.done():
            return
        if self._lost():
            again = partial(self._transmit, number, replace(packet, duplicate=True))
            asyncio.get_running_loop().call_later(self._broker.faults.redelivery_s, again)
            return
        acknowledge = partial(self._up.carry, partial(self._acknowledged, number))
        self._down.carry(partial(self._deliver, packet, acknowledge))
        faults = self._broker.faults
        if faults.happens(faults.duplicate, self._broker.chance):
            self._down.carry(partial(self._deliver, replace(packet, duplicate=True), acknowledge))

    def _acknowledged(self, number: int) -> None:
        self._unacknowledged.discard(number)
        while self._queue and len(self._unacknowledged) < self._receive_maximum:
            packet = self._queue.popleft().left(asyncio.get_running_loop().time())
            if packet:
                self._transmit(next(self._keys), packet)


class MemoryBus(LinkedBus):
    """A client of a MemoryBroker. ``cut`` takes its network away until ``heal``."""

    def __init__(
        self,
        client_id: str,
        broker: MemoryBroker,
        announce: Announce | None = None,
        *,
        receive_maximum: int = RECEIVE_MAXIMUM,
        prefix: str = "",
    ) -> None:
        super().__init__(client_id, announce, where="memory", chance=broker.chance, prefix=prefix)
        self._broker = broker
        self._receive_maximum = receive_maximum
        self._cut_off = False

    def cut(self) -> None:
        """Lose the connection: the broker publishes the will, and nothing goes through until ``heal``."""
        self._cut_off = True
        if self._link:
            self._link.abort("the connection is cut")

    def heal(self) -> None:
        """Let the next attempt to connect succeed."""
        self._cut_off = False

    async def _open(self, will: Packet | None, deliver: Deliver) -> Link:
        await asyncio.sleep(self._broker.faults.delay_s[1] * 2)
        if self._cut_off:
            raise DisconnectedError("the connection is cut")
        if not self._broker.running:
            raise DisconnectedError("the broker is not running")
        link = MemoryLink(self._broker, self.client_id, will, deliver, self._receive_maximum)
        self._broker.join(link)
        return link
