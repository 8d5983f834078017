"""Boxes against the plainest way to say the same: one pair at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.inference.boxes import corners, overlaps, suppress

#: whole numbers, so that both ways count without rounding; few of them, so that boxes touch, agree and have no area
coordinate = st.integers(0, 6).map(float)
box = st.tuples(coordinate, coordinate, coordinate, coordinate).map(
    lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3]))
)
scored = st.tuples(box, st.sampled_from([0.25, 0.5, 0.75, 1.0]), st.integers(0, 2))
some = st.lists(scored, max_size=25)


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / union if union else 0.0


def plainly(candidates: list[tuple[tuple[float, ...], float, int]], iou: float, limit: int) -> list[int]:
    kept: list[int] = []
    for i in sorted(range(len(candidates)), key=lambda i: (-candidates[i][1], i)):
        mine, _, kind = candidates[i]
        rivals = [candidates[j][0] for j in kept if candidates[j][2] == kind]
        if len(kept) < limit and not any(overlap(mine, rival) > iou for rival in rivals):
            kept.append(i)
    return kept


@given(box, st.lists(box, min_size=1, max_size=10))
def test_overlaps_are_those_of_each_pair(one, others):
    found = overlaps(np.array(one), np.array(others))
    assert found.tolist() == pytest.approx([overlap(one, other) for other in others])


@given(some, st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.integers(1, 30))
def test_the_same_boxes_stay_as_one_at_a_time(candidates, iou, limit):
    boxes = np.array([c[0] for c in candidates], float).reshape(-1, 4)
    scores, classes = np.array([c[1] for c in candidates]), np.array([c[2] for c in candidates])
    kept = suppress(boxes, scores, classes, iou=iou, limit=limit)
    assert kept.tolist() == plainly(candidates, iou, limit)


@given(box)
def test_every_form_says_the_same_box(one):
    x1, y1, x2, y2 = one
    width, height = x2 - x1, y2 - y1
    forms = {"xyxy": one, "xywh": (x1, y1, width, height), "cxcywh": (x1 + width / 2, y1 + height / 2, width, height)}
    for form, numbers in forms.items():
        assert corners(np.array([numbers]), form).tolist() == [list(one)]


def test_corners_come_in_order_whichever_was_given_first():
    assert corners(np.array([[5.0, 1, 2, 7]]), "xyxy").tolist() == [[2, 1, 5, 7]]
