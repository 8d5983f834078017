"""What waits goes together, failures stay alone, and nobody is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from halimede.inference import SampleError
from halimede.pipeline.executor import InlinePolicy
from halimede.serving import batch_executor
from halimede.serving.batch_executor import BatchExecutor
from halimede.serving.errors import ExpiredError, ModelFailedError, ModelUnavailableError


class Gate:
    """A model that waits until it may run, and remembers its batches."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.batches: list[list[int]] = []

    def __call__(self, works):
        self.open.wait(30)
        self.batches.append(list(works))
        return [work * 10 for work in works]


@contextlib.contextmanager
def started(gate, most: int = 4, **more) -> Iterator[BatchExecutor]:
    running = BatchExecutor("m", gate, most, **more)
    running.start()
    yield running
    running.close()


@pytest.fixture
async def busy() -> AsyncIterator[tuple[Gate, BatchExecutor, asyncio.Future[int]]]:
    """A model at work on its first request."""
    gate = Gate()
    with started(gate) as running:
        first = running.submit(0, 1)
        while not running.busy_s:
            await asyncio.sleep(0.001)
        yield gate, running, first


async def test_what_waits_while_a_call_is_under_way_goes_together_up_to_the_limit(busy) -> None:
    gate, running, first = busy
    rest = [running.submit(number, 1) for number in (2, 4, 6, 8, 10)]
    gate.open.set()
    assert await asyncio.gather(first, *rest) == [0, 20, 40, 60, 80, 100]
    assert gate.batches == [[0], [2, 4, 6, 8], [10]]
    assert running.waiting == 0


async def test_a_model_that_raises_anything_answers_everybody_with_that() -> None:
    def breaks(works):
        raise SystemExit("no more")

    with started(breaks) as running:
        for _ in range(2):  # and its thread goes on
            with pytest.raises(ModelFailedError, match="SystemExit: no more"):
                await running.submit(1, 1)


async def test_whom_nobody_waits_for_any_more_is_not_run(busy) -> None:
    gate, running, first = busy
    gone, late, last = running.submit(2, 1), running.submit(4, 1, until=0.0), running.submit(6, 1)
    gone.cancel()
    gate.open.set()
    with pytest.raises(ExpiredError):
        await late
    assert (await first, await last) == (0, 60)
    assert gate.batches == [[0], [6]]
    await running.wait_idle()


async def test_more_than_can_wait_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_executor, "MAX_WAITING", 2)
    gate = Gate()
    with started(gate) as running:
        answers = [running.submit(0, 1), running.submit(2, 1)]
        with pytest.raises(ModelUnavailableError, match="2 requests wait for m"):
            running.submit(4, 1)
        gate.open.set()
        await asyncio.gather(*answers)
        assert await running.submit(4, 1) == 40


async def test_several_threads_answer_at_a_time_and_all_end() -> None:
    before, gate = set(threading.enumerate()), Gate()
    with started(gate, most=1, instances=3) as running:
        answers = [running.submit(number, 1) for number in (0, 2, 4)]
        while len(running._began) < 3:
            await asyncio.sleep(0.001)
        gate.open.set()
        await asyncio.gather(*answers)
    for thread in set(threading.enumerate()) - before:
        if thread.name == "model_m":
            await asyncio.to_thread(thread.join, 10)
            assert not thread.is_alive()


async def test_a_slow_call_sends_a_model_back_to_its_threads() -> None:
    with started(Gate(), policy=InlinePolicy(0.01)) as running:
        assert running.is_quick(1)
        assert not running.is_quick(1000)
        assert running.run_inline(lambda: 7, 1) == 7
        running.run_inline(lambda: sum(range(300_000)), 1)
        assert not running.is_quick(1)
        for _ in range(200):
            running.run_inline(lambda: 7, 1)
        assert running.is_quick(1)
        with pytest.raises(ModelFailedError, match="odd"):
            running.run_inline(lambda: (_ for _ in ()).throw(SampleError("odd")), 1)
