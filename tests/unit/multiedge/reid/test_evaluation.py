"""Figures against cases that can be counted by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from halimede.multiedge.reid.evaluation import Seen, idf1, rank, threshold

BOX = (0.0, 0.0, 10.0, 10.0)
FAR = (100.0, 0.0, 110.0, 10.0)


def way(name: str, frames: range, box: tuple[float, float, float, float] = BOX) -> list[Seen]:
    return [Seen(frame, name, box) for frame in frames]


def test_all_right_is_one_whatever_identities_are_called() -> None:
    assert idf1(way("1", range(10)), way("x", range(10))).idf1 == 1.0


def test_an_identity_that_is_cut_in_two_counts_with_its_longer_part() -> None:
    score = idf1(way("1", range(10)), way("x", range(6)) + way("y", range(6, 10)))
    assert (score.truth, score.predicted, score.agree) == (10, 10, 6)
    assert score.idf1 == pytest.approx(0.6)


def test_two_objects_under_one_identity_count_for_one_of_them() -> None:
    truth = way("1", range(10)) + way("2", range(10), FAR)
    score = idf1(truth, way("x", range(10)) + way("x", range(10), FAR))
    assert score.agree == 10
    assert score.idf1 == pytest.approx(0.5)


def test_what_is_missing_and_what_is_not_there_both_weigh() -> None:
    score = idf1(way("1", range(10)), way("x", range(5)) + way("x", range(5, 10), FAR))
    assert (score.agree, score.precision, score.recall, score.idf1) == (5, 0.5, 0.5, 0.5)
    assert idf1(way("1", range(10)), []).idf1 == 0.0
    assert idf1([], []).idf1 == 1.0


def test_rank_looks_at_other_cameras_alone() -> None:
    features = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.3], [0.5, 0.5]])
    who, where = ["a", "a", "b", "b", "c"], ["door", "yard", "door", "yard", "door"]
    # a at the door finds a; a in the yard finds a; b at the door finds b; b in the yard finds a; c is seen once
    assert rank(features, who, where) == pytest.approx(3 / 4)
    assert rank(features, who, where, k=3) == 1.0
    assert math.isnan(rank(features, who, ["door"] * 5))


def test_the_threshold_lies_between_what_is_the_same_and_what_is_not() -> None:
    draw = np.random.default_rng(1)
    looks = draw.normal(size=(10, 64))
    pictures = np.repeat(looks, 5, axis=0) + draw.normal(size=(50, 64)) * 0.5
    found = threshold(pictures, [i // 5 for i in range(50)])
    assert 0.4 < found < 0.75
    assert math.isnan(threshold(pictures, [1] * 50))
