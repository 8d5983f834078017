"""Which calls may run on the event loop, decided from the CPU time of the calls so far."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.pipeline.executor import BLOCK_MS, ENOUGH, LEAST_MS, LONGEST_MS, SHORT_MS, InlinePolicy


def short() -> InlinePolicy:
    policy = InlinePolicy()
    for _ in range(ENOUGH):
        policy.learn(1, 0.05)
    return policy


def test_calls_are_short_once_enough_of_them_were() -> None:
    policy = InlinePolicy()
    for _ in range(ENOUGH - 1):
        policy.learn(1, 0.05)
    assert policy.max_samples == 0
    policy.learn(1, 0.05)
    assert policy.max_samples >= 10


def test_a_single_long_call_means_that_they_are_not() -> None:
    policy = short()
    policy.learn(4, 4 * LONGEST_MS + 1)
    assert policy.max_samples == 0


def test_calls_that_become_longer_are_noticed_and_a_little_does_not_matter() -> None:
    policy = short()
    for _ in range(100):
        policy.learn(1, 1.5 * SHORT_MS)
    assert policy.max_samples >= 1
    for _ in range(100):
        policy.learn(1, 2.5 * SHORT_MS)
    assert policy.max_samples == 0


@pytest.mark.parametrize(("first_ms", "samples"), [(0.05, 19), (SHORT_MS, 3), (1.1 * SHORT_MS, 0), (50.0, 0)])
def test_a_measured_model_starts_on_the_loop_where_its_measurement_is_short(first_ms: float, samples: int) -> None:
    assert InlinePolicy(first_ms).max_samples == samples


def test_a_model_that_measured_short_leaves_the_loop_after_one_long_call_and_comes_back() -> None:
    policy = InlinePolicy(0.05)
    policy.learn(1, LONGEST_MS + 1)
    assert policy.max_samples == 0
    for _ in range(ENOUGH):
        policy.learn(1, 0.05)
    assert policy.max_samples >= 1


@given(st.none() | st.floats(0, 100), st.lists(st.tuples(st.integers(0, 64), st.floats(0, 100)), max_size=200))
def test_what_may_run_on_the_loop_is_bounded_whatever_was_measured(
    first_ms: float | None, calls: list[tuple[int, float]]
) -> None:
    policy = InlinePolicy(first_ms)
    for samples, ms in calls:
        policy.learn(samples, ms)
        assert 0 <= policy.max_samples <= BLOCK_MS / LEAST_MS
        if ms / max(samples, 1) > LONGEST_MS:
            assert policy.max_samples == 0
