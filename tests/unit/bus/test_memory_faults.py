"""The faults of the memory broker, in simulated time: each does what it says and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from halimede.bus import Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.errors import DisconnectedError
from tests.simulated import simulate, simulated

TOPIC = "a/b"


@asynccontextmanager
async def pair(broker: MemoryBroker, queue: int = 10_000) -> AsyncIterator[tuple[MemoryBus, list[Packet]]]:
    """A publisher, and what a subscriber got."""
    got: list[Packet] = []

    async def receive(packet: Packet) -> None:
        got.append(packet)

    async with MemoryBus("publisher", broker) as publisher, MemoryBus("subscriber", broker) as subscriber:
        await publisher.wait_connected(10)
        await subscriber.wait_connected(10)
        await subscriber.listen(TOPIC, 1, receive, queue)
        yield publisher, got


def numbered(count: int, qos: int) -> list[Packet]:
    return [Packet(TOPIC, str(number).encode(), qos=qos) for number in range(count)]


def numbers(packets: list[Packet]) -> list[int]:
    return [int(packet.payload) for packet in packets]


@simulated
async def test_delay_takes_simulated_time_and_keeps_order(memory_broker: MemoryBroker) -> None:
    loop = asyncio.get_running_loop()
    async with pair(memory_broker) as (publisher, got):
        memory_broker.faults.delay_s = (1.0, 3.0)
        began = loop.time()
        await asyncio.gather(*(publisher.send(packet) for packet in numbered(50, qos=1)))
        await asyncio.sleep(10)
        assert 2.0 <= loop.time() - began <= 20
        assert numbers(got) == list(range(50))


@simulated
async def test_lost_qos_0_messages_are_gone(memory_broker: MemoryBroker) -> None:
    async with pair(memory_broker) as (publisher, got):
        memory_broker.faults.loss = 0.5
        for packet in numbered(200, qos=0):
            assert await publisher.send(packet) == 0
        await asyncio.sleep(10)
        assert 0 < len(got) < 150
        assert numbers(got) == sorted(set(numbers(got)))


@simulated
async def test_a_lost_qos_1_publish_raises_and_may_or_may_not_have_arrived(memory_broker: MemoryBroker) -> None:
    async with pair(memory_broker) as (publisher, got):
        memory_broker.faults.loss = 0.5
        failed, accepted = set(), set()
        for number, packet in enumerate(numbered(200, qos=1)):
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


@simulated
async def test_lost_deliveries_come_again_flagged_each_once(memory_broker: MemoryBroker) -> None:
    async with pair(memory_broker) as (publisher, got):
        memory_broker.faults.loss = 0.5
        await asyncio.gather(*(publisher.send(packet) for packet in numbered(100, qos=1)), return_exceptions=True)
        await asyncio.sleep(60)
        assert len(set(numbers(got))) == len(got) > 50
        again = [packet.duplicate for packet in got]
        assert 0 < sum(again) < len(got)
        assert again == sorted(again), "those that were not lost came first"


@simulated
async def test_duplicates_are_flagged_and_next_to_the_first(memory_broker: MemoryBroker) -> None:
    async with pair(memory_broker) as (publisher, got):
        memory_broker.faults.duplicate = 1.0
        for packet in numbered(10, qos=1):
            await publisher.send(packet)
        await asyncio.sleep(1)
        assert numbers(got) == [number for number in range(10) for _ in range(2)]
        assert [packet.duplicate for packet in got] == [False, True] * 10


@simulated
async def test_reordered_messages_all_arrive(memory_broker: MemoryBroker) -> None:
    async with pair(memory_broker) as (publisher, got):
        memory_broker.faults.reorder = 0.3
        await asyncio.gather(*(publisher.send(packet) for packet in numbered(100, qos=1)))
        await asyncio.sleep(1)
        assert numbers(got) != list(range(100))
        assert sorted(numbers(got)) == list(range(100))


def test_one_seed_gives_one_history() -> None:
    async def history(seed: int) -> list[int]:
        broker = MemoryBroker(seed=seed)
        async with pair(broker) as (publisher, got):
            broker.faults.loss, broker.faults.reorder, broker.faults.delay_s = 0.2, 0.2, (0.0, 0.5)
            await asyncio.gather(*(publisher.send(packet) for packet in numbered(50, qos=1)), return_exceptions=True)
            await asyncio.sleep(60)
            return numbers(got)

    assert simulate(history(1)) == simulate(history(1))
    assert simulate(history(1)) != simulate(history(2))


@simulated
async def test_an_expired_message_does_not_leave_the_brokers_queue(memory_broker: MemoryBroker) -> None:
    seen: list[Packet] = []

    async def slow(packet: Packet) -> None:
        await asyncio.sleep(5)
        seen.append(packet)

    async with MemoryBus("a", memory_broker, receive_maximum=1) as bus:
        await bus.wait_connected(1)
        await bus.listen(TOPIC, 1, slow, 10)
        for number, expiry in enumerate((None, 2, 60)):
            await bus.send(Packet(TOPIC, str(number).encode(), expiry_s=expiry))
        await asyncio.sleep(30)
    assert numbers(seen) == [0, 2]
    assert seen[1].expiry_s == 55


@simulated
async def test_the_brokers_queue_is_bounded_and_its_overflow_counted() -> None:
    broker = MemoryBroker(max_queued=5)
    async with MemoryBus("a", broker, receive_maximum=1) as bus:
        await bus.wait_connected(1)

        async def stuck(_: Packet) -> None:
            await asyncio.sleep(1000)

        await bus.listen(TOPIC, 1, stuck, 10)
        for packet in numbered(10, qos=1):
            assert await bus.send(packet) == 0
        assert broker.overflowed == 4


@simulated
async def test_a_client_waits_for_a_broker_that_starts_an_hour_later(memory_broker: MemoryBroker) -> None:
    memory_broker.stop()
    async with MemoryBus("a", memory_broker) as bus:
        await asyncio.sleep(3600)
        assert not bus.connected
        memory_broker.start()
        await bus.wait_connected(5.5)


@simulated
async def test_who_waits_for_a_place_in_the_window_is_told_when_the_connection_ends(
    memory_broker: MemoryBroker,
) -> None:
    async with MemoryBus("a", memory_broker) as bus:
        await bus.wait_connected(1)
        memory_broker.faults.delay_s = (5.0, 5.0)
        sends = [asyncio.create_task(bus.send(packet)) for packet in numbered(1500, qos=1)]
        await asyncio.sleep(1)
        bus.cut()
        loop = asyncio.get_running_loop()
        began = loop.time()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {DisconnectedError}
        assert loop.time() == began
