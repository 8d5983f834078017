"""Finds two models that draw different boxes around the same objects: one the face, the other the head with its hair.

Their boxes overlap little, so every measure by overlap counts one of them as wrong, although both are right. The signs:
the centres of their boxes agree, and one model's boxes are by the same factor wider and higher than the other's. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from halimede.inference import Array
from halimede.inference.boxes import overlaps
from halimede.messages import Box, Prediction

#: boxes of one picture that are compared, by score
MAX_BOXES = 100
#: two centres agree within this share of the larger box's size
NEAR = 0.25
#: pairs of boxes without which there is no finding
MIN_PAIRS = 8
#: overlap (IoU) from which a box counts as found, below which the boxes of a pair differ
LOW_OVERLAP = 0.5
#: the middle half of all factors of size lies within this factor
SPREAD = 1.35
#: shift of the centres that is worth mention, as a share of the second model's boxes
WORTH_SHIFT = 0.05


@dataclass(frozen=True, slots=True)
class BoxConvention:
    """How the first model's boxes differ from the second's, in the median of all pairs.

    ``width`` and ``height``: factors of size. ``right`` and ``down``: the shift of the centre, as a share of the
    second model's width and height.
    """

    pairs: int
    overlap: float
    width: float
    height: float
    right: float
    down: float

    def describe(self, first: str, second: str) -> str:
        """Return the finding as one text, with what to do."""
        shifts = [
            f"{abs(shift):.2f} of the {side} further {before if shift < 0 else behind}"
            for shift, side, before, behind in (
                (self.right, "width", "left", "right"),
                (self.down, "height", "up", "down"),
            )
            if abs(shift) >= WORTH_SHIFT
        ]
        moved = f", and their centres lie {' and '.join(shifts)}" if shifts else ""
        return (
            f"{first} and {second} draw different boxes around the same objects: those of {first} are "
            f"{self.width:.2f} times as wide and {self.height:.2f} times as high{moved} (the overlap is "
            f"{self.overlap:.2f} in the median of {self.pairs} pairs). Measures by overlap count these boxes as wrong: "
            "change the boxes of one model in a postprocess script"
        )


def find_convention(first: Sequence[Prediction], second: Sequence[Prediction]) -> BoxConvention | None:
    """Return how two models' boxes for the same pictures differ by convention; None if they do not."""
    pairs = [
        _pairs(*(_shapes(answer.boxes or ()) for answer in answers)) for answers in zip(first, second, strict=True)
    ]
    rows = np.concatenate([np.zeros((0, 5)), *pairs])
    if len(rows) < MIN_PAIRS:
        return None
    overlap, width, height, right, down = np.median(rows, axis=0)
    low, high = np.quantile(rows[:, 1:3], [0.25, 0.75], axis=0)
    if overlap >= LOW_OVERLAP or (high > low * SPREAD).any():
        return None
    return BoxConvention(len(rows), float(overlap), float(width), float(height), float(right), float(down))


def _shapes(boxes: Sequence[Box]) -> Array:
    """Return the corners of the surest boxes that have an area: ``[boxes, 4]``."""
    surest = sorted(boxes, key=lambda box: -box.score)[:MAX_BOXES]
    return np.array(
        [(box.x1, box.y1, box.x2, box.y2) for box in surest if box.x2 > box.x1 and box.y2 > box.y1], np.float64
    ).reshape(-1, 4)


def _pairs(first: Array, second: Array) -> Array:
    """Return overlap, factors of size and shifts of all boxes that are each other's nearest, with agreeing centres."""
    if not len(first) or not len(second):
        return np.zeros((0, 5))
    middles = [(boxes[:, :2] + boxes[:, 2:]) / 2 for boxes in (first, second)]
    sizes = [boxes[:, 2:] - boxes[:, :2] for boxes in (first, second)]
    apart = np.linalg.norm(middles[0][:, np.newaxis] - middles[1], axis=2)
    rows = []
    for i, j in enumerate(apart.argmin(axis=1)):
        larger = max(np.sqrt(sizes[0][i].prod()), np.sqrt(sizes[1][j].prod()))
        if apart[:, j].argmin() == i and apart[i, j] <= NEAR * larger:
            shift = (middles[0][i] - middles[1][j]) / sizes[1][j]
            rows.append([overlaps(first[i], second[j : j + 1])[0], *(sizes[0][i] / sizes[1][j]), *shift])
    return np.array(rows).reshape(-1, 5)
