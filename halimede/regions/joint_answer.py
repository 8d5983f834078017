"""The joint answer to a frame of which regions were uploaded.

The big model's boxes count inside of the regions: a box belongs to the region that has its centre. The small model's
boxes count outside. Of these, one is left out that a box of the big model's of the same class overlaps by half: both
are one object at the border of a region. Landmarks stay with their boxes, and lines of text follow the same rule by the
centre of their corners. Features of boxes (``embeddings``) are left out: two models have different ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from halimede.inference.boxes import overlaps
from halimede.inference.coordinates import map_coordinates
from halimede.messages import Box, PicturePoint, Prediction, TextLine
from halimede.regions.layout import Points, RegionLayout

#: overlap from which two boxes of one class are one object
SAME = 0.5
#: most boxes and lines of an answer, and most boxes at borders with which others are compared
MAX_BOXES, MAX_LINES, MAX_COMPARED = 10_000, 1000, 256
#: limit of coordinates in pixels that are multiplied: a model may return any number
FAR = 1e6

Indices = NDArray[np.int64]
T = TypeVar("T")


class SentRegions(Struct, frozen=True):
    """The uploaded regions. ``factors``: pixels of the frame for a pixel of the layout, across and down.

    ``edge``: the small model's answer, in pixels of the frame.
    """

    layout: RegionLayout
    factors: tuple[float, float]
    edge: Prediction

    def joint(self, answer: Prediction) -> Prediction:
        """Return both answers in one; ``answer`` is the big model's, in pixels of the layout."""
        there = self._in_frame(answer)
        both = _with(there, self._without_doubles(self._outside(), there.boxes or []))
        return msgspec.structs.replace(
            answer,
            boxes=(both.boxes or [])[:MAX_BOXES],
            landmarks=both.landmarks and both.landmarks[:MAX_BOXES],
            lines=(both.lines or [])[:MAX_LINES] or None,
            embeddings=None,
        )

    def edge_in_layout(self) -> Prediction:
        """Return the small model's answer about the regions, in pixels of the layout."""
        owners = self.layout.region_at(_centres(self.edge.boxes or ()) / self.factors)
        offsets = self.layout.offsets()
        groups = [
            map_coordinates(
                Prediction(boxes=_choose(self.edge.boxes or [], owners == owner)),
                lambda points, owner=owner: points / self.factors - offsets[owner],  # type: ignore[misc]
            )
            for owner in _present(owners)
        ]
        boxes = [box for group in groups for box in group.boxes or ()]
        return Prediction(label=self.edge.label, score=self.edge.score, boxes=boxes)

    def _outside(self) -> Prediction:
        """Return the small model's answer outside of the regions."""
        boxes = self.layout.region_at(_centres(self.edge.boxes or ()) / self.factors) < 0
        lines = self.layout.region_at(_line_centres(self.edge.lines or ()) / self.factors) < 0
        return _part(self.edge, boxes, lines)

    def _in_frame(self, answer: Prediction) -> Prediction:
        """Return the answer about the regions, in pixels of the frame."""
        owners = self.layout.placement_at(_centres(answer.boxes or ()))
        line_owners = self.layout.placement_at(_line_centres(answer.lines or ()))
        offsets = self.layout.offsets()
        parts = [Prediction()]
        for owner in _present(owners, line_owners):
            region = self.layout.placements[owner].region
            # what is next to a region in a packed picture is not next to it in the frame
            ends = (0, [self.layout.width, self.layout.height]) if self.layout.in_place else (region[:2], region[2:])
            parts.append(
                map_coordinates(
                    _part(answer, owners == owner, line_owners == owner),
                    lambda points, owner=owner, ends=ends: (points + offsets[owner]).clip(*ends) * self.factors,  # type: ignore[misc]
                )
            )
        return reduce(_with, parts)

    def _without_doubles(self, here: Prediction, there: Sequence[Box]) -> Prediction:
        """Leave out boxes that are one object with a box of the other answer that crosses the border of its region."""
        boxes = here.boxes or []
        if not boxes or not there:
            return here
        corners = np.array([[box.x1, box.y1, box.x2, box.y2] for box in there], np.float64)
        frame = np.array([placement.region for placement in self.layout.placements], np.float64) * (self.factors * 2)
        contained = [
            (corners[:, :2] > region[:2]).all(axis=1) & (corners[:, 2:] < region[2:]).all(axis=1) for region in frame
        ]
        crossing = np.flatnonzero(~np.any(contained, axis=0))
        best = sorted(crossing.tolist(), key=lambda index: -there[index].score)[:MAX_COMPARED]
        own = np.array([[box.x1, box.y1, box.x2, box.y2] for box in boxes], np.float64).clip(-FAR, FAR)
        labels = np.array([str(box.label) for box in boxes])
        double = np.zeros(len(boxes), bool)
        for index in best:
            double |= (overlaps(corners[index], own) >= SAME) & (labels == str(there[index].label))
        return _part(here, ~double, np.ones(len(here.lines or ()), bool))


def _part(answer: Prediction, boxes: NDArray[np.bool_], lines: NDArray[np.bool_]) -> Prediction:
    """Return the chosen boxes of an answer with their landmarks, and its chosen lines."""
    return Prediction(
        boxes=_choose(answer.boxes or [], boxes),
        landmarks=_choose(_landmarks(answer), boxes) if answer.landmarks else None,
        lines=_choose(answer.lines or [], lines),
    )


def _with(first: Prediction, second: Prediction) -> Prediction:
    """Return the boxes and lines of two answers."""
    return Prediction(
        boxes=[*(first.boxes or ()), *(second.boxes or ())],
        landmarks=[*_landmarks(first), *_landmarks(second)] if first.landmarks or second.landmarks else None,
        lines=[*(first.lines or ()), *(second.lines or ())],
    )


def _landmarks(answer: Prediction) -> list[list[PicturePoint]]:
    """Return the landmarks of each box, none for a box that has none."""
    points, number = answer.landmarks or [], len(answer.boxes or ())
    return [*points[:number], *([] for _ in range(number - len(points)))]


def _choose(items: Sequence[T], mask: NDArray[np.bool_]) -> list[T]:
    return [items[index] for index in np.flatnonzero(mask).tolist()]


def _present(*owners: Indices) -> list[int]:
    """Return the regions that own something."""
    present: list[int] = np.unique(np.concatenate(owners)).tolist()
    return [owner for owner in present if owner >= 0]


def _centres(boxes: Sequence[Box]) -> Points:
    rows = [((box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2) for box in boxes]
    return np.array(rows, np.float64).reshape(-1, 2)


def _line_centres(lines: Sequence[TextLine]) -> Points:
    """Return the centres of lines of text; a line without corners is nowhere."""
    rows = [
        np.mean([(point.x, point.y) for point in line.corners], axis=0) if line.corners else (np.inf, np.inf)
        for line in lines
    ]
    return np.array(rows, np.float64).reshape(-1, 2)
