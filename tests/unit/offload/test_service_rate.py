"""A slow model offers few places, takes few samples at once, and starts nothing that cannot be in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.offload.service_rate import UNKNOWN, ServiceRate


def test_before_the_first_call_few_places_are_offered_and_it_goes_alone() -> None:
    pace = ServiceRate(queue=64, batch=32, horizon_s=1.0)
    assert (pace.places, pace.batch) == (UNKNOWN, 1)
    assert ServiceRate(queue=2, batch=32, horizon_s=1.0).places == 2
    assert ServiceRate(queue=64, batch=32, horizon_s=1.0, lanes=2).places == 2 * UNKNOWN
    assert not pace.late(UNKNOWN, 0.1), "how long it takes is not known"


def test_a_faster_second_call_replaces_the_first_one() -> None:
    pace = ServiceRate(queue=64, batch=32, horizon_s=1.0)
    pace.learn(1, 3000)
    assert pace.service_ms == 3000
    pace.learn(1, 2)
    assert pace.service_ms == 2
    pace.learn(1, 12)
    assert pace.service_ms == pytest.approx(5), "from then on the mean of calls"


def test_a_slower_second_call_does_not_replace_the_first_one() -> None:
    pace = ServiceRate(queue=64, batch=32, horizon_s=1.0)
    pace.learn(1, 2)
    pace.learn(1, 3000)
    assert pace.service_ms == 2


def test_places_and_batches_follow_the_models_speed() -> None:
    pace = ServiceRate(queue=64, batch=32, horizon_s=1.0)
    for samples in (1, 2, 3, 2, 1):
        pace.learn(samples, 100 * samples)
    assert (pace.places, pace.batch) == (10, 10)
    for _ in range(30):
        pace.learn(10, 10)
    assert (pace.places, pace.batch) == (64, 32)
    for _ in range(30):
        pace.learn(1, 5000)
    assert (pace.places, pace.batch) == (1, 1)


def test_a_model_that_batches_well_is_offered_more_than_its_single_calls_suggest() -> None:
    pace = ServiceRate(queue=64, batch=32, horizon_s=1.0)
    pace.learn(1, 190)
    first = pace.places
    pace.learn(2, 191)
    assert 1 < first < pace.places == 64
    assert pace.takes_ms(32) == pytest.approx(221, abs=2)


def test_places_are_offered_for_what_can_be_in_time() -> None:
    pace = ServiceRate(queue=64, batch=32, horizon_s=1.0)
    for _ in range(200):
        pace.late(0, 0.5)
    for samples in (1, 2, 1):
        pace.learn(samples, 100 * samples)
    assert pace.places == 5
    pace.late(0, 30.0)
    pace.learn(1, 100)
    assert pace.places == 10, "one sample with more time is enough to know of it"


def test_a_sample_is_late_where_those_before_it_take_its_time_and_never_where_there_are_none() -> None:
    pace = ServiceRate(queue=64, batch=1, horizon_s=1.0)
    pace.learn(1, 100)
    assert not pace.late(3, 0.5)
    assert pace.late(4, 0.5)
    assert not pace.late(0, 0.01)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0, 1e6)), min_size=1, max_size=80), st.integers(1, 4))
def test_what_it_expects_grows_with_the_samples_and_there_is_always_a_place(
    calls: list[tuple[int, float]], lanes: int
) -> None:
    pace = ServiceRate(queue=64, batch=32, horizon_s=1.0, lanes=lanes)
    for samples, ms in calls:
        pace.learn(samples, ms)
        assert 1 <= pace.places <= 64
        expected = [pace.takes_ms(samples) for samples in range(1, 65)]
        assert expected == sorted(expected)
        assert expected[0] >= 0


def test_a_sample_is_hopeless_when_even_the_fastest_call_took_longer() -> None:
    pace = ServiceRate(queue=64, batch=32, horizon_s=1.0)
    assert not pace.hopeless(0.001)
    pace.learn(1, 500)
    pace.learn(1, 100)
    assert not pace.hopeless(0.2)
    assert pace.hopeless(0.05)


def test_a_model_that_was_slow_gets_another_chance() -> None:
    pace = ServiceRate(queue=64, batch=32, horizon_s=1.0)
    for _ in range(5):
        pace.learn(1, 1000)
    refused = [pace.hopeless(0.5) for _ in range(6)]
    assert refused == [True] * 5 + [False]
