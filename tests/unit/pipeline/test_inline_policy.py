"""Which calls may run on the event loop, decided from the CPU time of the calls so far."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.pipeline.executor import InlinePolicy
from tests.unit.pipeline.answering import SHORT_CALLS, short

#: stated here again, so that a change in the product is noticed
SHORT_MS, LONG_MS, BLOCK_MS = 0.3, 2.0, 1.0
ADDED_MS = 0.001


def test_calls_are_short_once_enough_of_them_were() -> None:
    policy = InlinePolicy()
    for _ in range(SHORT_CALLS - 1):
        policy.learn(1, 0.05)
    assert policy.max_samples == 0
    policy.learn(1, 0.05)
    assert policy.max_samples >= 10


@pytest.mark.parametrize(("first_ms", "samples"), [(0.05, 19), (SHORT_MS, 3), (1.1 * SHORT_MS, 0), (50.0, 0)])
def test_a_measured_model_starts_on_the_loop_where_its_measurement_is_short(first_ms: float, samples: int) -> None:
    assert InlinePolicy(first_ms).max_samples == samples


@given(st.none() | st.floats(0, 100), st.lists(st.tuples(st.integers(0, 64), st.floats(0, 100)), max_size=200))
def test_what_may_run_on_the_loop_is_bounded_whatever_was_measured(
    first_ms: float | None, calls: list[tuple[int, float]]
) -> None:
    policy = InlinePolicy(first_ms)
    for samples, ms in calls:
        policy.learn(samples, ms)
        assert 0 <= policy.max_samples <= BLOCK_MS / ADDED_MS
        if ms / max(samples, 1) > LONG_MS:
            assert policy.max_samples == 0


def test_each_call_moves_the_mean_by_a_tenth() -> None:
    policy = InlinePolicy(0.05)
    policy.learn(1, 0.25)
    assert policy.max_samples == int(1 / 0.071)
    policy.learn(4, 4 * 0.25)
    assert policy.max_samples == int(1 / 0.089)


@pytest.mark.parametrize(
    ("max_samples", "mean_ms", "sample_ms", "then"),
    [
        (0, 0.3, 0.3, 3),
        (0, 0.31, 0.31, 0),
        (4, 0.6, 0.6, 1),
        (4, 0.61, 0.61, 0),
        (4, 0.05, LONG_MS, 4),
        (4, 0.05, LONG_MS + 0.001, 0),
    ],
)
def test_calls_begin_up_to_the_short_mean_and_end_above_twice_that_or_after_a_long_one(
    max_samples: int, mean_ms: float, sample_ms: float, then: int
) -> None:
    policy = short()
    policy.max_samples, policy._mean_ms = max_samples, mean_ms
    policy.learn(1, sample_ms)
    assert policy.max_samples == then


def test_of_a_model_without_a_trial_the_short_mean_is_assumed() -> None:
    policy = InlinePolicy()
    policy.learn(1, SHORT_MS)
    assert policy._mean_ms == SHORT_MS
