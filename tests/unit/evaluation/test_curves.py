"""Curves of accuracy against upload ratio, and what bounds them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.evaluation.curves import POINTS, accuracy_at, chance, curve, oracle

SAMPLES = st.lists(
    st.tuples(st.booleans(), st.booleans(), st.floats(-10, 10) | st.just(float("inf"))), min_size=1, max_size=60
)


def test_the_hardest_go_up_first() -> None:
    points = curve(np.array([3.0, 1, 2, 0]), np.array([0, 1, 0, 1]), np.array([1, 1, 0, 0]))
    expected = [(0.0, 0.5), (0.25, 0.75), (0.5, 0.75), (0.75, 0.75), (1.0, 0.5)]
    assert points == [{"upload_ratio": ratio, "accuracy": accuracy} for ratio, accuracy in expected]


def test_equals_are_sent_in_random_order_in_the_mean() -> None:
    points = curve(np.array([1.0, 1, 0, 0]), np.array([0, 0, 1, 1]), np.array([1, 0, 1, 0]))
    assert [point["accuracy"] for point in points] == [0.5, 0.625, 0.75, 0.625, 0.5]


def test_what_both_say_together_takes_the_place_of_the_clouds_word() -> None:
    points = curve(np.array([1.0, 0]), np.array([0, 0]), np.array([0, 0]), np.array([1, 1]))
    assert points[-1]["accuracy"] == 1.0


def test_a_long_curve_has_few_points_with_both_ends() -> None:
    points = curve(np.arange(5000.0), np.zeros(5000), np.ones(5000))
    assert len(points) == POINTS + 1
    assert (points[0]["upload_ratio"], points[-1]["upload_ratio"]) == (0, 1)
    assert accuracy_at(points, 0.333) == pytest.approx(0.333, abs=1e-3)


@given(SAMPLES)
def test_every_curve_lies_between_its_ends_and_below_the_oracle(samples: list[tuple[bool, bool, float]]) -> None:
    edge, cloud, hardness = (np.array(values, float) for values in zip(*samples, strict=True))
    points, best, line = curve(hardness, edge, cloud), oracle(edge, cloud), chance(edge, cloud)
    for each in (points, best, line):
        assert each[0]["accuracy"] == pytest.approx(edge.mean(), abs=1e-6)
        assert each[-1]["accuracy"] == pytest.approx(cloud.mean(), abs=1e-6)
    assert all(a["accuracy"] <= b["accuracy"] + 2e-6 for a, b in zip(points, best, strict=True))
    for point in line:
        expected = edge.mean() + point["upload_ratio"] * (cloud.mean() - edge.mean())
        assert point["accuracy"] == pytest.approx(expected, abs=1e-5)
