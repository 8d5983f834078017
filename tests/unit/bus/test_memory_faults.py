"""The faults of the memory broker, in simulated time: each does what it says and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from halimede.bus import Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.message import NO_SUBSCRIBER, SUCCESS
from halimede.errors import DisconnectedError
from tests.inbox import Packets
from tests.simulated import simulate
from tests.worlds import connected

pytestmark = pytest.mark.simulated

TOPIC = "a/b"


@asynccontextmanager
async def pair(broker: MemoryBroker) -> AsyncIterator[tuple[MemoryBus, Packets]]:
    """A publisher, and what a subscriber got."""
    got = Packets()
    async with (
        connected(MemoryBus("publisher", broker)) as publisher,
        connected(MemoryBus("subscriber", broker)) as subscriber,
    ):
        await subscriber.listen(TOPIC, 1, got, 10_000)
        yield publisher, got


def numbered(count: int, qos: int = 1) -> list[Packet]:
    return [Packet(TOPIC, str(number).encode(), qos=qos) for number in range(count)]


async def send(publisher: MemoryBus, count: int, *, lossy: bool = False) -> None:
    """Send so many messages at once; where it is ``lossy``, some fail."""
    await asyncio.gather(*(publisher.send(packet) for packet in numbered(count)), return_exceptions=lossy)


def numbers(packets: list[Packet]) -> list[int]:
    return [int(packet.payload) for packet in packets]


async def test_delay_takes_simulated_time_and_keeps_order(memory_broker: MemoryBroker) -> None:
    loop = asyncio.get_running_loop()
    async with pair(memory_broker) as (publisher, got):
        memory_broker.faults.delay_s = (1.0, 3.0)
        began = loop.time()
        await send(publisher, 50)
        await asyncio.sleep(10)
        assert 2.0 <= loop.time() - began <= 20
        assert numbers(got) == list(range(50))


async def test_each_message_arrives_after_its_own_delay(memory_broker: MemoryBroker) -> None:
    loop = asyncio.get_running_loop()
    async with pair(memory_broker) as (publisher, got):
        memory_broker.faults.delay_s = (1.0, 1.0)
        began = loop.time()
        for pause in (0.1, 0.4, 0.5):
            publisher.post(Packet(TOPIC, b"x", qos=0))
            await asyncio.sleep(pause)
        await asyncio.sleep(3)
        assert [round(time - began, 3) for time in got.times] == [2.0, 2.1, 2.5]


async def test_lost_qos_0_messages_are_gone(memory_broker: MemoryBroker) -> None:
    async with pair(memory_broker) as (publisher, got):
        memory_broker.faults.loss = 0.5
        for packet in numbered(200, qos=0):
            assert await publisher.send(packet) == 0
        await asyncio.sleep(10)
        assert 0 < len(got) < 150
        assert numbers(got) == sorted(set(numbers(got)))


async def test_a_lost_qos_1_publish_raises_and_may_or_may_not_have_arrived(memory_broker: MemoryBroker) -> None:
    async with pair(memory_broker) as (publisher, got):
        memory_broker.faults.loss = 0.5
        failed, accepted = set(), set()
        for number, packet in enumerate(numbered(200)):
            try:
                await publisher.send(packet)
                accepted.add(number)
            except DisconnectedError:
                failed.add(number)
        memory_broker.faults.loss = 0
        await asyncio.sleep(10)
        arrived = set(numbers(got))
        assert accepted <= arrived, "what the broker acknowledged is delivered, sooner or later"
        assert failed & arrived
        assert failed - arrived


async def test_lost_deliveries_come_again_flagged_each_once(memory_broker: MemoryBroker) -> None:
    async with pair(memory_broker) as (publisher, got):
        memory_broker.faults.loss = 0.5
        await send(publisher, 100, lossy=True)
        await asyncio.sleep(60)
        assert len(set(numbers(got))) == len(got) > 50
        again = [packet.duplicate for packet in got]
        assert 0 < sum(again) < len(got)
        assert again == sorted(again), "those that were not lost came first"


async def test_duplicates_are_flagged_and_next_to_the_first(memory_broker: MemoryBroker) -> None:
    async with pair(memory_broker) as (publisher, got):
        memory_broker.faults.duplicate = 1.0
        for packet in numbered(10):
            await publisher.send(packet)
        await asyncio.sleep(1)
        assert numbers(got) == [number for number in range(10) for _ in range(2)]
        assert [packet.duplicate for packet in got] == [False, True] * 10


async def test_reordered_messages_all_arrive(memory_broker: MemoryBroker) -> None:
    async with pair(memory_broker) as (publisher, got):
        memory_broker.faults.reorder = 0.3
        await send(publisher, 100)
        await asyncio.sleep(1)
        assert numbers(got) != list(range(100))
        assert sorted(numbers(got)) == list(range(100))


def test_one_seed_gives_one_history() -> None:
    async def history(seed: int) -> list[int]:
        broker = MemoryBroker(seed=seed)
        async with pair(broker) as (publisher, got):
            broker.faults.loss, broker.faults.reorder, broker.faults.delay_s = 0.2, 0.2, (0.0, 0.5)
            await send(publisher, 50, lossy=True)
            await asyncio.sleep(60)
            return numbers(got)

    assert simulate(history(1)) == simulate(history(1))
    assert simulate(history(1)) != simulate(history(2))


async def test_an_expired_message_does_not_leave_the_brokers_queue(memory_broker: MemoryBroker) -> None:
    received = Packets()

    async def slow(packet: Packet) -> None:
        await asyncio.sleep(5)
        await received(packet)

    async with connected(MemoryBus("a", memory_broker, receive_maximum=1)) as bus:
        await bus.listen(TOPIC, 1, slow, 10)
        for number, expiry in enumerate((None, 2, 60)):
            await bus.send(Packet(TOPIC, str(number).encode(), expiry_s=expiry))
        await asyncio.sleep(30)
    assert numbers(received) == [0, 2]
    assert received[1].expiry_s == 55


async def test_the_brokers_queue_is_bounded_and_its_overflow_counted() -> None:
    broker = MemoryBroker(max_queued=5)
    async with connected(MemoryBus("a", broker, receive_maximum=1)) as bus:
        await bus.listen(TOPIC, 1, Packets(), 10, later=True)
        for packet in numbered(10):
            assert await bus.send(packet) == 0
        assert broker.overflowed == 4


async def test_who_waits_for_a_place_in_the_window_is_told_when_the_connection_ends(
    memory_broker: MemoryBroker,
) -> None:
    loop = asyncio.get_running_loop()
    async with connected(MemoryBus("a", memory_broker)) as bus:
        memory_broker.faults.delay_s = (5.0, 5.0)
        sends = [asyncio.create_task(bus.send(packet)) for packet in numbered(1500)]
        await asyncio.sleep(1)
        bus.cut()
        began = loop.time()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {DisconnectedError}
        assert loop.time() == began


@pytest.mark.parametrize("reports", [True, False])
@pytest.mark.parametrize("subscribed", [True, False])
@pytest.mark.parametrize("qos", [0, 1])
async def test_a_publisher_learns_that_there_is_no_subscriber_if_its_broker_reports_that(
    memory_broker: MemoryBroker, reports: bool, subscribed: bool, qos: int
) -> None:
    memory_broker.reports_absence = reports
    async with connected(MemoryBus("a", memory_broker)) as bus:
        if subscribed:
            await bus.listen(TOPIC, 1, Packets(), 10)
        expected = NO_SUBSCRIBER if qos and reports and not subscribed else SUCCESS
        assert await bus.send(Packet(TOPIC, b"x", qos=qos)) == expected
