"""The queue of keys."""

from __future__ import annotations

import asyncio

from halimede.errors import HalimedeError
from services.gm.workqueue import WorkQueue
from tests.simulated import simulated


class Worker:
    """Records (time, key); takes ``duration`` seconds; fails while ``failures`` last."""

    def __init__(self, *, spacing: float = 0.0, duration: float = 0.0) -> None:
        self.queue: WorkQueue[str] = WorkQueue("test", self._work, spacing=spacing)
        self.done: list[tuple[float, str]] = []
        self.duration = duration
        self.failures: list[Exception] = []
        self.active: set[str] = set()

    async def _work(self, key: str) -> None:
        assert key not in self.active, "one key is never worked on twice at a time"
        self.active.add(key)
        self.done.append((round(asyncio.get_running_loop().time(), 3), key))
        await asyncio.sleep(self.duration)
        self.active.discard(key)
        if self.failures:
            raise self.failures.pop()

    async def run(self, seconds: float) -> None:
        task = asyncio.create_task(self.queue.run())
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.wait([task])


@simulated
async def test_a_key_added_many_times_is_worked_on_once() -> None:
    worker = Worker()
    for _ in range(5):
        worker.queue.add("a")
        worker.queue.add("b")
    await worker.run(10)
    assert worker.done == [(0, "a"), (0, "b")]


@simulated
async def test_a_key_added_while_it_is_worked_on_is_worked_on_again_afterwards() -> None:
    worker = Worker(duration=2)
    worker.queue.add("a")
    asyncio.get_running_loop().call_later(1, worker.queue.add, "a")
    await worker.run(10)
    assert worker.done == [(0, "a"), (2, "a")]


@simulated
async def test_an_earlier_time_replaces_a_later_one() -> None:
    worker = Worker()
    worker.queue.add("a", at=5)
    worker.queue.add("a", at=3)
    worker.queue.add("a", at=7)
    await worker.run(10)
    assert worker.done == [(3, "a")]


@simulated
async def test_spaced_keys_keep_their_distance_and_urgent_ones_do_not() -> None:
    worker = Worker(spacing=1)
    loop = asyncio.get_running_loop()
    for n in range(25):
        loop.call_later(n / 10, lambda: worker.queue.add("a", spaced=True))
    loop.call_later(5.0, lambda: worker.queue.add("a", spaced=True))
    loop.call_later(5.5, lambda: worker.queue.add("a"))
    await worker.run(10)
    assert worker.done == [(0, "a"), (1, "a"), (2, "a"), (3, "a"), (5, "a"), (5.5, "a")]


@simulated
async def test_a_failing_key_comes_again_ever_later_and_holds_nobody_up() -> None:
    worker = Worker()
    worker.failures = [HalimedeError("mine"), RuntimeError("a bug"), HalimedeError("mine")]
    worker.queue.add("a")
    await worker.run(3.5)
    assert worker.done == [(0, "a"), (1, "a"), (3, "a")]
    worker.queue.add("b")
    await worker.run(20)
    assert worker.done[3:] == [(3.5, "b"), (7, "a")]


@simulated
async def test_a_slow_key_does_not_stop_the_others() -> None:
    worker = Worker(duration=5)
    for key in "abc":
        worker.queue.add(key)
    await worker.run(1)
    assert [key for _, key in worker.done] == ["a", "b", "c"]


@simulated
async def test_what_somebody_waits_for_comes_before_what_is_due_already() -> None:
    worker = Worker(duration=1)
    for number in range(20):
        worker.queue.add(f"report-{number:02}")
    asyncio.get_running_loop().call_later(0.5, lambda: worker.queue.add("edit", first=True))
    await worker.run(10)
    assert (1, "edit") in worker.done
    assert worker.done[-1][0] == 2


@simulated
async def test_work_that_takes_long_is_spaced_further() -> None:
    worker = Worker(spacing=1, duration=0.3)
    for second in range(20):
        asyncio.get_running_loop().call_later(second / 2, lambda: worker.queue.add("a", spaced=True))
    await worker.run(8)
    assert [at for at, _ in worker.done] == [0, 3, 6]
