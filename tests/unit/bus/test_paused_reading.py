"""A broker that sends more than the receive maximum: the connection is not read until messages are acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from halimede.bus import connection
from halimede.bus.message import Packet
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.bus.settings import Client
from tests.scripted import (
    CONNECT,
    HOST,
    PATIENCE,
    PINGREQ,
    PUBACK,
    SUBSCRIBE,
    Peer,
    Scripted,
    accepted,
    connack,
    message,
    packet,
)
from tests.simulated import eventually

#: stated here again, so that a change in the product is noticed
EXCESS = 8

MAXIMUM, SIZE, COUNT = 4, 64 * 1024, 200
QUIET_S = 0.3
#: more than twice the keepalive of these tests, in seconds
PAUSE_S = 2.5
PONG = packet(0xD0)


class Broker:
    """Sends all messages at once, whatever the receive maximum, and records what the client sends."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.acknowledged: list[int] = []
        self.pings = 0
        self.answers_pings = True

    def send(self, first: int, last: int) -> None:
        for number in range(first, last):
            self.peer.say(message("t", number.to_bytes(2) + bytes(SIZE), number))

    async def run(self) -> None:
        while True:
            try:
                kind, body = await self.peer.take()
            except asyncio.IncompleteReadError:  # the client has ended the connection
                return
            if kind == PUBACK:
                self.acknowledged.append(int.from_bytes(body[:2]))
            elif kind == PINGREQ:
                self.pings += 1
                if self.answers_pings:
                    self.peer.say(PONG)
            elif kind == SUBSCRIBE:
                self.peer.say(packet(0x90, body[:2] + b"\0\1"))


class Handler:
    """Takes messages; the test acknowledges them."""

    def __init__(self) -> None:
        self.pending: list[Packet] = []
        self.numbers: list[int] = []

    async def __call__(self, received: Packet) -> None:
        self.numbers.append(int.from_bytes(received.payload[:2]))
        self.pending.append(received)

    def acknowledge(self, count: int) -> None:
        for _ in range(count):
            self.pending.pop(0).done()


@asynccontextmanager
async def flooded(
    client: Client, *, resumed: bool = False, before: int = 0, **options: int
) -> AsyncIterator[tuple[MqttBus, Broker, Handler]]:
    """Yield a subscribed client, its broker and its handler; ``before``: messages sent ahead of the first answer."""
    handler = Handler()
    async with Scripted() as listener:
        settings = MqttSettings(HOST, listener.port, client=client, receive_maximum=MAXIMUM, session_s=60, **options)
        async with MqttBus("me", settings) as bus, asyncio.TaskGroup() as group:
            subscribing = group.create_task(bus.listen("t", 1, handler, 10, later=True))
            peer = await listener.peer()
            await peer.takes(CONNECT)
            broker = Broker(peer)
            peer.say(connack(resumed=resumed))
            broker.send(1, 1 + before)
            running = group.create_task(broker.run())
            await subscribing
            try:
                yield bus, broker, handler
            finally:
                running.cancel()
                peer.writer.transport.abort()


async def test_what_is_not_acknowledged_is_bounded_and_nothing_is_lost(client: Client) -> None:
    async with flooded(client) as (bus, broker, handler):
        await bus.wait_connected(PATIENCE)
        broker.send(1, COUNT + 1)
        while len(handler.numbers) < COUNT:
            await eventually(lambda: len(handler.pending) > MAXIMUM or len(handler.numbers) == COUNT)
            await asyncio.sleep(0.01)
            assert len(handler.pending) <= MAXIMUM + EXCESS + 1
            handler.acknowledge(min(5, len(handler.pending)))
        handler.acknowledge(len(handler.pending))
        assert handler.numbers == list(range(1, COUNT + 1))
        await eventually(lambda: broker.acknowledged == handler.numbers)
        assert bus.stats.connects == 1


async def test_a_pause_that_is_longer_than_the_keepalive_ends_no_connection(client: Client) -> None:
    async with flooded(client, keepalive_s=1) as (bus, broker, handler):
        await bus.wait_connected(PATIENCE)
        broker.send(1, COUNT + 1)
        await asyncio.sleep(PAUSE_S)
        assert broker.pings >= 2  # a broker ends the connection of a client that is silent
        assert MAXIMUM + EXCESS < len(handler.pending) <= MAXIMUM + EXCESS + 1
        handler.acknowledge(len(handler.pending))
        await eventually(lambda: len(handler.numbers) > MAXIMUM + 2 * EXCESS)
        assert (bus.connected, bus.stats.connects) == (True, 1)


async def test_a_connection_that_died_during_a_pause_is_left_after_it(client: Client) -> None:
    async with flooded(client, keepalive_s=1) as (bus, broker, handler):
        await bus.wait_connected(PATIENCE)
        broker.answers_pings = False
        broker.send(1, MAXIMUM + EXCESS + 3)
        await asyncio.sleep(PAUSE_S)
        assert bus.connected
        handler.acknowledge(len(handler.pending))
        await eventually(lambda: not bus.connected)


async def test_a_session_with_many_messages_is_usable_before_the_broker_answers(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers to its subscriptions stand behind the messages, which nobody acknowledges meanwhile."""
    monkeypatch.setattr(connection, "SUBSCRIBE_TIMEOUT", 0.5)
    async with flooded(client, resumed=True, before=COUNT) as (bus, _, handler):
        await bus.wait_connected(PATIENCE)
        await asyncio.sleep(QUIET_S)
        assert (bus.stats.connects, bus.resumed) == (1, True)
        assert len(handler.pending) <= MAXIMUM + EXCESS + 1
        while len(handler.numbers) < COUNT:
            await eventually(lambda: handler.pending)
            handler.acknowledge(len(handler.pending))
        assert (handler.numbers, bus.stats.connects) == (list(range(1, COUNT + 1)), 1)


async def test_a_connection_that_ended_during_a_pause_is_not_read_again(client: Client) -> None:
    async with accepted(client) as (bus, _):
        link: Any = bus._link
        link.pause_reading()
        link.abort("gone")
        link.resume_reading()
        link.pause_reading()
        assert link.ended.result().reason == "gone"
        assert link._tick.cancelled(), "its keepalive is not checked any more"
