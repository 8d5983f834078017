"""One client of the memory broker: its session, and its connection with the active faults."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from halimede.bus.message import SUCCESS, Packet
from halimede.bus.topic_filter import split_shared
from halimede.bus.transport import CLOSE_TIMEOUT, Deliver, Ended, PendingAck, Transport

if TYPE_CHECKING:
    from halimede.bus.memory import MemoryBroker

#: publishes that a client may have unacknowledged
WINDOW = 1000
#: text of an error of a fault
LOST = "the message or its acknowledgement was lost"


@dataclass(frozen=True, slots=True)
class RetainedMessage:
    """A packet that the broker keeps, retained or queued, with the loop time at which it expires (infinite: never)."""

    packet: Packet
    expires: float

    def packet_at(self, now: float) -> Packet | None:
        """Return the packet with its remaining lifetime, None if it has expired."""
        if now >= self.expires:
            return None
        return replace(self.packet, expiry_s=math.ceil(self.expires - now)) if self.packet.expiry_s else self.packet


def store(packet: Packet) -> RetainedMessage:
    """Return a packet as a retained or queued message that expires as the packet says, counted from now."""
    now = asyncio.get_running_loop().time()
    return RetainedMessage(packet, now + packet.expiry_s if packet.expiry_s else math.inf)


@dataclass(frozen=True, slots=True)
class SessionSubscription:
    """One subscription of one client: share ``group`` (empty: none), ``levels`` of the filter, and granted ``qos``."""

    group: str
    levels: list[str]
    qos: int

    @classmethod
    def parse(cls, filter_: str, qos: int) -> SessionSubscription:
        """Return the subscription to a filter, which may begin with ``$share/<group>/``."""
        group, plain = split_shared(filter_)
        return cls(group, plain.split("/"), qos)


#: sends a packet with its packet identifier to the client
Transmit = Callable[[int, Packet], None]


class Session:
    """One client at the broker: subscriptions by filter, unacknowledged messages, at most ``max_queued`` queued ones.

    A session outlives its connection for ``keep_s`` seconds (until the loop time ``expires``), and the next client with
    that client id continues it: unacknowledged messages are sent again, flagged and with their old packet identifiers,
    before queued ones.
    """

    keep_s: int
    expires: float
    _receive_maximum: int

    def __init__(self, max_queued: int) -> None:
        #: subscriptions by filter
        self.filters: dict[str, SessionSubscription] = {}
        #: messages dropped because the queue was full
        self.overflowed = 0
        #: messages in flight, by packet identifier
        self.unacknowledged: dict[int, Packet] = {}
        self._max_queued = max_queued
        self._transmit: Transmit | None = None
        self._keys = itertools.count(1)
        #: messages that wait for a slot
        self.waiting: deque[RetainedMessage] = deque()

    def connect(self, transmit: Transmit, receive_maximum: int, keep_s: int) -> None:
        """Continue with a client, to which ``transmit`` sends packets, at most ``receive_maximum`` unacknowledged.

        ``keep_s``: seconds for which the session outlives this connection.
        """
        self._transmit, self._receive_maximum, self.keep_s = transmit, receive_maximum, keep_s
        for key, packet in list(self.unacknowledged.items()):
            transmit(key, replace(packet, duplicate=True))
        self._next()

    def disconnect(self) -> None:
        """Queue messages from now on, for the next connection."""
        self._transmit = None
        self.expires = asyncio.get_running_loop().time() + self.keep_s

    def push(self, packet: Packet) -> None:
        """Send a QoS 1 message as soon as the client can receive it; drop it if the queue is full."""
        if self._transmit and len(self.unacknowledged) < self._receive_maximum:
            self._send(packet)
        elif len(self.waiting) < self._max_queued:
            self.waiting.append(store(packet))
        else:
            self.overflowed += 1

    def acknowledge(self, key: int) -> None:
        """Record the acknowledgement of a packet identifier: a queued message gets its slot."""
        self.unacknowledged.pop(key, None)
        self._next()

    def _next(self) -> None:
        """Send queued messages while there are free slots."""
        while self.waiting and self._transmit and len(self.unacknowledged) < self._receive_maximum:
            packet = self.waiting.popleft().packet_at(asyncio.get_running_loop().time())
            if packet:
                self._send(packet)

    def _send(self, packet: Packet) -> None:
        """Send a message, which takes a slot."""
        key = next(self._keys)
        self.unacknowledged[key] = packet
        if self._transmit:
            self._transmit(key, packet)


class MemoryTransport(Transport):
    """One client's connection, a ``Transport``, which describes the methods.

    ``MemoryBroker.join`` gives it its session. ``will``: published when the connection ends; None: there is none.
    ``deliver``: gets the received messages.
    """

    session: Session

    def __init__(
        self, broker: MemoryBroker, client_id: str, will: Packet | None, deliver: Deliver, receive_maximum: int
    ) -> None:
        super().__init__(broker.max_packet, WINDOW)
        self.client_id = client_id
        self.will = will
        self._broker = broker
        self._deliver = deliver
        self._receive_maximum = receive_maximum
        self._up = Wire(broker.faults, broker.chance, self)
        self._down = Wire(broker.faults, broker.chance, self)
        self._keys = itertools.count()

    def begin(self, keep_s: int) -> None:
        """Continue the session, which outlives the connection for ``keep_s`` seconds."""
        self.session.connect(self._transmit, self._receive_maximum, keep_s)

    def publish(self, packet: Packet) -> PendingAck:
        """Send a packet to the broker, with the active faults."""
        key = next(self._keys)
        answer = self._expect(key)
        if len(packet.tail):
            packet = replace(packet, payload=b"".join((packet.payload, packet.tail)), tail=b"")
        if not self._must_lose():
            self._up.carry(partial(self._receive_publish, key, packet, answered=True))
        elif packet.qos == 0:
            self._up.carry(partial(self._answer, key, SUCCESS))
        elif self._broker.chance.random() < 0.5:
            self._up.carry(partial(self._receive_publish, key, packet, answered=False))
        else:
            self._up.carry(partial(self._fail_answer, key, LOST))
        return answer

    def subscribe(self, filter_: str, qos: int) -> PendingAck:
        """Subscribe at the broker, which sends retained messages at once."""
        key = next(self._keys)
        self._up.carry(partial(self._receive_subscribe, key, filter_, qos))
        return self._expect(key)

    def unsubscribe(self, filter_: str) -> PendingAck:
        """Unsubscribe at the broker."""
        key = next(self._keys)
        self._up.carry(partial(self._receive_unsubscribe, key, filter_))
        return self._expect(key)

    async def close(self, *, keep: bool = False) -> None:
        """Disconnect after the messages in flight; the broker publishes the will. Waits at most ``CLOSE_TIMEOUT``.

        ``keep``: the session stays for its lifetime; otherwise it ends.
        """
        self._up.carry(partial(self._broker.leave, self, Ended("closed"), keep=keep))
        await asyncio.wait([self.ended], timeout=CLOSE_TIMEOUT)

    def abort(self, reason: str) -> None:
        """Break the connection: the broker publishes the will."""
        self._broker.leave(self, Ended(reason, explained=True))

    def push(self, packet: Packet, qos: int, *, retained: bool = False) -> None:
        """Pass a message from the broker to this client, at QoS ``qos`` at most."""
        packet = replace(packet, qos=min(packet.qos, qos), retain=retained)
        if packet.qos == 0:
            if not self._must_lose():
                self._down.carry(partial(self._deliver, packet, None, 0))
        else:
            self.session.push(packet)

    def _must_lose(self) -> bool:
        """Whether a fault must lose this message."""
        faults = self._broker.faults
        return faults.must_occur(faults.loss, self._broker.chance)

    def _receive_publish(self, key: int, packet: Packet, *, answered: bool) -> None:
        """Route a packet that has reached the broker. ``answered``: its acknowledgement is not lost.

        ``key``: of its pending answer, as in ``_receive_subscribe`` and ``_receive_unsubscribe``.
        """
        reason = self._broker.route(packet)
        if answered:
            self._down.carry(partial(self._answer, key, reason))
        else:
            self._fail_answer(key, LOST)

    def _receive_subscribe(self, key: int, filter_: str, qos: int) -> None:
        """Handle a subscription that has reached the broker."""
        entry = self.session.filters[filter_] = SessionSubscription.parse(filter_, qos)
        self._down.carry(partial(self._answer, key, qos))
        self._broker.replay(self, entry)

    def _receive_unsubscribe(self, key: int, filter_: str) -> None:
        """Handle the end of a subscription that has reached the broker."""
        self.session.filters.pop(filter_, None)
        self._down.carry(partial(self._answer, key, SUCCESS))

    def _transmit(self, number: int, packet: Packet) -> None:
        """Deliver a QoS 1 message with the packet identifier ``number``; a lost one is delivered again later."""
        if self.ended.done() or number not in self.session.unacknowledged:
            return
        if self._must_lose():
            again = partial(self._transmit, number, replace(packet, duplicate=True))
            asyncio.get_running_loop().call_later(self._broker.faults.redelivery_s, again)
            return
        acknowledge = partial(self._acknowledge, number)
        self._down.carry(partial(self._deliver, packet, acknowledge, number))
        faults = self._broker.faults
        if faults.must_occur(faults.duplicate, self._broker.chance):
            self._down.carry(partial(self._deliver, replace(packet, duplicate=True), acknowledge, number))

    def _acknowledge(self, number: int) -> bool:
        """Acknowledge a message to the broker; return whether the connection still exists."""
        if self.ended.done():
            return False
        self._up.carry(partial(self.session.acknowledge, number))
        return True


@dataclass
class Faults:
    """The active faults: may be changed at any time. Shares are 0..1, times are seconds, one way.

    ``delay_s``: least and most delay. ``loss``, ``duplicate``, ``reorder``: shares of messages; ``reorder_s``: extra
    delay of a reordered one. A lost QoS 0 message is gone. A QoS 1 publish is lost on its way in, or its
    acknowledgement on the way out, with equal probability: both give DisconnectedError. A lost QoS 1 delivery is sent
    again, flagged, after ``redelivery_s``.
    """

    delay_s: tuple[float, float] = (0.0, 0.0)
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    reorder_s: float = 0.05
    redelivery_s: float = 1.0

    def must_occur(self, share: float, chance: random.Random) -> bool:
        """Whether a fault of this share must occur now, drawn from ``chance``. A share of 0 draws no random number."""
        return bool(share) and chance.random() < share


class Wire:
    """One direction of a connection. Keeps the order, except for messages that ``faults.reorder`` delays."""

    def __init__(self, faults: Faults, chance: random.Random, link: Transport) -> None:
        self._faults = faults
        self._chance = chance
        self._link = link
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._armed = False

    def carry(self, arrive: Callable[[], None]) -> None:
        """Call ``arrive`` at the other end, if the connection still exists then."""
        loop, faults = asyncio.get_running_loop(), self._faults
        at = loop.time() + (self._chance.uniform(*faults.delay_s) if faults.delay_s[1] else 0.0)
        if faults.must_occur(faults.reorder, self._chance):
            loop.call_at(at + faults.reorder_s, self._arrive_late, arrive)
            return
        self._waiting.append((at, arrive))
        if not self._armed:
            self._arm()

    def _arrive_late(self, arrive: Callable[[], None]) -> None:
        """Deliver a message out of order, unless the connection has ended."""
        if not self._link.ended.done():
            arrive()

    def _arm(self) -> None:
        """Call ``_deliver_due`` when the first message is due."""
        self._armed = True
        asyncio.get_running_loop().call_at(self._waiting[0][0], self._deliver_due)

    def _deliver_due(self) -> None:
        """Deliver the messages that are due."""
        self._armed = False
        now, first = asyncio.get_running_loop().time(), True
        while self._waiting and (first or self._waiting[0][0] <= now) and not self._link.ended.done():
            first = False
            self._waiting.popleft()[1]()
        if self._waiting and not self._link.ended.done():
            self._arm()
