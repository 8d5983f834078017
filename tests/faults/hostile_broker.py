"""A broker that misbehaves: it speaks just enough MQTT v5 to be believed, and then does what a test tells it."""

from __future__ import annotations

import asyncio

from halimede.bus.mqtt5.encoder import varint
from tests.listener import Listener
from tests.scripted import CONNECT, DISCONNECT, PINGREQ, PUBLISH, SUBSCRIBE, connack, packet, read_packet

UNSUBSCRIBE = 0xA2
WELCOME, PONG = connack(), packet(0xD0)


def message(topic: str, payload: bytes, announced: int | None = None) -> bytes:
    """Return a PUBLISH at QoS 0; ``announced`` bytes of payload are what its length says."""
    head = len(topic).to_bytes(2) + topic.encode() + b"\x00"
    return bytes([PUBLISH]) + varint(len(head) + (len(payload) if announced is None else announced)) + head + payload


def goodbye(reason: int) -> bytes:
    """Return a DISCONNECT."""
    return packet(DISCONNECT, bytes([reason]))


class HostileBroker(Listener):
    """Takes every client, and answers as long as it is told to.

    Attributes:
        accepted: connections so far.
        acks, pongs: whether publishes and pings are answered. ``reading``: cleared, nothing is read any more.
        unacknowledged: publishes that were not answered.

    """

    def __init__(self) -> None:
        super().__init__()
        self.accepted = self.unacknowledged = 0
        self.acks = self.pongs = True
        self.reading = asyncio.Event()
        self.reading.set()
        self._writers: list[asyncio.StreamWriter] = []

    def cut(self) -> None:
        self.reading.set()
        for writer in self._writers:
            writer.transport.abort()

    def say(self, data: bytes) -> None:
        """Send bytes to whoever connected last."""
        self._writers[-1].write(data)

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
            writer.write(packet(0x90, body[:2] + b"\x00\x01"))
        elif first == UNSUBSCRIBE:
            writer.write(packet(0xB0, body[:2] + b"\x00\x00"))
        elif first == PINGREQ and self.pongs:
            writer.write(PONG)
        elif first & 0xF0 == PUBLISH and first & 0x06:
            at = 2 + int.from_bytes(body[:2])
            if self.acks:
                writer.write(packet(0x40, body[at : at + 2]))
            else:
                self.unacknowledged += 1
