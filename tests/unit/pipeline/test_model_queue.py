"""The queue before a model: batches within their bounds, deadlines first, and memory that comes back."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from halimede.offload.service_rate import ServiceRate
from halimede.pipeline.model_queue import BATCH_PIXELS, MemoryBudget, ModelQueue
from halimede.pipeline.sample import Sample
from halimede.tracing import TraceBuffer
from tests.simulated import simulated
from tests.unit.frames.clouds import frame
from tests.waiting import patience


class Patient:
    """An intake whose samples wait for ever."""

    drops_late = False


class Hasty:
    """An intake whose samples are let go when it is too late for them."""

    drops_late = True


def rate(ms: float = 0.0) -> ServiceRate:
    known = ServiceRate(queue=64, batch=32, horizon_s=1.0)
    for _ in range(8):
        if ms:
            known.learn(1, ms)
    return known


def queue_of(*samples: Sample, ms: float = 0.0) -> ModelQueue:
    queue = ModelQueue(rate(ms))
    queue.waiting.extend(samples)
    return queue


def sample(
    value: int = 1, *, until: float = math.inf, pixels: int = 0, intake: Any = Hasty, stays: bool = False
) -> Sample:
    body = frame(value)
    return Sample(body, intake(), TraceBuffer().begin(body.id), 0.0, until, 0.0, pixels=pixels, stays=stays)


def test_samples_that_are_too_old_leave_the_queue_and_make_room_in_the_batch() -> None:
    samples = [sample(value, intake=Patient) for value in range(5)]
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
    late, soon, patient = sample(until=1.0), sample(until=9.0), sample(until=1.0, intake=Patient)
    assert queue_of(late, soon, patient).next(1.0, 9) == ([soon, patient], [late], [])


def test_what_even_the_fastest_call_cannot_answer_in_time_is_let_go() -> None:
    hopeless, fine = sample(until=0.05), sample(until=9.0)
    assert queue_of(hopeless, fine, ms=100.0).next(0.0, 9) == ([fine], [], [hopeless])


def test_a_batch_does_not_grow_beyond_what_its_most_urgent_sample_has_time_for() -> None:
    urgent, others = sample(until=0.25), [sample(until=9.0) for _ in range(8)]
    batch, late, hopeless = queue_of(urgent, *others, ms=100.0).next(0.0, 9)
    assert batch[0] is urgent
    assert 1 < len(batch) < 5
    assert (late, hopeless) == ([], [])


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
    assert queue.withdraw(lambda: True) is second
    assert queue.withdraw(lambda: True) is None
    assert list(queue.waiting) == [first, stays]


@simulated
async def test_memory_is_taken_in_order_of_arrival_and_within_its_limit() -> None:
    budget, taken = MemoryBudget(10), []

    async def take(name: str, size: int) -> None:
        await budget.take(size)
        taken.append(name)

    async with asyncio.TaskGroup() as group:
        for name, size in (("a", 6), ("b", 4), ("c", 5), ("d", 1)):
            group.create_task(take(name, size))
        await asyncio.sleep(1)
        assert (taken, budget.taken) == (["a", "b"], 10)
        assert not budget.take_now(0)  # somebody waits
        budget.give(4)
        await asyncio.sleep(1)
        assert taken == ["a", "b"]  # the small one does not pass the one before it
        budget.give(6)
        await asyncio.sleep(1)
        assert (taken, budget.taken) == (["a", "b", "c", "d"], 6)
    assert budget.take_now(4)
    assert not budget.take_now(1)


@simulated
async def test_what_is_larger_than_the_limit_is_let_in_alone() -> None:
    budget = MemoryBudget(10)
    async with asyncio.timeout(patience(1)):
        await budget.take(50)
    assert not budget.take_now(1)
    budget.give(50)
    assert budget.take_now(50)
