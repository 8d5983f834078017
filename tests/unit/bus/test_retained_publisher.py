"""When a retained state is published: soon after a change that lasts, as a heartbeat, and for each new connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from halimede import topics
from halimede.bus import Delivery, Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.retained_publisher import RetainedPublisher
from halimede.errors import DisconnectedError, RefusedError
from halimede.messages import Presence
from tests.simulated import eventually
from tests.worlds import connected

pytestmark = pytest.mark.simulated

ADDRESS = topics.PRESENCE.at(node="n")


def state(epoch: int) -> Presence:
    return Presence(node="n", epoch=epoch, online=True)


class World:
    """A state that the test changes, and what is published of it: seconds from the start, and the epoch."""

    def __init__(self, **options: Any) -> None:
        self.broker = MemoryBroker()
        self.bus, self.reader = MemoryBus("n", self.broker), MemoryBus("reader", self.broker)
        self.state: Presence | None = state(1)
        self.publisher = RetainedPublisher(self.bus, ADDRESS, lambda: self.state, **options)
        self.published: list[tuple[float, int]] = []
        self.began = 0.0

    def now(self) -> float:
        return round(asyncio.get_running_loop().time() - self.began, 3)

    def change(self, epoch: int) -> None:
        self.state = state(epoch)
        self.publisher.touch()

    async def hear(self, delivery: Delivery[Presence]) -> None:
        self.published.append((self.now(), delivery.body.epoch))

    @property
    def retained(self) -> bool:
        return self.broker.retained_payload(ADDRESS.text) is not None


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[World]:
    world = World(**options)
    async with connected(world.bus), connected(world.reader), asyncio.TaskGroup() as group:
        await world.reader.subscribe(topics.PRESENCE.filter(), world.hear)
        world.began = asyncio.get_running_loop().time()
        run = group.create_task(world.publisher.run())
        yield world
        run.cancel()


@pytest.mark.parametrize(("announced", "at_once"), [(False, [(0, 1)]), (True, [])])
async def test_an_unchanged_state_is_published_every_two_seconds_and_at_once_unless_the_birth_has_it(
    announced: bool, at_once: list[tuple[float, int]]
) -> None:
    async with running(announced=announced) as world:
        await asyncio.sleep(4.5)
        assert world.published == [*at_once, (2, 1), (4, 1)]


async def test_a_change_is_published_once_it_has_lasted_and_a_tenth_of_a_second_after_the_message_before() -> None:
    async with running() as world:
        await asyncio.sleep(0.02)
        world.change(2)
        await asyncio.sleep(0.98)
        world.change(3)
        await asyncio.sleep(0.5)
        assert world.published == [(0, 1), (0.11, 2), (1.01, 3)]


async def test_a_first_state_is_published_as_soon_as_there_is_one() -> None:
    async with running() as world:
        world.state = None
        await asyncio.sleep(0.5)
        world.change(7)
        await asyncio.sleep(0.05)
        assert world.published == [(0.5, 7)]


async def test_a_state_that_changes_without_a_word_is_looked_at_in_intervals() -> None:
    async with running(poll_s=0.3, lasts_s=0.0) as world:
        await asyncio.sleep(0.2)
        world.state = state(2)
        await asyncio.sleep(1)
        assert world.published == [(0, 1), (0.4, 2)]


async def test_a_change_that_is_over_at_once_or_makes_no_difference_is_not_published() -> None:
    async with running(same=lambda one, other: one.epoch // 10 == other.epoch // 10) as world:
        await asyncio.sleep(0.5)
        world.change(20)
        await asyncio.sleep(0.009)
        world.change(5)
        await asyncio.sleep(1.4)
        assert world.published == [(0, 1)]
        world.change(10)
        await asyncio.sleep(0.05)
        assert world.published == [(0, 1), (1.919, 10)]


async def test_a_new_connection_gets_the_unchanged_state_again() -> None:
    async with running() as world:
        await asyncio.sleep(0.5)
        world.broker.restart()
        await eventually(lambda: world.bus.connected and world.retained, 1.4)


@pytest.mark.parametrize("connected", [True, False])
async def test_a_withdrawn_state_is_cleared_after_its_farewell_and_published_no_more(connected: bool) -> None:
    async with running(farewell=lambda: state(99)) as world:
        await asyncio.sleep(0.5)
        if not connected:
            world.bus.cut()
        await world.publisher.withdraw()
        world.change(3)
        world.bus.heal()
        await asyncio.sleep(10)
        assert world.published == [(0, 1), *([(0.5, 99)] if connected else [])]
        assert world.retained is not connected


@pytest.mark.parametrize(
    ("error", "level"), [(RefusedError("t", 0x87, "not authorised"), "warning"), (DisconnectedError("lost"), "info")]
)
async def test_a_state_that_is_not_published_is_published_with_the_next_heartbeat(error: Exception, level: str) -> None:
    attempts_s = list[float]()

    class Refusing(MemoryBus):
        async def send(self, packet: Packet, timeout_s: float = 10.0) -> int:
            attempts_s.append(round(asyncio.get_running_loop().time(), 2))
            raise error

    async with connected(Refusing("n", MemoryBroker())) as bus, asyncio.TaskGroup() as group:
        with capture_logs() as logs:
            run = group.create_task(RetainedPublisher(bus, ADDRESS, lambda: state(1)).run())
            await asyncio.sleep(3)
        run.cancel()
    assert [later - attempts_s[0] for later in attempts_s] == [0, 2]
    assert [entry["log_level"] for entry in logs] == [level] * 2
