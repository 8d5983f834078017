"""The queue of keys."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from halimede.errors import HalimedeError
from services.gm.workqueue import WORKERS, WorkQueue

pytestmark = pytest.mark.simulated


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


SPACED = {"spaced": True}


@pytest.mark.parametrize(
    ("work", "added", "done"),
    [
        ({}, [(0, "a", {}), (0, "b", {})] * 5, [(0, "a"), (0, "b")]),
        ({"duration": 2}, [(0, "a", {}), (1, "a", {})], [(0, "a"), (2, "a")]),
        ({}, [(0, "a", {"at": 5}), (0, "a", {"at": 3}), (0, "a", {"at": 7})], [(3, "a")]),
        (
            {"spacing": 1},
            [*((n / 10, "a", SPACED) for n in range(25)), (5, "a", SPACED), (5.5, "a", {})],
            [(0, "a"), (1, "a"), (2, "a"), (3, "a"), (5, "a"), (5.5, "a")],
        ),
        ({"spacing": 1, "duration": 0.3}, [(n / 2, "a", SPACED) for n in range(20)], [(0, "a"), (3, "a"), (6, "a")]),
    ],
    ids=[
        "once, however often it is added", "again, if it is added meanwhile", "at the earliest of its times",
        "with a distance, unless it is urgent", "with more distance, if the work takes long",
    ],
)  # fmt: skip
async def test_a_key_is_worked_on(work: dict[str, float], added: list[Any], done: list[Any]) -> None:
    worker, loop = Worker(**work), asyncio.get_running_loop()
    for after_s, key, options in added:
        loop.call_at(after_s, functools.partial(worker.queue.add, key, **options))
    await worker.run(8)
    assert worker.done == done


async def test_a_failing_key_comes_again_ever_later_and_holds_nobody_up() -> None:
    worker = Worker()
    worker.failures = [HalimedeError("mine"), RuntimeError("a bug"), HalimedeError("mine")]
    worker.queue.add("a")
    await worker.run(3.5)
    assert worker.done == [(0, "a"), (1, "a"), (3, "a")]
    worker.queue.add("b")
    await worker.run(20)
    assert worker.done[3:] == [(3.5, "b"), (7, "a")]


async def test_what_somebody_waits_for_comes_before_what_is_due_already() -> None:
    worker = Worker(duration=1)
    for number in range(20):
        worker.queue.add(f"report-{number:02}")
    asyncio.get_running_loop().call_later(0.5, lambda: worker.queue.add("edit", first=True))
    await worker.run(10)
    assert (1, "edit") in worker.done
    assert worker.done[-1][0] == 2


async def test_keys_that_are_due_pass_and_later_ones_are_not_waited_for() -> None:
    worker = Worker(duration=2)
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(worker.queue.run())
    for number in range(WORKERS + 1):
        worker.queue.add(f"{number}")
    worker.queue.add("later", at=50)
    await worker.queue.let_pass(1)
    assert (len(worker.done), loop.time()) == (WORKERS, 1), "one is still due: the wait ends at its limit"
    await worker.queue.let_pass(10)
    assert (len(worker.done), loop.time()) == (WORKERS + 1, 2)
    running.cancel()
