"""A broker that misbehaves: it speaks just enough MQTT v5 to be believed, and then does what a test tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
CONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT = 0x10, 0x30, 0x82, 0xA2, 0xC0, 0xE0
WELCOME, PONG = b"\x20\x03\x00\x00\x00", b"\xd0\x00"


def length(size: int) -> bytes:
    """Return a length as packets begin with it."""
    out = bytearray()
    while True:
        size, low = divmod(size, 128)
        out.append(low | (0x80 if size else 0))
        if not size:
            return bytes(out)


def message(topic: str, payload: bytes, announced: int | None = None) -> bytes:
    """Return a PUBLISH at QoS 0; ``announced`` bytes of payload are what its length says."""
    head = len(topic).to_bytes(2) + topic.encode() + b"\x00"
    return bytes([PUBLISH]) + length(len(head) + (len(payload) if announced is None else announced)) + head + payload


def goodbye(reason: int) -> bytes:
    """Return a DISCONNECT."""
    return bytes([DISCONNECT, 1, reason])


class HostileBroker:
    """Takes every client, and answers as long as it is told to.

    Attributes:
        accepted: connections so far.
        published: PUBLISH packets that came in whole.
        acks, pongs: whether publishes and pings are answered. ``reading``: cleared, nothing is read any more.
        held: acknowledgements that were not sent; ``relent`` sends them.

    """

    def __init__(self) -> None:
        self.port = self.accepted = self.published = 0
        self.acks = self.pongs = True
        self.reading = asyncio.Event()
        self.reading.set()
        self.held: list[Callable[[], None]] = []
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server
        self._server.close()
        self.reading.set()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    def say(self, data: bytes) -> None:
        """Send bytes to whoever connected last."""
        self._writers[-1].write(data)

    def relent(self) -> None:
        """Acknowledge what waits for it, and all that comes from now on."""
        self.acks = True
        for acknowledge in self.held:
            acknowledge()
        self.held.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.append(writer)
        try:
            while True:
                await self.reading.wait()
                first, body, _ = await read_packet(reader)
                self._take(writer, first, body)
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()

    def _take(self, writer: asyncio.StreamWriter, first: int, body: bytes) -> None:
        if first == CONNECT:
            writer.write(WELCOME)
        elif first == SUBSCRIBE:
            writer.write(b"\x90\x04" + body[:2] + b"\x00\x01")
        elif first == UNSUBSCRIBE:
            writer.write(b"\xb0\x04" + body[:2] + b"\x00\x00")
        elif first == PINGREQ and self.pongs:
            writer.write(PONG)
        elif first & 0xF0 == PUBLISH:
            self.published += 1
            if first & 0x06:
                at = 2 + int.from_bytes(body[:2])
                answer = b"\x40\x02" + body[at : at + 2]
                if self.acks:
                    writer.write(answer)
                else:
                    self.held.append(lambda: writer.write(answer))


async def read_packet(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    """Read one packet; return its first byte, its body, and all of its bytes."""
    head, size, shift = await reader.readexactly(1), 0, 0
    while True:
        byte = await reader.readexactly(1)
        head += byte
        size |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            body = await reader.readexactly(size)
            return head[0], body, head + body
