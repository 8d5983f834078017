"""Whoever speaks for the broker falls silent, stops reading, or talks nonsense: a worker's connection ends and is made
anew, nothing of it reaches a handler, and what it holds meanwhile is bounded. With either client.

Ten thousand requests that are cancelled in flight leave nothing: no permit, no future, no memory.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import get_args

import pytest
from structlog.testing import capture_logs

from halimede import topics
from halimede.bus import Bus, Delivery, Packet
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.bus.settings import Client
from halimede.errors import DisconnectedError
from halimede.messages import Frame, Reply
from halimede.offload import OffloadClient
from halimede.offload.channel import inference
from halimede.offload.client import PendingRequest
from halimede.offload.errors import OffloadError
from halimede.worker.main import connect_to
from services.broker import MosquittoProcess
from tests.faults.hostile_broker import WELCOME, HostileBroker, goodbye, message
from tests.scripted import HOST
from tests.simulated import eventually
from tests.traced_memory import memory_below
from tests.unit.frames.clouds import NS, SERVICE, ScriptedCloud, answering, frame
from tests.waiting import patience

MIB = 1024 * 1024
#: seconds
KEEPALIVE, PATIENCE = 2, 30.0
TOPIC = "default/sedna/frames/cam0"
MAX_PACKET = 64 * 1024
LARGE = Packet(TOPIC, bytes(MIB))
SMALL = Packet(TOPIC, b"x")


@dataclass
class Link:
    """A bus that listens, what it hears, and the broker at the other end."""

    broker: HostileBroker
    client: Client
    bus: MqttBus
    heard: list[Packet] = field(default_factory=list)

    async def hear(self, packet: Packet) -> None:
        self.heard.append(packet)

    async def ends_by(self, data: bytes) -> None:
        """Hear bytes, and wait until the connection ends: at the latest by the keepalive, as pings get no answer."""
        self.broker.pongs = False
        self.broker.say(data)
        await eventually(lambda: not self.bus.connected, PATIENCE)
        self.broker.pongs = True

    async def back(self, connections: int = 2) -> None:
        """Insist that the bus connects anew, and that the new connection is a good one, in both directions."""
        await eventually(lambda: self.broker.accepted >= connections and self.bus.connected, PATIENCE)
        await self.bus.wait_connected(patience(PATIENCE))
        assert self.heard == []
        assert await self.bus.send(SMALL, PATIENCE) == 0
        self.broker.say(message(TOPIC, b"well again"))
        await eventually(lambda: [packet.payload for packet in self.heard] == [b"well again"], PATIENCE)


@pytest.fixture(params=get_args(Client))
async def link(request: pytest.FixtureRequest) -> AsyncIterator[Link]:
    """A connection to a hostile broker."""
    async with HostileBroker() as broker:
        settings = MqttSettings(
            HOST, broker.port, keepalive_s=KEEPALIVE, window=8, max_packet=MAX_PACKET, client=request.param
        )
        async with MqttBus("worker.default.w", settings) as bus:
            link = Link(broker, request.param, bus)
            await bus.listen(TOPIC, 1, link.hear, 100)
            await bus.wait_connected(patience(PATIENCE))
            yield link


@pytest.mark.slow
async def test_a_peer_that_stops_reading_is_left_and_holds_no_more_than_a_window(link: Link) -> None:
    link.broker.reading.clear()
    # one payload, which the caller has: what waits for its place is not even written
    with memory_below(12 * MIB):
        sending = [asyncio.create_task(link.bus.send(LARGE, PATIENCE)) for _ in range(100)]
        await asyncio.sleep(0.5)
    await eventually(lambda: not link.bus.connected, PATIENCE)
    # one or two may have been read before; the others that had a place know it at once
    outcomes = await asyncio.gather(*sending[:8], return_exceptions=True)
    assert sum(isinstance(outcome, DisconnectedError) for outcome in outcomes) >= 6
    link.broker.reading.set()
    for task in sending:
        task.cancel()
    await asyncio.gather(*sending, return_exceptions=True)
    await link.back()
    assert link.bus.owed == 0


@pytest.mark.slow
@pytest.mark.parametrize("head", [1, 2, 5, 30], ids="{} bytes of it".format)
async def test_half_a_packet_and_then_silence_is_found_by_the_keepalive(link: Link, head: int) -> None:
    await link.ends_by(message(TOPIC, b"never whole" * 100)[:head])
    await link.back()


async def test_a_packet_over_the_limit_costs_no_memory(link: Link) -> None:
    # paho believes what it is told; the system gives it no memory before it writes there
    with memory_below(4 * MIB) if link.client == "lean" else nullcontext():
        await link.ends_by(message(TOPIC, bytes(MAX_PACKET), announced=200 * MIB))
    await link.back()


NONSENSE = {
    "a length of five bytes": b"\x30\xff\xff\xff\xff\x01" + bytes(100),
    "an endless length": b"\xd0\x80\x80\x80\x80\x80",
    "a topic beyond its packet": b"\x30\x03\x00\xffx",
    "QoS 3": b"\x36\x05\x00\x01x\x00\x00",
    "type 0": b"\x00\x00",
    "AUTH": b"\xf0\x00",
    "CONNECT": b"\x10\x00",
    "half an identifier": b"\x40\x01\x00",
    "a second welcome": WELCOME,
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10,
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
async def test_nonsense_ends_the_connection_and_not_the_program(link: Link, nonsense: bytes) -> None:
    ends = link.client != "paho" or nonsense != WELCOME  # paho accepts a second welcome, and goes on
    if ends:
        await link.ends_by(nonsense)
    else:
        link.broker.say(nonsense)
    await link.back(1 + ends)


REASONS = {
    0x8B: "shutting down",
    0x97: "[Qq]uota",
    0x95: "too large",
    0x93: "[Rr]eceive maximum",
    0x98: "dministrative",
}


@pytest.mark.parametrize("reason", REASONS)
async def test_a_broker_that_leaves_with_a_reason_is_quoted(link: Link, reason: int) -> None:
    link.broker.acks = False
    waiting = asyncio.create_task(link.bus.send(SMALL, PATIENCE))
    await eventually(lambda: link.broker.unacknowledged)
    with capture_logs() as lines:
        link.broker.say(goodbye(reason))
        with pytest.raises(DisconnectedError, match=REASONS[reason]):
            await waiting
        link.broker.acks = True
        await link.back()
    assert [line["event"] for line in lines if line["event"].startswith("bus ")] == ["bus down", "bus connected"]


async def test_acknowledgements_of_nothing_are_nothing(link: Link) -> None:
    link.broker.say(b"\x40\x02\x00\x63" * 100 + b"\x40\x04\x00\x63\x10\x00")
    assert await link.bus.send(SMALL, PATIENCE) == 0
    link.broker.say(b"\x40\x02\x00\x02" * 3)
    assert await link.bus.send(SMALL, PATIENCE) == 0
    assert (link.bus.connected, link.broker.accepted) == (True, 1)


REQUESTS, AT_A_TIME = 10_000, 250
WINDOW = 64
#: so fast that a slot will be free in time for each request that waits
SERVICE_MS = 0.001
#: requests after which as many correlations are remembered as ever will be; after that not one in four may leave
#: anything at all: one block of memory that Python has given out
FIRST, REMAINING = 5_000, REQUESTS // 4


def living() -> Counter[str]:
    """What anybody may still wait for, and what is known of requests."""
    gc.collect()
    counts: Counter[str] = Counter()
    for each in gc.get_objects():
        counts["futures"] += isinstance(each, asyncio.Future) and not each.done()
        counts["asks"] += isinstance(each, PendingRequest)
    return counts


class Cloud(ScriptedCloud):
    """Answers nothing until it is told to, and every seventh late."""

    answers = False
    last = b""

    async def take(self, delivery: Delivery[Frame]) -> None:
        self.last = delivery.body.id
        del self.seen[:], self.deliveries[:]
        await super().take(delivery)

    @classmethod
    def on(cls, bus: object) -> Cloud:
        async def script(delivery: Delivery[Frame]) -> Reply | None:
            return await answering()(delivery) if cloud.answers or random.random() < 1 / 7 else None

        cloud = cls(bus, "c0", script)  # type: ignore[arg-type]
        return cloud


async def cancelled_in_flight(offload: OffloadClient, cloud: Cloud, requests: int) -> Counter[str]:
    """Ask, and give each request up at another moment; return what became of them."""
    outcomes: Counter[str] = Counter()
    chance = random.Random(5)
    for _ in range(requests // AT_A_TIME):
        await cloud.advertise(AT_A_TIME, SERVICE_MS)
        asking = [asyncio.create_task(offload.ask(frame(), PATIENCE)) for _ in range(AT_A_TIME)]
        for _ in range(5):
            await asyncio.sleep(chance.random() * 0.004)
            for task in chance.sample(asking, AT_A_TIME // 4):
                task.cancel()
        for task in asking:
            task.cancel()
        for outcome in await asyncio.gather(*asking, return_exceptions=True):
            outcomes[type(outcome).__name__] += 1
    return outcomes


async def quiet(asker: Bus, cloud: Cloud) -> None:
    """Wait until everything is acknowledged, and what had left for the cloud is done there: a last one comes last."""
    last = frame()
    await asker.publish(topics.REQUEST_TO.at(ns=NS, service=SERVICE, worker="c0"), last)
    await eventually(lambda: asker.owed == 0 and cloud.last == last.id, PATIENCE)
    await asyncio.sleep(0.3)  # the last replies arrive, and are nobody's


@pytest.mark.slow
@pytest.mark.parametrize("client", get_args(Client))
async def test_requests_cancelled_in_flight_leave_nothing(mosquitto: MosquittoProcess, client: Client) -> None:
    connect = connect_to(MqttSettings("127.0.0.1", mosquitto.port, client=client, window=WINDOW))
    async with connect("worker.default.cloud") as far, connect("worker.default.edge") as near:
        for bus in (far, near):
            await bus.wait_connected(patience(PATIENCE))
        cloud = Cloud.on(far)
        await cloud.start(advertise=None)
        await cloud.advertise(AT_A_TIME, SERVICE_MS)
        offload = OffloadClient(near, inference(NS, SERVICE, "edge"), window=WINDOW, waiters=AT_A_TIME)
        await offload.start()
        await eventually(offload.credits_left, PATIENCE)
        await cancelled_in_flight(offload, cloud, FIRST)
        await quiet(near, cloud)
        before, blocks = living(), sys.getallocatedblocks()
        outcomes = await cancelled_in_flight(offload, cloud, REQUESTS)
        await quiet(near, cloud)
        after = living()
        assert sys.getallocatedblocks() - blocks < REMAINING
        assert outcomes["CancelledError"] > REQUESTS / 2
        assert set(outcomes) <= {"CancelledError", "Reply", OffloadError.__name__}, outcomes
        assert after["asks"] == 0
        assert abs(after["futures"] - before["futures"]) <= 10
        # and every place, of the window and of those who wait for one, is there
        cloud.answers = True
        await cloud.advertise(AT_A_TIME, SERVICE_MS)
        await eventually(lambda: offload.credits_left().get("c0") == AT_A_TIME, PATIENCE)
        replies = await asyncio.gather(*(offload.ask(frame(), PATIENCE) for _ in range(AT_A_TIME)))
        assert len(replies) == AT_A_TIME
