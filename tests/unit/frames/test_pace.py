"""A slow model offers few places, takes few samples at once, and starts nothing that cannot be in time."""

from __future__ import annotations

from halimede.frames.pace import Pace


def test_the_first_call_goes_alone_and_all_places_are_offered() -> None:
    pace = Pace(queue=64, batch=32, horizon_s=1.0)
    assert (pace.places, pace.batch) == (64, 1)


def test_places_and_batches_follow_the_models_speed() -> None:
    pace = Pace(queue=64, batch=32, horizon_s=1.0)
    pace.learn(10, 1000)
    assert (pace.places, pace.batch) == (10, 10)
    for _ in range(30):
        pace.learn(10, 10)
    assert (pace.places, pace.batch) == (64, 32)
    for _ in range(30):
        pace.learn(1, 5000)
    assert (pace.places, pace.batch) == (1, 1)


def test_a_sample_is_hopeless_when_even_the_fastest_call_took_longer() -> None:
    pace = Pace(queue=64, batch=32, horizon_s=1.0)
    assert not pace.hopeless(0.001)
    pace.learn(1, 500)
    pace.learn(1, 100)
    assert not pace.hopeless(0.2)
    assert pace.hopeless(0.05)


def test_a_model_that_was_slow_gets_another_chance() -> None:
    pace = Pace(queue=64, batch=32, horizon_s=1.0)
    for _ in range(5):
        pace.learn(1, 1000)
    refused = [pace.hopeless(0.5) for _ in range(6)]
    assert refused == [True] * 5 + [False]
