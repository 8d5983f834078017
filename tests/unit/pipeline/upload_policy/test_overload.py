"""Overload of the next tier begins within seconds, has figures, and ends when what is hard is answered again."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.pipeline.upload_policy.overload import HardTotals, OverloadDetector

#: stated here again, so that a change in the product is noticed
WINDOW_S = 10.0


class Stream:
    """Totals of a stream of hard samples, read once a second. ``overloaded``: it has begun with an overload."""

    def __init__(self, *, overloaded: bool = False) -> None:
        self.detector = OverloadDetector()
        self.now, self.totals = 0.0, HardTotals()
        self.detector.read(self.totals, self.now)
        if overloaded:
            assert self.seconds(5, 9, 1) == [False, False, True, True, True]

    def second(self, hard: int, answered: int, unanswered: int = 0) -> bool:
        """Go on for a second; return whether the next tier is overloaded."""
        self.now += 1
        total, refused = self.totals, hard - answered - unanswered
        self.totals = HardTotals(
            total.hard + hard, total.answered + answered, total.refused + refused, total.unanswered + unanswered
        )
        self.detector.read(self.totals, self.now)
        return self.detector.is_overloaded

    def seconds(self, count: int, *counts: int) -> list[bool]:
        """Go on for several of the same seconds."""
        return [self.second(*counts) for _ in range(count)]


def test_it_begins_within_seconds_with_both_rates_and_ends_a_window_later() -> None:
    stream = Stream(overloaded=True)
    assert (stream.detector.hard_per_s, stream.detector.answered_per_s) == (9, 1)
    ended = stream.seconds(30, 9, 9)
    assert ended[: int(WINDOW_S) - 2] == [True] * (int(WINDOW_S) - 2)
    assert not any(ended[int(WINDOW_S) :])


def test_it_ends_when_nothing_is_hard_any_more() -> None:
    assert not Stream(overloaded=True).seconds(15, 0, 0)[-1]


def test_it_continues_with_unanswered_samples_but_does_not_begin_with_them() -> None:
    stream = Stream()
    assert not any(stream.seconds(30, 9, 0, 9))
    assert stream.seconds(5, 9, 1)[-1]
    assert all(stream.seconds(30, 9, 0, 9))
    assert not stream.seconds(15, 9, 9)[-1]


@given(st.lists(st.integers(5, 15), min_size=60, max_size=60))
def test_it_does_not_flap_while_the_refused_share_is_between_the_limits(hard: list[int]) -> None:
    stream = Stream()
    states = [stream.second(each, each - 1) for each in hard]  # 7 to 20 % of each second
    assert sum(before != after for before, after in pairwise(states)) <= 1


def test_it_begins_with_a_fifth_of_the_hard_samples_and_with_three_at_least() -> None:
    for hard, answered, begins in ((10, 8, True), (100, 81, False), (1, 0, True)):
        assert Stream().seconds(3, hard, answered) == [False, False, begins]
    stream = Stream()
    assert not any([*stream.seconds(2, 1, 0), *stream.seconds(2, 0, 0)])


def test_it_ends_when_less_than_a_twentieth_of_a_whole_window_is_not_answered() -> None:
    for answered, ends in ((95, False), (96, True)):
        stream = Stream()
        assert stream.seconds(3, 100, 0)[-1]
        assert stream.seconds(30, 100, answered)[-1] is not ends


def test_nothing_is_counted_at_first_and_a_sample_for_ten_seconds() -> None:
    stream = Stream()
    assert HardTotals() == HardTotals(hard=0, answered=0, refused=0, unanswered=0)
    assert (stream.detector.hard_per_s, stream.detector.answered_per_s) == (0, 0)
    rates = []
    for second in range(12):
        stream.second(10 * (second == 0), 10 * (second == 0))
        rates.append((stream.detector.hard_per_s, stream.detector.answered_per_s))
    assert rates[:3] == [(0, 0), (0, 0), pytest.approx((10 / 3, 10 / 3))]
    assert rates[9:] == [(1, 1), (0, 0), (0, 0)]


def test_it_goes_on_until_ten_seconds_are_counted() -> None:
    stream = Stream()
    assert stream.seconds(3, 1, 0)[-1]
    assert stream.seconds(7, 100, 100) == [True] * 6 + [False]


def test_of_readings_with_longer_pauses_the_last_two_count() -> None:
    detector = OverloadDetector()
    for now, hard in ((0.0, 0), (11.0, 110), (31.0, 150)):
        detector.read(HardTotals(hard), now)
    assert detector.hard_per_s == (150 - 110) / (31 - 11)
