"""Detects that two models draw different boxes around the same objects: one the face, the other the head with its hair.

Such boxes overlap little, so every measure by overlap counts one model as wrong, although both are right. The signs are
that the centres of the boxes agree, and that one model's boxes are larger by the same factor everywhere. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from halimede.inference import Array
from halimede.inference.boxes import overlaps
from halimede.messages import Box, Prediction

#: most boxes of one picture that are compared, the best by score
MAX_BOXES = 100
#: two centres agree if their distance is at most this share of the square root of the larger box's area
MAX_DISTANCE = 0.25
#: least pairs of boxes for a finding
MIN_PAIRS = 8
#: median overlap (intersection over union) from which the boxes do not differ
MIN_OVERLAP = 0.5
#: the factors of size are the same everywhere if their upper quartile is at most the lower quartile times this
MAX_SPREAD = 1.35
#: least shift of the centres that is mentioned, as a share of the second model's boxes
MIN_SHIFT = 0.05


@dataclass(frozen=True, slots=True)
class BoxConvention:
    """How the first model's boxes differ from the second's; all but ``pairs`` are medians of the pairs of boxes.

    Attributes:
        pairs: number of pairs.
        overlap: intersection over union, 0 to 1.
        width, height: the first model's size over the second's.
        right, down: the shift of the centre, as a share of the second model's width and height.

    """

    pairs: int
    overlap: float
    width: float
    height: float
    right: float
    down: float

    def describe(self, first: str, second: str) -> str:
        """Return the finding as text, with what to do; ``first`` and ``second`` are the names of the models."""
        shifts = [
            f"{abs(shift):.2f} of the {side} further {before if shift < 0 else behind}"
            for shift, side, before, behind in (
                (self.right, "width", "left", "right"),
                (self.down, "height", "up", "down"),
            )
            if abs(shift) >= MIN_SHIFT
        ]
        moved = f", and their centres lie {' and '.join(shifts)}" if shifts else ""
        return (
            f"{first} and {second} draw different boxes around the same objects: those of {first} are "
            f"{self.width:.2f} times as wide and {self.height:.2f} times as high{moved} (the overlap is "
            f"{self.overlap:.2f} in the median of {self.pairs} pairs). Measures by overlap count these boxes as wrong: "
            "change the boxes of one model in a postprocess script"
        )


def find_convention(first: Sequence[Prediction], second: Sequence[Prediction]) -> BoxConvention | None:
    """Return how two models' boxes differ by convention; None if they do not, or if there are too few pairs.

    ``first`` and ``second`` are the models' answers to the same pictures, in the same order.
    """
    pairs = [
        _pairs(*(_shapes(answer.boxes or ()) for answer in answers)) for answers in zip(first, second, strict=True)
    ]
    rows = np.concatenate([np.zeros((0, 5)), *pairs])
    if len(rows) < MIN_PAIRS:
        return None
    overlap, width, height, right, down = np.median(rows, axis=0)
    low, high = np.quantile(rows[:, 1:3], [0.25, 0.75], axis=0)
    if overlap >= MIN_OVERLAP or (high > low * MAX_SPREAD).any():
        return None
    return BoxConvention(len(rows), float(overlap), float(width), float(height), float(right), float(down))


def _shapes(boxes: Sequence[Box]) -> Array:
    """Return the corners of the boxes with the highest scores that have an area, ``(n, 4) float64``."""
    surest = sorted(boxes, key=lambda box: -box.score)[:MAX_BOXES]
    return np.array(
        [(box.x1, box.y1, box.x2, box.y2) for box in surest if box.x2 > box.x1 and box.y2 > box.y1], np.float64
    ).reshape(-1, 4)


def _pairs(first: Array, second: Array) -> Array:
    """Return a row for each two boxes that are each other's nearest and whose centres agree, ``(n, 5) float64``.

    The columns are overlap, factors of width and height, and shifts to the right and down.
    """
    if not len(first) or not len(second):
        return np.zeros((0, 5))
    centres = [(boxes[:, :2] + boxes[:, 2:]) / 2 for boxes in (first, second)]
    sizes = [boxes[:, 2:] - boxes[:, :2] for boxes in (first, second)]
    distances = np.linalg.norm(centres[0][:, np.newaxis] - centres[1], axis=2)
    rows = []
    for i, j in enumerate(distances.argmin(axis=1)):
        larger = max(np.sqrt(sizes[0][i].prod()), np.sqrt(sizes[1][j].prod()))
        if distances[:, j].argmin() == i and distances[i, j] <= MAX_DISTANCE * larger:
            shift = (centres[0][i] - centres[1][j]) / sizes[1][j]
            rows.append([overlaps(first[i], second[j : j + 1])[0], *(sizes[0][i] / sizes[1][j]), *shift])
    return np.array(rows).reshape(-1, 5)
