"""A slow model offers few places, takes few samples at once, and starts nothing that cannot be in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.offload.service_rate import FIRST_CAPACITY, ServiceRate


def rate(*calls_ms: float, **settings: int) -> ServiceRate:
    """Return the rate of a model after calls of one sample each."""
    pace = ServiceRate(**{"queue": 64, "batch": 32, **settings}, horizon_s=1.0)
    for ms in calls_ms:
        pace.learn(1, ms)
    return pace


def test_before_the_first_call_few_places_are_offered_and_it_goes_alone() -> None:
    pace = rate()
    assert (pace.capacity, pace.batch) == (FIRST_CAPACITY, 1)
    assert rate(queue=2).capacity == 2
    assert rate(lanes=2).capacity == 2 * FIRST_CAPACITY
    assert not pace.is_late(FIRST_CAPACITY, 0.1), "how long it takes is not known"


@pytest.mark.parametrize(
    ("calls_ms", "service_ms"),
    [([3000], 3000), ([3000, 2], 2), ([2, 3000], 2), ([3000, 2, 12], 5)],  # from the third on the mean of calls
)
def test_the_faster_one_of_the_first_two_calls_counts(calls_ms: list[float], service_ms: float) -> None:
    assert rate(*calls_ms).service_ms == pytest.approx(service_ms)


def test_places_and_batches_follow_the_models_speed() -> None:
    pace = rate()
    for samples in (1, 2, 3, 2, 1):
        pace.learn(samples, 100 * samples)
    assert (pace.capacity, pace.batch) == (10, 10)
    for _ in range(30):
        pace.learn(10, 10)
    assert (pace.capacity, pace.batch) == (64, 32)
    for _ in range(30):
        pace.learn(1, 5000)
    assert (pace.capacity, pace.batch) == (1, 1)


def test_a_model_that_batches_well_is_offered_more_than_its_single_calls_suggest() -> None:
    pace = rate(190)
    first = pace.capacity
    pace.learn(2, 191)
    assert 1 < first < pace.capacity == 64
    assert pace.takes_ms(32) == pytest.approx(221, abs=2)


def test_places_are_offered_for_what_can_be_in_time() -> None:
    pace = rate()
    for _ in range(200):
        pace.is_late(0, 0.5)
    for samples in (1, 2, 1):
        pace.learn(samples, 100 * samples)
    assert pace.capacity == 5
    pace.is_late(0, 30.0)
    pace.learn(1, 100)
    assert pace.capacity == 10, "one sample with more time is enough to know of it"


def test_a_sample_is_late_where_those_before_it_take_its_time_and_never_where_there_are_none() -> None:
    pace = rate(100, batch=1)
    assert not pace.is_late(3, 0.5)
    assert pace.is_late(4, 0.5)
    assert not pace.is_late(0, 0.01)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0, 1e6)), min_size=1, max_size=80), st.integers(1, 4))
def test_what_it_expects_grows_with_the_samples_and_there_is_always_a_place(
    calls: list[tuple[int, float]], lanes: int
) -> None:
    pace = rate(lanes=lanes)
    for samples, ms in calls:
        pace.learn(samples, ms)
        assert 1 <= pace.capacity <= 64
        expected = [pace.takes_ms(samples) for samples in range(1, 65)]
        assert expected == sorted(expected)
        assert expected[0] >= 0


def test_a_sample_is_hopeless_when_even_the_fastest_call_took_longer() -> None:
    assert not rate().is_hopeless(0.001)
    pace = rate(500, 100)
    assert not pace.is_hopeless(0.2)
    assert pace.is_hopeless(0.05)


def test_a_model_that_was_slow_gets_another_chance() -> None:
    pace = rate(*[1000] * 5)
    refused = [pace.is_hopeless(0.5) for _ in range(6)]
    assert refused == [True] * 5 + [False]
