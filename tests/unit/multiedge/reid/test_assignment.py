"""Pairs are worth the most together, as an independent solver says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from halimede.multiedge.reid.assignment import assign


@settings(deadline=None)
@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 10_000))
def test_pairs_are_worth_as_much_as_an_independent_solver_finds(rows: int, columns: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    worth = np.where(draw.random((rows, columns)) < 0.4, 0.0, draw.uniform(-0.5, 1, (rows, columns)))
    pairs = assign(worth)
    assert len({row for row, _ in pairs}) == len({column for _, column in pairs}) == len(pairs)
    assert all(worth[pair] > 0 for pair in pairs)
    gains = np.maximum(worth, 0)
    assert sum(worth[pair] for pair in pairs) == pytest.approx(gains[linear_sum_assignment(-gains)].sum())
