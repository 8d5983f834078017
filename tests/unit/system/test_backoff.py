"""Pauses between attempts double up to a limit, and start small again after a success."""

from __future__ import annotations

import math

from halimede.system.backoff import Backoff, exponential


def test_pauses_double_up_to_the_longest_and_start_again_after_a_success() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.fail() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.fail() == 0.5


def test_there_is_no_pause_before_the_first_failure_and_a_finite_one_after_very_many() -> None:
    assert exponential(0, 1.0, 8.0) == 0.0
    assert exponential(1_000_000, 1.0, 8.0) == 8.0
    assert math.isfinite(exponential(1_000_000, 1.0, math.inf))
