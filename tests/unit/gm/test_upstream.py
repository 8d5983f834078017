"""A node that sends too much costs its share and no more: the newest of each topic is taken, in bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from services.gm import upstream
from services.gm.rate_limit import MOST_NAMES, RateLimit
from services.gm.upstream import BURST, CALM_S, CROWD_BURST, RATE, IngressLimiter

pytestmark = pytest.mark.simulated


class Traffic:
    """A limiter, and what came of what was offered to it."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.flooded: list[str] = []
        self.calm = 0
        self.limiter = IngressLimiter(self._flooded, self._calmed)

    async def _flooded(self, node: str) -> None:
        self.flooded.append(node)

    async def _calmed(self) -> None:
        self.calm += 1

    async def offer(self, topic: str, number: int = 0, *, node: str = "edge0", size: int = 0) -> None:
        async def work() -> None:
            self.done.append((topic, number))

        await self.limiter.offer(node, topic, work, size=size)


@pytest.fixture
def traffic() -> Traffic:
    return Traffic()


@pytest.fixture
async def served(traffic: Traffic) -> AsyncIterator[Traffic]:
    """Traffic of which what waits is taken as the budgets allow."""
    running = asyncio.create_task(traffic.limiter.run())
    yield traffic
    running.cancel()


async def test_within_its_budget_a_node_is_taken_at_once_and_in_order(traffic: Traffic) -> None:
    for number in range(int(BURST)):
        await traffic.offer("status", number)
    assert traffic.done == [("status", number) for number in range(int(BURST))]
    assert (traffic.flooded, traffic.limiter.waiting) == ([], 0)


async def test_beyond_it_the_newest_of_each_topic_waits_and_another_node_notices_nothing(traffic: Traffic) -> None:
    for number in range(int(BURST) + 500):
        await traffic.offer("a" if number % 2 else "b", number)
    assert (len(traffic.done), traffic.flooded) == (BURST, ["edge0"])
    assert (traffic.limiter.waiting, traffic.limiter.overtaken) == (2, 498)
    await traffic.offer("status", 7, node="edge1")
    assert traffic.done[-1] == ("status", 7)
    running = asyncio.create_task(traffic.limiter.run())
    await asyncio.sleep(1.0)
    running.cancel()
    assert (sorted(traffic.done[-2:]), traffic.limiter.waiting) == ([("a", BURST + 499), ("b", BURST + 498)], 0)


async def test_what_comes_again_by_itself_is_not_even_read_from_a_node_that_sends_too_much(traffic: Traffic) -> None:
    assert await traffic.limiter.accepts("edge0")
    for number in range(int(BURST) + 1):
        await traffic.offer("status", number)
    assert not await traffic.limiter.accepts("edge0")
    assert await traffic.limiter.accepts("edge1")
    assert traffic.limiter.dropped == 1


@pytest.mark.parametrize("bound", ["topics", "bytes"])
async def test_what_waits_is_bounded(traffic: Traffic, bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await traffic.offer("first", size=int(BURST * 1024))  # all of its budget
    monkeypatch.setattr(upstream, "MAX_WAITING_TOPICS" if bound == "topics" else "MAX_WAITING_BYTES", 50)
    for number in range(60):
        await traffic.offer(f"topic{number}", size=1)
    assert (traffic.limiter.waiting, traffic.limiter.dropped) == (50, 10)
    await traffic.offer("topic3", 1, size=1)  # in place of an older one there always is room
    assert (traffic.limiter.waiting, traffic.limiter.dropped) == (50, 10)


async def test_one_that_cannot_be_taken_stops_no_other(served: Traffic) -> None:
    async def broken() -> None:
        raise RuntimeError("boom")

    await served.offer("first", size=int(BURST * 1024))
    await served.limiter.offer("edge0", "broken", broken, size=0)
    await served.offer("last", 1)
    await asyncio.sleep(5.0)
    assert served.done[-1] == ("last", 1)


async def test_once_a_crowd_is_over_that_is_reported_once(served: Traffic) -> None:
    for _ in range(int(CROWD_BURST)):
        served.limiter.count_message()
    await asyncio.sleep(2 * CALM_S)
    assert served.calm == 0  # many, but no crowd
    for _ in range(3 * int(CROWD_BURST)):
        served.limiter.count_message()
    await asyncio.sleep(CALM_S / 2)
    assert served.calm == 0
    await asyncio.sleep(CALM_S)
    assert served.calm == 1
    await asyncio.sleep(10 * CALM_S)
    assert served.calm == 1


async def test_a_budget_comes_back_with_time_and_only_so_many_names_are_remembered() -> None:
    limit: RateLimit[int] = RateLimit(RATE, 2.0)
    assert [limit.spend(0) for _ in range(3)] == [True, True, False]
    await asyncio.sleep(1 / RATE)
    assert [limit.spend(0) for _ in range(2)] == [True, False]
    for name in range(2 * MOST_NAMES):
        limit.spend(name, 1000.0)
    assert len(limit) <= MOST_NAMES
