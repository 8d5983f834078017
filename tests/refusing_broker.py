"""A broker that grants nothing yet, or has less than others: in front of a real one, on loopback alone.

Some brokers open their port before their access rules are loaded. Until then they accept each client, and answer each
subscription and each publish with "not authorised". Some brokers lack a part of MQTT v5 (``lacks``). This proxy reads
the packets of both directions. It answers those that it refuses itself, and forwards all others, most unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from halimede.bus.topic_filter import split_shared
from tests.listener import Listener
from tests.scripted import read_packet

HOST = "127.0.0.1"
CONNECT, PUBLISH, SUBSCRIBE = 0x10, 0x30, 0x82
NOT_AUTHORISED = 0x87
PUBACK, SUBACK, NO_SHARED, NO_SUBSCRIBER = 0x40, 0x90, 0x9E, 0x10
#: flags of a CONNECT; an option of a subscription: send no retained messages
WILL_FLAG, NO_RETAINED = 0x04, 0x20
#: what the broker can lack: shared subscriptions (as RabbitMQ), retained messages for subscriptions with wildcards (as
#: RabbitMQ), reason code 16 (as FlashMQ and NanoMQ), wills without payload (as NanoMQ)
SHARED, RETAINED_BY_WILDCARD, ABSENCE, EMPTY_WILL = "shared", "retained by wildcard", "reason code 16", "empty will"

#: whether a client's subscription to a filter, or its publish on a topic, is refused
Refuses = Callable[[str, str], bool]


class RefusingBroker(Listener):
    """Forwards ``port`` to the broker at ``target`` between ``async with`` and its end.

    Attributes:
        refuses: what is refused always.
        lacks: see ``SHARED`` and the constants next to it.
        largest: bytes of a packet from which on it is acknowledged and dropped; 0: no limit.
        in_flight: QoS 1 messages to a client before the first is acknowledged; 0: no limit.
        attempts: connections while it accepted none. ``connects``: accepted connections by client id.
        refused: refused packets.

    """

    def __init__(self, target: int) -> None:
        super().__init__()
        self.refuses: Refuses = lambda _client, _topic: False
        self.lacks: frozenset[str] = frozenset()
        self.largest = self.in_flight = 0
        self.connects: dict[str, int] = {}
        self.attempts = self.refused = 0
        self._target = target
        self._open = True
        self._refuse_until = 0.0
        self._writers: set[asyncio.StreamWriter] = set()

    def close(self) -> None:
        """End all connections and accept none, until ``open``."""
        self.cut()

    def cut(self) -> None:
        self._open = False
        for writer in self._writers:
            writer.transport.abort()

    def open(self, refuse_s: float = 0.0) -> None:
        """Accept connections; refuse every subscription and publish of the first ``refuse_s`` seconds."""
        self._open = True
        self._refuse_until = time.monotonic() + refuse_s

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            self.attempts += 1
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                far_reader, far_writer = await asyncio.open_connection(HOST, self._target)
                self._writers.add(far_writer)
                try:
                    deliveries = _Deliveries(self, writer)
                    down = asyncio.create_task(deliveries.forward(far_reader))
                    down.add_done_callback(lambda _: writer.transport.abort())
                    await self._requests(reader, writer, far_writer, deliveries)
                finally:
                    far_writer.close()
                    await asyncio.wait([down], timeout=1)
                    down.cancel()
                    self._writers.discard(far_writer)
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        target: asyncio.StreamWriter,
        deliveries: _Deliveries,
    ) -> None:
        client = ""
        while True:
            first, body, raw = await read_packet(reader)
            if first == CONNECT:
                client = _client_id(body)
                self.connects[client] = self.connects.get(client, 0) + 1
                if EMPTY_WILL in self.lacks and _has_empty_will(body):
                    return
            if first == PUBACK:
                deliveries.acknowledged()
            if first == SUBSCRIBE and RETAINED_BY_WILDCARD in self.lacks and b"+" in body:
                raw = raw[:-1] + bytes([raw[-1] | NO_RETAINED])
            answer = self._answer(client, first, body)
            if answer is not None:
                self.refused += 1
                writer.write(answer)
                continue
            target.write(raw)
            await target.drain()

    def _answer(self, client: str, first: int, body: bytes) -> bytes | None:
        """Return the refusal of a packet (empty for one without an answer), None for a packet to forward."""
        if first == SUBSCRIBE:
            filter_ = _text(body, 3 + body[2])  # its properties are short
            if SHARED in self.lacks and filter_.startswith("$share/"):
                return bytes([SUBACK, 4, *body[:2], 0, NO_SHARED])
            if self._is_refused(client, split_shared(filter_)[1]):
                return bytes([0x90, 4, *body[:2], 0, NOT_AUTHORISED])
        elif first & 0xF0 == PUBLISH:
            topic = _text(body, 0)
            is_dropped = 0 < self.largest <= len(body)
            if is_dropped or self._is_refused(client, topic):
                at = 2 + len(topic.encode())
                reason = 0 if is_dropped else NOT_AUTHORISED
                return bytes([PUBACK, 3, *body[at : at + 2], reason]) if first & 0x06 else b""
        return None

    def _is_refused(self, client: str, topic: str) -> bool:
        return time.monotonic() < self._refuse_until or self.refuses(client, topic)


class _Deliveries:
    """What one client receives: whole packets, so that refusals are never written into the middle of one."""

    def __init__(self, broker: RefusingBroker, writer: asyncio.StreamWriter) -> None:
        self._broker = broker
        self._writer = writer
        self._unacknowledged = 0
        self._held: list[bytes] = []

    async def forward(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                first, body, raw = await read_packet(reader)
                if first == PUBACK and body[2:3] == bytes([NO_SUBSCRIBER]) and ABSENCE in self._broker.lacks:
                    raw = raw[:4] + b"\0" + raw[5:]
                if first & 0xF0 == PUBLISH and first & 0x06 and self._broker.in_flight:
                    self._held.append(raw)
                    self._release()
                else:
                    self._writer.write(raw)
                await self._writer.drain()

    def acknowledged(self) -> None:
        self._unacknowledged -= 1
        self._release()

    def _release(self) -> None:
        while self._held and self._unacknowledged < self._broker.in_flight:
            self._unacknowledged += 1
            self._writer.write(self._held.pop(0))


def _has_empty_will(body: bytes) -> bool:
    """Return whether a CONNECT has a will without payload."""
    at = 2 + int.from_bytes(body[:2]) + 1
    flags = body[at]
    if not flags & WILL_FLAG:
        return False
    at += 3
    at += 1 + body[at]  # properties, which are short
    at += 2 + int.from_bytes(body[at : at + 2])  # client id
    at += 1 + body[at]  # properties of the will
    at += 2 + int.from_bytes(body[at : at + 2])  # its topic
    return body[at : at + 2] == b"\0\0"


def _text(body: bytes, at: int) -> str:
    size = int.from_bytes(body[at : at + 2])
    return body[at + 2 : at + 2 + size].decode()


def _client_id(body: bytes) -> str:
    """Return the client id of a CONNECT: after protocol name, version, flags, keepalive, and short properties."""
    at = 2 + int.from_bytes(body[:2]) + 4
    return _text(body, at + 1 + body[at])
