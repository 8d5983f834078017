"""The intervals of differences: published values, bounds, and how often they contain the truth."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.stats.agreement import Estimate, wilson
from halimede.stats.differences import PairedCounts, attempt_confidence, paired_gain, share, weighted_sum, z_of

counts = st.builds(PairedCounts, **dict.fromkeys(("both", "candidate", "present", "neither"), st.integers(0, 500)))


def test_the_paired_interval_has_the_published_limits() -> None:
    # Newcombe 1998, table II, method 10
    found = paired_gain(PairedCounts(both=36, candidate=12, present=2, neither=0))
    assert (found.low, found.high) == pytest.approx((0.0569, 0.3404), abs=5e-5)


@given(counts)
def test_an_interval_contains_its_value_and_stays_between_minus_one_and_one(table: PairedCounts) -> None:
    found = paired_gain(table)
    assert -1 <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= 1


@given(counts)
def test_exchanged_models_have_the_mirrored_interval(table: PairedCounts) -> None:
    swapped = PairedCounts(both=table.both, candidate=table.present, present=table.candidate, neither=table.neither)
    some, other = paired_gain(table), paired_gain(swapped)
    assert (some.low, some.high) == pytest.approx((-other.high, -other.low), abs=1e-12)


def test_equal_models_pass_as_better_in_at_most_the_allowed_share_of_comparisons() -> None:
    chance = random.Random(0)
    passed = 0
    for _ in range(2000):
        table = [0, 0, 0, 0]
        for _ in range(150):
            table[chance.choices(range(4), weights=(0.75, 0.08, 0.08, 0.09))[0]] += 1
        both, candidate, present, neither = table
        passed += paired_gain(PairedCounts(both=both, candidate=candidate, present=present, neither=neither)).low > 0
    assert wilson(passed, 2000)[0] <= 0.025


@given(st.integers(0, 300), st.integers(1, 300), st.integers(0, 300), st.integers(1, 300))
def test_a_difference_of_two_shares_contains_its_value(a: int, n: int, b: int, m: int) -> None:
    found = weighted_sum([(1.0, share(min(a, n), n)), (-1.0, share(min(b, m), m))])
    assert found.value == pytest.approx(min(a, n) / n - min(b, m) / m)
    assert found.low <= found.value <= found.high


def test_the_difference_of_two_shares_has_newcombes_limits() -> None:
    # Newcombe 1998, "Interval estimation for the difference between independent proportions", table II, method 10
    found = weighted_sum([(1.0, share(56, 70)), (-1.0, share(48, 80))])
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=5e-4)


def test_a_sum_with_one_part_is_that_part() -> None:
    assert weighted_sum([(1.0, Estimate(0.5, 0.25, 0.75))]) == Estimate(0.5, 0.25, 0.75)


@given(st.floats(0.5, 0.999), st.integers(1, 200))
def test_all_attempts_together_spend_at_most_the_allowed_error(confidence: float, attempts: int) -> None:
    errors = [1 - attempt_confidence(confidence, attempt) for attempt in range(1, attempts + 1)]
    assert sum(errors) <= (1 - confidence) * (1 + 1e-9)
    assert errors == sorted(errors, reverse=True)


def test_z_is_the_normal_quantile() -> None:
    assert z_of(0.95) == pytest.approx(1.959964, abs=1e-6)
