"""The bench of easy samples runs the real edge worker, and says what a sample costs."""

from __future__ import annotations

import math

import pytest

from bench.easy import measure

pytestmark = pytest.mark.slow


def test_it_says_what_an_easy_sample_costs_over_its_bare_run() -> None:
    added = measure(rounds=1, samples=50)
    assert math.isfinite(added)
    assert added > 0
