"""The queue before a model: batches within their bounds, deadlines first, and memory that comes back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from halimede.offload.service_rate import ServiceRate
from halimede.pipeline.model_queue import MemoryBudget, ModelQueue
from halimede.pipeline.sample import Sample
from tests.unit.frames.clouds import frame
from tests.unit.pipeline.answering import new_sample
from tests.waiting import patience

pytestmark = pytest.mark.simulated

#: stated here again, so that a change in the product is noticed
BATCH_PIXELS = 256 * 1024 * 1024


def rate(ms: float = 0.0) -> ServiceRate:
    known = ServiceRate(queue=64, batch=32, horizon_s=1.0)
    for _ in range(8 if ms else 0):
        known.learn(1, ms)
    return known


def queue_of(*samples: Sample, ms: float = 0.0) -> ModelQueue:
    queue = ModelQueue(rate(ms), 0.0)
    queue.waiting.extend(samples)
    return queue


def sample(value: int = 1, *, drops_late: bool = True, **fields: Any) -> Sample:
    """Return a sample that may leave; it is let go when it is too late for it, unless its intake keeps it."""
    return new_sample(frame(value), SimpleNamespace(drops_late=drops_late), **{"stays": False, **fields})


def test_samples_that_are_too_old_leave_the_queue_and_make_room_in_the_batch() -> None:
    samples = [sample(value, drops_late=False) for value in range(5)]
    for number, stale_at in enumerate((1.0, 3.0, 2.0, 3.0)):
        samples[number].stale_at = stale_at
    queue = queue_of(*samples, ms=500.0)
    assert queue.next(2.0, 2) == ([samples[1], samples[3]], [samples[0], samples[2]], [])
    assert queue.next(2.0, 2) == ([samples[4]], [], [])


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
def test_a_batch_is_the_first_in_order_and_never_more_than_its_limit(limit: int) -> None:
    samples = [sample(value) for value in range(5)]
    queue = queue_of(*samples)
    assert queue.next(0.0, limit) == (samples[:limit], [], [])
    assert list(queue.waiting) == samples[limit:]


def test_the_pixels_of_a_batch_are_bounded_and_one_that_is_larger_goes_alone() -> None:
    half, large = BATCH_PIXELS // 2, 2 * BATCH_PIXELS
    samples = [sample(pixels=pixels) for pixels in (half, half, 1, large, 1)]
    queue = queue_of(*samples)
    assert [queue.next(0.0, 9)[0] for _ in range(4)] == [samples[:2], samples[2:3], samples[3:4], samples[4:]]


def test_what_nobody_waits_for_any_more_is_not_computed_and_what_is_patient_always_is() -> None:
    late, soon, patient = sample(until=1.0), sample(until=9.0), sample(until=1.0, drops_late=False)
    assert queue_of(late, soon, patient).next(1.0, 9) == ([soon, patient], [late], [])


def test_what_even_the_fastest_call_cannot_answer_in_time_is_let_go() -> None:
    hopeless, fine = sample(until=0.05), sample(until=9.0)
    assert queue_of(hopeless, fine, ms=100.0).next(0.0, 9) == ([fine], [], [hopeless])


@pytest.mark.parametrize(("share", "size"), [(1.0, 3), (0.9995, 2)])
def test_a_batch_grows_while_its_call_ends_by_the_nearest_deadline(share: float, size: int) -> None:
    until = rate(100.0).takes_ms(3) / 1000 * share
    for samples in ([sample(until=until)] * 5, [sample(until=9.0), sample(until=until), *[sample(until=9.0)] * 3]):
        assert queue_of(*samples, ms=100.0).next(0.0, 9) == (samples[:size], [], [])


def test_a_batch_that_was_not_run_waits_again_in_its_order_before_all_others() -> None:
    samples = [sample(value) for value in range(4)]
    queue = queue_of(*samples)
    batch, _, _ = queue.next(0.0, 3)
    queue.put_back(batch)
    assert list(queue.waiting) == samples


def test_a_peer_is_given_the_newest_that_may_leave_and_never_the_next_one() -> None:
    first, second, stays = sample(1), sample(2), sample(3, stays=True)
    queue = queue_of(first, second, stays)
    assert queue.withdraw(lambda: False) is None
    questions: list[None] = []
    assert queue_of(*(sample() for _ in range(4))).withdraw(lambda: questions.append(None)) is None
    assert len(questions) == 1, "a peer that has no room for the newest has none for an older one"
    assert queue.withdraw(lambda: True) is second
    assert queue.withdraw(lambda: True) is None
    assert list(queue.waiting) == [first, stays]


@pytest.mark.parametrize(
    ("waited_s", "deadline_s", "seconds"), [(0.0, 10.0, 1.0), (0.0, 1.0, 0.5), (0.25, 10.0, 0.75), (2.0, 10.0, 0.0)]
)
async def test_a_batch_waits_to_be_filled_for_its_delay_or_half_of_the_time_of_its_first_sample(
    waited_s: float, deadline_s: float, seconds: float
) -> None:
    loop, queue = asyncio.get_running_loop(), ModelQueue(rate(1.0), 1.0)
    first, second = sample(until=deadline_s - waited_s), sample(until=0.0)
    first.accepted = -waited_s
    queue.waiting.extend([first, second])
    async with asyncio.timeout(2):
        await queue.arrival()
    assert loop.time() == seconds


async def test_a_batch_that_is_full_waits_no_longer_and_has_one_consumer() -> None:
    loop, known = asyncio.get_running_loop(), ServiceRate(queue=64, batch=3, horizon_s=1.0)
    known.learn(1, 1.0)
    queue = ModelQueue(known, 1.0)
    consumers = [asyncio.create_task(queue.arrival()) for _ in range(2)]
    for are_done in (False, False, True):
        await asyncio.sleep(0.25)
        queue.waiting.append(sample())
        queue.wake()
        await asyncio.sleep(0.0625)
        assert [consumer.done() for consumer in consumers] == [are_done, False]
    assert len(queue.next(loop.time(), 3)[0]) == 3
    queue.waiting.extend(sample() for _ in range(4))
    queue.wake()
    began = loop.time()
    await consumers[1]
    assert loop.time() == began, "more than a batch waits"


async def test_one_idle_consumer_is_woken_at_a_time_and_none_that_was_cancelled() -> None:
    queue = ModelQueue(rate(), 0.0)
    consumers = [asyncio.create_task(queue.arrival()) for _ in range(4)]
    await asyncio.sleep(0)
    for woken in (0, 2):
        queue.waiting.append(sample())
        if woken:
            consumers[1].cancel()
        queue.wake()
        await asyncio.sleep(0.1)
        assert [consumer.done() for consumer in consumers] == [True, woken > 0, woken > 0, False]
    queue.waiting.clear()
    queue.wake()
    queue.wake()
    await asyncio.sleep(0.1)
    assert not consumers[3].done()
    consumers[3].cancel()


async def test_memory_is_taken_in_order_of_arrival_and_within_its_limit() -> None:
    budget, taken = MemoryBudget(10), []

    async def take(name: str, size: int) -> None:
        await budget.take(size)
        taken.append(name)

    async with asyncio.TaskGroup() as group:
        for name, size in (("a", 6), ("b", 4), ("c", 5), ("d", 1)):
            group.create_task(take(name, size))
        await asyncio.sleep(1)
        assert (taken, budget.used) == (["a", "b"], 10)
        assert not budget.take_now(0)  # somebody waits
        budget.give(4)
        await asyncio.sleep(1)
        assert taken == ["a", "b"]  # the small one does not pass the one before it
        budget.give(6)
        await asyncio.sleep(1)
        assert (taken, budget.used) == (["a", "b", "c", "d"], 6)
    assert budget.take_now(4)
    assert not budget.take_now(1)


async def test_what_is_larger_than_the_limit_is_let_in_alone() -> None:
    budget = MemoryBudget(10)
    async with asyncio.timeout(patience(1)):
        await budget.take(50)
    assert not budget.take_now(1)
    budget.give(50)
    assert budget.take_now(50)
