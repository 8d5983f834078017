"""Overload of the next tier begins within seconds, has figures, and ends when what is hard is answered again."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from halimede.pipeline.upload_policy.overload import WINDOW_S, HardTotals, OverloadDetector


class Stream:
    """Totals of a stream of hard samples, read once a second."""

    def __init__(self) -> None:
        self.detector = OverloadDetector()
        self.now, self.totals = 0.0, HardTotals()
        self.detector.read(self.totals, self.now)

    def second(self, hard: int, answered: int, unanswered: int = 0) -> bool:
        """Go on for a second; return whether the next tier is overloaded."""
        self.now += 1
        total = self.totals
        self.totals = HardTotals(
            total.hard + hard,
            total.answered + answered,
            total.refused + hard - answered - unanswered,
            total.unanswered + unanswered,
        )
        self.detector.read(self.totals, self.now)
        return self.detector.overloaded


def test_it_begins_within_seconds_with_both_rates_and_ends_a_window_later() -> None:
    stream = Stream()
    began = [stream.second(9, 1) for _ in range(5)]
    assert began == [False, False, True, True, True]
    assert (stream.detector.hard_per_s, stream.detector.answered_per_s) == (9, 1)
    ended = [stream.second(9, 9) for _ in range(30)]
    assert ended[: int(WINDOW_S) - 2] == [True] * (int(WINDOW_S) - 2)
    assert not any(ended[int(WINDOW_S) :])


def test_it_ends_when_nothing_is_hard_any_more() -> None:
    stream = Stream()
    assert [stream.second(9, 1) for _ in range(5)][-1]
    assert not [stream.second(0, 0) for _ in range(15)][-1]


def test_it_continues_with_unanswered_samples_but_does_not_begin_with_them() -> None:
    stream = Stream()
    assert not any(stream.second(9, 0, 9) for _ in range(30))
    assert [stream.second(9, 1) for _ in range(5)][-1]
    assert all(stream.second(9, 0, 9) for _ in range(30))
    assert not [stream.second(9, 9) for _ in range(15)][-1]


def test_a_single_refused_sample_is_no_overload() -> None:
    stream = Stream()
    assert not any(stream.second(1, i % 2) for i in range(4))
    stream = Stream()
    assert not any(stream.second(10, 9) for _ in range(30))


@given(st.lists(st.integers(5, 15), min_size=60, max_size=60))
def test_it_does_not_flap_while_the_refused_share_is_between_the_limits(hard: list[int]) -> None:
    stream = Stream()
    states = [stream.second(each, each - 1) for each in hard]  # 7 to 20 % of each second
    assert sum(before != after for before, after in pairwise(states)) <= 1
