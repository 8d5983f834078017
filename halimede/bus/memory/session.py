"""What the memory broker keeps of one client: subscriptions, what it has not acknowledged, what waits for it.

A session outlives its connection where the client asked for it, and whoever connects under that client id next goes on
with it: what was not acknowledged is sent again, flagged and under its old packet identifier, before what waited.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from halimede.bus.message import Packet
from halimede.bus.topic_filter import split_shared


@dataclass(frozen=True, slots=True)
class RetainedMessage:
    """A message that the broker keeps, with the loop time at which it expires."""

    packet: Packet
    expires: float

    def left(self, now: float) -> Packet | None:
        """Return the packet with the lifetime that it has left, None once that is over."""
        if now >= self.expires:
            return None
        return replace(self.packet, expiry_s=math.ceil(self.expires - now)) if self.packet.expiry_s else self.packet


def store(packet: Packet) -> RetainedMessage:
    """Keep a packet from now on."""
    now = asyncio.get_running_loop().time()
    return RetainedMessage(packet, now + packet.expiry_s if packet.expiry_s else math.inf)


@dataclass(frozen=True, slots=True)
class SessionSubscription:
    """One subscription of one client."""

    group: str
    levels: list[str]
    qos: int

    @classmethod
    def of(cls, filter_: str, qos: int) -> SessionSubscription:
        """Read a filter."""
        group, plain = split_shared(filter_)
        return cls(group, plain.split("/"), qos)


#: gets a packet identifier and a packet, and sends it to the client
Transmit = Callable[[int, Packet], None]


class Session:
    """One client at the broker, connected or not. ``keep_s``: seconds that it stays without a connection."""

    def __init__(self, max_queued: int) -> None:
        self.filters: dict[str, SessionSubscription] = {}
        self.keep_s = 0
        self.expires = math.inf
        #: messages dropped because the queue was full
        self.overflowed = 0
        #: messages under way, by packet identifier
        self.unacknowledged: dict[int, Packet] = {}
        self._max_queued = max_queued
        self._receive_maximum = 0
        self._transmit: Transmit | None = None
        self._keys = itertools.count(1)
        #: messages that wait for room
        self.waiting: deque[RetainedMessage] = deque()

    def connect(self, transmit: Transmit, receive_maximum: int, keep_s: int) -> None:
        """Go on with a client."""
        self._transmit, self._receive_maximum, self.keep_s = transmit, receive_maximum, keep_s
        for key, packet in list(self.unacknowledged.items()):
            transmit(key, replace(packet, duplicate=True))
        self._next()

    def disconnect(self) -> None:
        """Keep what there is for whoever comes next."""
        self._transmit = None
        self.expires = asyncio.get_running_loop().time() + self.keep_s

    def push(self, packet: Packet) -> None:
        """Send a QoS 1 message, as soon as the client can take it."""
        if self._transmit and len(self.unacknowledged) < self._receive_maximum:
            self._send(packet)
        elif len(self.waiting) < self._max_queued:
            self.waiting.append(store(packet))
        else:
            self.overflowed += 1

    def acknowledged(self, key: int) -> None:
        """Make room for what waits."""
        self.unacknowledged.pop(key, None)
        self._next()

    def _next(self) -> None:
        while self.waiting and self._transmit and len(self.unacknowledged) < self._receive_maximum:
            packet = self.waiting.popleft().left(asyncio.get_running_loop().time())
            if packet:
                self._send(packet)

    def _send(self, packet: Packet) -> None:
        key = next(self._keys)
        self.unacknowledged[key] = packet
        if self._transmit:
            self._transmit(key, packet)
