"""A broker that does what a test tells it to, packet by packet: for what no real one can be brought to do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from halimede.bus.addresses import SocketAddress
from halimede.bus.message import Announce, Packet
from halimede.bus.mqtt import MqttBus
from halimede.bus.mqtt5.connect import connect
from halimede.bus.mqtt5.connection import Mqtt5Transport
from halimede.bus.mqtt5.encoder import varint
from halimede.bus.settings import Client, MqttSettings
from tests.listener import Listener
from tests.waiting import patience

HOST = "127.0.0.1"
#: seconds that a test waits for what must come
PATIENCE = 20.0
CONNECT, PUBLISH, PUBACK, SUBSCRIBE, PINGREQ, DISCONNECT = 0x10, 0x30, 0x40, 0x82, 0xC0, 0xE0


def packet(first: int, body: bytes = b"") -> bytes:
    return bytes((first,)) + varint(len(body)) + body


def connack(reason: int = 0, properties: bytes = b"", *, resumed: bool = False) -> bytes:
    return packet(0x20, bytes((resumed, reason)) + varint(len(properties)) + properties)


def message(topic: str, payload: bytes, identifier: int = 0, first: int = 0) -> bytes:
    head = len(topic).to_bytes(2) + topic.encode() + (identifier.to_bytes(2) if identifier else b"")
    return packet(first or (0x32 if identifier else 0x30), head + b"\0" + payload)


def puback(identifier: int, reason: int = 0) -> bytes:
    return packet(PUBACK, identifier.to_bytes(2) + bytes((reason, 0)))


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


class Peer:
    """The broker's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def take(self) -> tuple[int, bytes]:
        """Return the first byte and the body of the next packet."""
        async with asyncio.timeout(patience(PATIENCE)):
            first, body, _ = await read_packet(self.reader)
        return first, body

    async def takes(self, first: int) -> bytes:
        """Insist on the kind of the next packet; return its body."""
        kind, body = await self.take()
        assert kind & 0xF0 == first & 0xF0, f"{kind:#x}"
        return body

    async def takes_message(self, reason: int = 0) -> bytes:
        """Acknowledge the next message, which is a PUBLISH at QoS 1; return its body."""
        body = await self.takes(PUBLISH)
        at = 2 + int.from_bytes(body[:2])
        self.say(puback(int.from_bytes(body[at : at + 2]), reason))
        return body

    async def silent(self, seconds: float) -> bool:
        """Whether nothing comes for so long."""
        try:
            async with asyncio.timeout(seconds):
                await self.reader.read(1)
        except TimeoutError:
            return True
        return False

    def say(self, *packets: bytes) -> None:
        self.writer.write(b"".join(packets))


class Scripted(Listener):
    """Listens on ``port``. Of what is not read the system keeps about ``buffer`` bytes, and a peer ``limit``."""

    def __init__(self, buffer: int = 0, limit: int = 4096) -> None:
        super().__init__()
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []
        sock = socket.socket()
        if buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.bind((HOST, 0))
        self._options = {"sock": sock, "limit": limit}

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def peer(self) -> Peer:
        async with asyncio.timeout(patience(PATIENCE)):
            return await self.peers.get()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.peers.put_nowait(Peer(reader, writer))


def loopback(settings: MqttSettings) -> SocketAddress:
    target = (settings.host, settings.port)
    return SocketAddress(settings.endpoints[0], socket.AF_INET, target, settings.connect_timeout_s)


@asynccontextmanager
async def linked(
    welcome: bytes = b"", *, buffer: int = 0, limit: int = 4096, **options: Any
) -> AsyncIterator[tuple[Mqtt5Transport, Peer, list[tuple[Packet, Any, int]]]]:
    """An accepted connection of the lean client, the broker's end of it, and what is delivered."""
    came: list[tuple[Packet, Any, int]] = []
    async with Scripted(buffer, limit) as broker:
        settings = MqttSettings(HOST, broker.port, client="lean", **options)
        connecting = asyncio.create_task(
            connect(loopback(settings), settings, "me", None, lambda *item: came.append(item))
        )
        peer = await broker.peer()
        await peer.takes(CONNECT)
        peer.say(welcome or connack())
        link = await connecting
        try:
            yield link, peer, came
        finally:
            link.abort("the test is over")


@asynccontextmanager
async def dialled(
    client: Client, announce: Announce | None = None, **options: Any
) -> AsyncIterator[tuple[MqttBus, Peer, bytes]]:
    """A bus with either client, the broker's end of its connection, and the body of its CONNECT, not yet answered."""
    async with Scripted() as broker:
        settings = MqttSettings(HOST, broker.port, client=client, **options)
        async with MqttBus("me", settings, announce) as bus:
            peer = await broker.peer()
            yield bus, peer, await peer.takes(CONNECT)
            peer.writer.close()


@asynccontextmanager
async def accepted(client: Client, properties: bytes = b"", **options: Any) -> AsyncIterator[tuple[MqttBus, Peer]]:
    """A bus with either client that is connected, and the broker's end of its connection."""
    async with dialled(client, **options) as (bus, peer, _):
        peer.say(connack(properties=properties))
        await bus.wait_connected(patience(PATIENCE))
        yield bus, peer
