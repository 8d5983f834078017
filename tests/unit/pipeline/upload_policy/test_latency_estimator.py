"""What would not be back in time stays here, and a way that got better is found again."""

from __future__ import annotations

import random
from collections.abc import Callable

from halimede.pipeline.upload_policy.latency_estimator import LEAST, LatencyEstimator


class Way:
    """A way to the cloud in simulated time: so many seconds, and so many bytes a second; one sample at a time."""

    def __init__(self, fixed_s: float = 0.05, rate: float = 100_000.0) -> None:
        self.fixed_s, self.rate, self.now = fixed_s, rate, 0.0
        self.uplink = LatencyEstimator()
        self.chance = random.Random(1)

    def send(self, size: int, deadline_s: float = 1.0) -> str:
        self.now += 0.2
        if self.uplink.hopeless(size, deadline_s, self.now):
            return "withheld"
        trip = self.uplink.begin(size)
        took = self.fixed_s * self.chance.uniform(0.8, 1.2) + size / self.rate
        waited = min(took, deadline_s)
        self.now += waited
        answered = took <= deadline_s
        self.uplink.end(trip, waited, self.now, answered=answered, timed_out=not answered)
        return "answered" if answered else "late"

    def outcomes(self, n: int, size: Callable[[], int]) -> list[str]:
        return [self.send(size()) for _ in range(n)]


def test_before_anything_is_known_everything_goes_up() -> None:
    way = Way(rate=1000.0)
    assert "withheld" not in way.outcomes(LEAST, lambda: 10_000)


def test_large_samples_are_withheld_from_a_way_that_small_ones_get_over() -> None:
    way = Way()
    sizes = random.Random(2)
    way.outcomes(20, lambda: sizes.randrange(1_000, 60_000))
    assert set(way.outcomes(20, lambda: 50_000)) == {"answered"}
    large = way.outcomes(50, lambda: 300_000)
    assert large.count("late") <= 10  # probes
    assert set(way.outcomes(20, lambda: 2_000)) == {"answered"}


def test_a_way_that_got_slow_is_given_up_and_found_again_by_probes() -> None:
    way, sizes = Way(), random.Random(2)
    assert set(way.outcomes(50, lambda: 30_000)) == {"answered"}
    way.rate = 20_000.0
    slow = way.outcomes(200, lambda: sizes.choice([2_000, 30_000]))
    assert slow.count("withheld") > slow.count("late")
    assert "withheld" not in [way.send(2_000) for _ in range(20)]
    way.rate = 100_000.0
    way.outcomes(200, lambda: 30_000)
    assert set(way.outcomes(20, lambda: 30_000)) == {"answered"}


def test_what_is_under_way_already_goes_first() -> None:
    uplink = LatencyEstimator()
    for _ in range(10):  # alone, 10,000 bytes take 0.15 s; behind another such sample 0.25 s
        first, second = uplink.begin(10_000), uplink.begin(10_000)
        uplink.end(first, 0.15, 0.0, answered=True)
        uplink.end(second, 0.25, 0.0, answered=True)
    assert not uplink.hopeless(10_000, 0.2, 0.0)
    trips = [uplink.begin(10_000) for _ in range(3)]
    assert uplink.hopeless(10_000, 0.2, 0.0) is False  # the first one that would be late is a probe
    probe = uplink.begin(10_000)
    assert uplink.hopeless(10_000, 0.2, 0.0)
    for trip in (*trips, probe):
        uplink.end(trip, 0.0, 0.0, answered=False)
    assert not uplink.hopeless(10_000, 0.2, 0.0)


def test_a_cloud_that_is_silent_altogether_is_the_circuit_breakers_to_judge() -> None:
    uplink = LatencyEstimator()
    for _ in range(10):
        uplink.end(uplink.begin(1000), 0.1, 0.0, answered=True)
    for _ in range(50):
        uplink.end(uplink.begin(1000), 2.0, 0.0, answered=False, timed_out=True)
    assert not uplink.hopeless(1000, 0.5, 0.0)


def test_what_was_not_sent_teaches_nothing() -> None:
    uplink = LatencyEstimator()
    for _ in range(50):
        uplink.end(uplink.begin(1000), 5.0, 0.0, answered=False)
    assert not uplink.hopeless(1000, 0.5, 0.0)
    uplink.begin(1000)
    assert not uplink.hopeless(1000, 0.5, 0.0)  # nor was the first one let through as a probe
