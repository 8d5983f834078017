"""What would not be back in time stays here, and a way that got better is found again."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from halimede.pipeline.upload_policy.latency_estimator import LatencyEstimator


class Way:
    """A way to the cloud in simulated time: so many seconds, and so many bytes a second; one sample at a time."""

    def __init__(self, fixed_s: float = 0.05, rate: float = 100_000.0) -> None:
        self.fixed_s, self.rate, self.now = fixed_s, rate, 0.0
        self.uplink = LatencyEstimator()
        self.chance = random.Random(1)

    def send(self, size: int, deadline_s: float = 1.0) -> str:
        self.now += 0.2
        if self.uplink.must_withhold(size, deadline_s, self.now):
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


def taught(*answers: tuple[int, float]) -> LatencyEstimator:
    """Return an estimator after these answers, each with its bytes and seconds, one after the other."""
    uplink = LatencyEstimator()
    for size, seconds in answers:
        uplink.end(uplink.begin(size), seconds, 0.0, answered=True)
    return uplink


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
    assert not uplink.must_withhold(10_000, 0.2, 0.0)
    trips = [uplink.begin(10_000) for _ in range(3)]
    assert uplink.must_withhold(10_000, 0.2, 0.0) is False  # the first one that would be late is a probe
    probe = uplink.begin(10_000)
    assert uplink.must_withhold(10_000, 0.2, 0.0)
    for trip in (*trips, probe):
        uplink.end(trip, 0.0, 0.0, answered=False)
    assert not uplink.must_withhold(10_000, 0.2, 0.0)


def test_a_cloud_that_is_silent_altogether_is_the_circuit_breakers_to_judge() -> None:
    uplink = taught(*[(1000, 0.1)] * 10)
    for _ in range(50):
        uplink.end(uplink.begin(1000), 2.0, 0.0, answered=False, timed_out=True)
    assert not uplink.must_withhold(1000, 0.5, 0.0)


def test_what_was_not_sent_teaches_nothing() -> None:
    uplink = LatencyEstimator()
    for _ in range(50):
        uplink.end(uplink.begin(1000), 5.0, 0.0, answered=False)
    assert not uplink.must_withhold(1000, 0.5, 0.0)
    uplink.begin(1000)
    assert not uplink.must_withhold(1000, 0.5, 0.0)  # nor was the first one let through as a probe
    for _ in range(5):
        uplink.end(uplink.begin(1000), 1.0, 0.0, answered=True)
    assert expected_s(uplink, 2000) == pytest.approx(1.0, abs=1e-5)


def test_the_first_upload_is_no_probe() -> None:
    uplink = LatencyEstimator()
    first = uplink.begin(1000)
    assert not first.probe
    uplink.end(first, 1.0, 0.0, answered=False)
    for _ in range(5):
        uplink.end(uplink.begin(1000), 1.0, 0.0, answered=True)
    assert not uplink.must_withhold(1000, 0.5, 0.0), "a probe follows at once"


@pytest.mark.parametrize(("sizes", "expected"), [((1000, 1001), 0.75), ((1000, 1003), 1.5)])
def test_sizes_that_differ_by_a_thousandth_count_as_one(sizes: tuple[int, int], expected: float) -> None:
    uplink = taught(*((size, 1.5) for size in sizes * 20))
    assert expected_s(uplink, sum(sizes) // 4) == pytest.approx(expected, abs=2e-3)


def test_samples_without_bytes_are_expected_after_the_mean() -> None:
    assert expected_s(taught(*[(0, 2.0)] * 5), 1000) == pytest.approx(2.0, abs=1e-5)


def expected_s(uplink: LatencyEstimator, size: int = 1000) -> float:
    """Return the shortest deadline for which a sample is not withheld."""
    low, high = 0.0, 100.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if uplink.must_withhold(size, middle, -1.0) else (low, middle)
    return high


class OneSize:
    """The forgetting mean of answers to samples of one size, and their mean deviation, each by its definition."""

    def __init__(self, *answers: float) -> None:
        self.answers: list[float] = []
        self.deviation = 0.0
        for seconds in answers:
            self.learn(seconds)

    @property
    def mean(self) -> float:
        weights = [0.9**age for age in range(len(self.answers))]
        return sum(map(operator.mul, weights, reversed(self.answers))) / sum(weights)

    def learn(self, seconds: float) -> None:
        if self.answers:
            self.deviation += 0.1 * (abs(seconds - self.mean) - self.deviation)
        self.answers.append(seconds)

    @property
    def expected_s(self) -> float:
        return self.mean - self.deviation


def test_an_answer_is_expected_at_the_recent_mean_less_the_usual_deviation() -> None:
    answers = [1.0] * 5 + [2.0, 0.5, 4.0]
    uplink, expected = taught(*((1000, seconds) for seconds in answers)), OneSize(*answers)
    assert expected_s(uplink) == pytest.approx(expected.expected_s, abs=1e-5)
    assert expected_s(uplink, 500) == pytest.approx(expected.mean / 2 - expected.deviation, abs=1e-5)
    assert expected_s(uplink, 2000) == pytest.approx(expected.expected_s, abs=1e-5)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (lambda size: 0.1 + size / 10_000, lambda size: 0.1 + size / 10_000),
        (lambda size: size / 1000 - 0.5, lambda size: size * 0.5 / 1000),
        (lambda size: 1.5 - size / 10_000, lambda _: 1.4),
    ],
    ids=["a fixed part and bytes", "bytes alone", "no slower if larger"],
)
def test_the_time_of_other_sizes_follows_from_a_line_without_a_negative_part(
    seconds: Callable[[float], float], expected: Callable[[float], float]
) -> None:
    uplink = taught(*((size, seconds(size)) for size in (500, 1500) * 200))
    for size in (500, 1000, 3000):
        assert expected_s(uplink, size) + uplink._deviation == pytest.approx(expected(size), rel=0.06)


def test_a_timeout_counts_as_twice_its_wait_once_another_answer_has_come_and_only_the_last_sixteen() -> None:
    for later, is_learned in ((0, True), (15, True), (16, False)):
        uplink, expected = taught(*[(1000, 1.0)] * 5), OneSize(*[1.0] * 5)
        for waited in (3.0, *[0.1] * later):
            uplink.end(uplink.begin(1000), waited, 0.0, answered=False, timed_out=True)
        assert expected_s(uplink) == pytest.approx(1.0, abs=1e-5)
        if is_learned:
            expected.learn(6.0)
        for _ in range(2):  # the second answer finds no timeout any more
            uplink.end(uplink.begin(1000), 1.0, 0.0, answered=True)
            expected.learn(1.0)
        assert expected_s(uplink) == pytest.approx(expected.expected_s, abs=1e-5)


def test_probes_of_a_slow_uplink_come_later_and_later_until_one_is_answered() -> None:
    uplink, now, times = taught(*[(1000, 1.0)] * 10), 0.0, list[float]()
    while len(times) < 8:
        if uplink.must_withhold(1000, 0.1, now):
            now += 0.5
            continue
        times.append(now)
        uplink.end(uplink.begin(1000), 1.0, now, answered=False, timed_out=True)
    assert [later - earlier for earlier, later in pairwise(times)] == [1, 2, 4, 8, 16, 30, 30]
    now += 30
    assert not uplink.must_withhold(1000, 0.1, now)
    uplink.end(uplink.begin(1000), 0.2, now, answered=True)
    # what was before the probe has a tenth of its weight, and the timeouts are forgotten
    before = sum(0.9**age for age in range(1, 11)) / 10
    mean = (before * 1.0 + 0.2) / (before + 1)
    assert expected_s(uplink) == pytest.approx(mean - 0.1 * (1.0 - 0.2), abs=1e-5)
    assert not uplink.must_withhold(1000, 0.1, now), "the next probe follows at once"
    uplink.end(uplink.begin(1000), 1.0, now, answered=False)
    assert uplink.must_withhold(1000, 0.1, now + 0.9)
    assert not uplink.must_withhold(1000, 0.1, now + 1)
