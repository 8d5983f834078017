"""Whoever speaks for the broker falls silent, stops reading, or talks nonsense: a worker's connection ends and is made
anew, nothing of it reaches a handler, and what it holds meanwhile is bounded. With either client.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import get_args

import pytest
from structlog.testing import capture_logs

from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.bus.settings import Client
from halimede.errors import DisconnectedError, TooLargeError
from tests.faults.hostile_broker import HOST, WELCOME, HostileBroker, goodbye, message
from tests.simulated import eventually
from tests.waiting import patience

MIB = 1024 * 1024
#: seconds
KEEPALIVE, PATIENCE = 2, 20.0
TOPIC = "default/sedna/frames/cam0"
MAX_PACKET = 64 * 1024
LARGE = Packet(TOPIC, bytes(MIB))
SMALL = Packet(TOPIC, b"x")


@pytest.fixture(params=get_args(Client))
def client(request: pytest.FixtureRequest) -> Client:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def broker() -> AsyncIterator[HostileBroker]:
    async with HostileBroker() as broker:
        yield broker


@asynccontextmanager
async def connected(
    broker: HostileBroker, client: Client, window: int = 8
) -> AsyncIterator[tuple[MqttBus, list[Packet]]]:
    """A bus that listens, and what it hears."""
    settings = MqttSettings(
        HOST, broker.port, keepalive_s=KEEPALIVE, window=window, max_packet=MAX_PACKET, client=client
    )
    heard: list[Packet] = []

    async def hear(packet: Packet) -> None:
        heard.append(packet)

    async with MqttBus("worker.default.w", settings) as bus:
        await bus.listen(TOPIC, 1, hear, 100)
        await bus.wait_connected(patience(PATIENCE))
        yield bus, heard


async def back(broker: HostileBroker, bus: MqttBus, heard: list[Packet], connections: int = 2) -> None:
    """Insist that the bus connects anew, and that the new connection is a good one, in both directions."""
    await eventually(lambda: broker.accepted >= connections and bus.connected, PATIENCE)
    await bus.wait_connected(patience(PATIENCE))
    assert heard == []
    assert await bus.send(SMALL, PATIENCE) == 0
    broker.say(message(TOPIC, b"well again"))
    await eventually(lambda: [packet.payload for packet in heard] == [b"well again"], PATIENCE)


@pytest.mark.slow
async def test_a_peer_that_stops_reading_is_left_and_holds_no_more_than_a_window(
    broker: HostileBroker, client: Client
) -> None:
    async with connected(broker, client) as (bus, heard):
        broker.reading.clear()
        tracemalloc.start()
        try:
            sending = [asyncio.create_task(bus.send(LARGE, PATIENCE)) for _ in range(100)]
            await asyncio.sleep(0.5)
            # one payload, which the caller has: what waits for its place is not even written
            assert tracemalloc.get_traced_memory()[1] < 12 * MIB
        finally:
            tracemalloc.stop()
        await eventually(lambda: not bus.connected, PATIENCE)
        # one or two may have been read before; the others that had a place know it at once
        outcomes = await asyncio.gather(*sending[:8], return_exceptions=True)
        assert sum(isinstance(outcome, DisconnectedError) for outcome in outcomes) >= 6
        broker.reading.set()
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        await back(broker, bus, heard)
        assert bus.owed == 0


@pytest.mark.slow
@pytest.mark.parametrize("head", [1, 2, 5, 30], ids="{} bytes of it".format)
async def test_half_a_packet_and_then_silence_is_found_by_the_keepalive(
    broker: HostileBroker, client: Client, head: int
) -> None:
    async with connected(broker, client) as (bus, heard):
        broker.pongs = False
        broker.say(message(TOPIC, b"never whole" * 100)[:head])
        await eventually(lambda: not bus.connected, PATIENCE)
        broker.pongs = True
        await back(broker, bus, heard)


async def test_a_packet_over_the_limit_costs_no_memory(broker: HostileBroker, client: Client) -> None:
    async with connected(broker, client) as (bus, heard):
        broker.pongs = False  # a client that takes the rest of the stream for its payload is left waiting for it
        tracemalloc.start()
        try:
            broker.say(message(TOPIC, bytes(MAX_PACKET), announced=200 * MIB))
            await eventually(lambda: not bus.connected, PATIENCE)
            # paho believes what it is told; the system gives it no memory before it writes there
            assert client == "paho" or tracemalloc.get_traced_memory()[1] < 4 * MIB
        finally:
            tracemalloc.stop()
        broker.pongs = True
        await back(broker, bus, heard)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x30\xff\xff\xff\xff\x01" + bytes(100),
        b"\xd0\x80\x80\x80\x80\x80",
        b"\x30\x03\x00\xffx",
        b"\x36\x05\x00\x01x\x00\x00",
        b"\x00\x00",
        b"\xf0\x00",
        b"\x10\x00",
        b"\x40\x01\x00",
        WELCOME,
        b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10,
    ],
    ids=[
        "a length of five bytes", "an endless length", "a topic beyond its packet", "QoS 3", "type 0", "AUTH",
        "CONNECT", "half an identifier", "a second welcome", "HTTP",
    ],
)  # fmt: skip
async def test_nonsense_ends_the_connection_and_not_the_program(
    broker: HostileBroker, client: Client, nonsense: bytes
) -> None:
    async with connected(broker, client) as (bus, heard):
        broker.say(nonsense)
        ends = client != "paho" or nonsense != WELCOME  # paho accepts a second welcome, and goes on
        if ends:
            broker.pongs = False  # what still makes a whole packet somewhere is waited for no longer than the keepalive
            await eventually(lambda: not bus.connected, PATIENCE)
            broker.pongs = True
        await back(broker, bus, heard, 1 + ends)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (0x8B, "shutting down"),
        (0x97, "[Qq]uota"),
        (0x95, "too large"),
        (0x93, "[Rr]eceive maximum"),
        (0x98, "dministrative"),
    ],
)
async def test_a_broker_that_leaves_with_a_reason_is_quoted(
    broker: HostileBroker, client: Client, reason: int, said: str
) -> None:
    async with connected(broker, client) as (bus, heard):
        broker.acks = False
        waiting = asyncio.create_task(bus.send(SMALL, PATIENCE))
        await eventually(lambda: broker.held)
        with capture_logs() as lines:
            broker.say(goodbye(reason))
            with pytest.raises(DisconnectedError, match=said):
                await waiting
            broker.acks = True
            await back(broker, bus, heard)
        assert [line["event"] for line in lines if line["event"].startswith("bus ")] == ["bus down", "bus connected"]


async def test_acknowledgements_that_never_come_cost_their_deadline_and_no_place_once_they_do(
    broker: HostileBroker, client: Client
) -> None:
    async with connected(broker, client) as (bus, heard):
        broker.acks = False
        for _ in range(3):  # the first fill the window, the others find no place
            outcomes = await asyncio.gather(*(bus.send(SMALL, 0.2) for _ in range(8)), return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {DisconnectedError}
        assert bus.connected
        assert broker.published == 8
        assert bus.owed > 0
        broker.relent()
        await eventually(lambda: bus.owed == 0, PATIENCE)
        assert await asyncio.gather(*(bus.send(SMALL, PATIENCE) for _ in range(100))) == [0] * 100
        assert heard == []


async def test_the_lean_client_leaves_a_broker_that_answers_pings_and_acknowledges_nothing(
    broker: HostileBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halimede.bus.mqtt5.keepalive.UNANSWERED_S", 1.0)
    async with connected(broker, "lean") as (bus, heard):
        broker.acks = False
        with pytest.raises(DisconnectedError, match="no acknowledgement for"):
            await bus.send(SMALL, PATIENCE)
        broker.acks = True
        await back(broker, bus, heard)


async def test_acknowledgements_of_nothing_are_nothing(broker: HostileBroker, client: Client) -> None:
    async with connected(broker, client) as (bus, _):
        broker.say(b"\x40\x02\x00\x63" * 100 + b"\x40\x04\x00\x63\x10\x00")
        assert await bus.send(SMALL, PATIENCE) == 0
        broker.say(b"\x40\x02\x00\x02" * 3)
        assert await bus.send(SMALL, PATIENCE) == 0
        assert (bus.connected, broker.accepted) == (True, 1)


async def test_publishes_that_are_cancelled_in_flight_leave_nothing(broker: HostileBroker, client: Client) -> None:
    async with connected(broker, client, window=32) as (bus, heard):
        for acks in (True, False):
            broker.acks = acks
            for _ in range(50):
                sending = [asyncio.create_task(bus.send(SMALL, PATIENCE)) for _ in range(100)]
                await asyncio.sleep(0.001)
                for task in sending:
                    task.cancel()
                await asyncio.gather(*sending, return_exceptions=True)
        broker.relent()
        await eventually(lambda: bus.owed == 0, PATIENCE)
        # each of the places is there: with one lost these would wait for ever once 32 were
        assert await asyncio.gather(*(bus.send(SMALL, PATIENCE) for _ in range(200))) == [0] * 200
        del sending, task
        await eventually(lambda: waiting() < 20, PATIENCE)
        assert heard == []


async def test_what_is_over_the_brokers_limit_never_leaves(client: Client) -> None:
    class Small(HostileBroker):
        def _take(self, writer: asyncio.StreamWriter, first: int, body: bytes) -> None:
            if first == 0x10:
                writer.write(b"\x20\x08\x00\x00\x05\x27" + (1000).to_bytes(4))
            else:
                super()._take(writer, first, body)

    async with Small() as broker, connected(broker, client) as (bus, _):
        with pytest.raises(TooLargeError, match="1000"):
            await bus.send(LARGE, PATIENCE)
        assert await bus.send(SMALL, PATIENCE) == 0
        assert broker.accepted == 1


def waiting() -> int:
    """How many futures anybody may still wait for."""
    gc.collect()
    return sum(isinstance(each, asyncio.Future) and not each.done() for each in gc.get_objects())
