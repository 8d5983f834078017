"""The joint answer to a frame of which regions were uploaded: ``SentRegions`` makes it from both models' answers.

The big model's boxes count inside of the regions: a box belongs to the region that has its centre. The small model's
boxes count outside. A box of the small model is left out if a box of the big model, of the same class, overlaps it by
half: both are one object at the border of a region. Landmarks stay with their boxes, and lines of text follow the same
rule by the centre of their corners. Features of boxes (``embeddings``) are left out, because those of two models cannot
be compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import reduce
from typing import TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from halimede.inference.boxes import MAX_COORDINATE, overlaps
from halimede.inference.coordinates import corner_rows, map_boxes, map_coordinates
from halimede.messages import Box, PicturePoint, Prediction, TextLine
from halimede.regions.layout import Points, RegionLayout

#: intersection over union from which two boxes of one class are one object
SAME_IOU = 0.5
#: most boxes and lines of an answer, and most of the big model's boxes at borders that are compared
MAX_BOXES, MAX_LINES, MAX_COMPARED = 10_000, 1000, 256

#: the index of the region that contains each item, ``[n]``; -1: none does
Indices = NDArray[np.int64]
T = TypeVar("T")


class SentRegions(Struct, frozen=True):
    """The uploaded regions of a frame.

    Attributes:
        layout: where each region is in the uploaded picture, at the scale of ``factors``.
        factors: pixels of the frame for each pixel of the layout, across and down.
        edge: the small model's answer, in pixels of the frame.

    """

    layout: RegionLayout
    factors: tuple[float, float]
    edge: Prediction

    def joint(self, answer: Prediction) -> Prediction:
        """Return both models' answers in one, in pixels of the frame. ``answer``: the big model's, of the layout.

        Label, score and all other fields but boxes, landmarks, lines and features are those of ``answer``.
        """
        big_answer = self._in_frame(answer)
        joined = _concatenate(big_answer, self._without_duplicates(self._outside(), big_answer.boxes or []))
        return msgspec.structs.replace(
            answer,
            boxes=(joined.boxes or [])[:MAX_BOXES],
            landmarks=joined.landmarks and joined.landmarks[:MAX_BOXES],
            lines=(joined.lines or [])[:MAX_LINES] or None,
            embeddings=None,
        )

    def edge_in_layout(self) -> Prediction:
        """Return the small model's boxes in the regions, in pixels of the layout."""
        owners = self.layout.region_at(_centres(self.edge.boxes or ()) / self.factors)
        offsets = self.layout.offsets()
        groups = [
            map_boxes(
                _choose(self.edge.boxes or [], owners == owner),
                lambda points, owner=owner: points / self.factors - offsets[owner],  # type: ignore[misc]
            )
            for owner in _owners_present(owners)
        ]
        return Prediction(label=self.edge.label, score=self.edge.score, boxes=list(itertools.chain(*groups)))

    def _outside(self) -> Prediction:
        """Return the small model's boxes and lines outside of the regions, in pixels of the frame."""
        boxes = self.layout.region_at(_centres(self.edge.boxes or ()) / self.factors) < 0
        lines = self.layout.region_at(_line_centres(self.edge.lines or ()) / self.factors) < 0
        return _subset(self.edge, boxes, lines)

    def _in_frame(self, answer: Prediction) -> Prediction:
        """Return the big model's answer about the regions, in pixels of the frame."""
        owners = self.layout.placement_at(_centres(answer.boxes or ()))
        line_owners = self.layout.placement_at(_line_centres(answer.lines or ()))
        offsets = self.layout.offsets()
        answers = [Prediction()]
        for owner in _owners_present(owners, line_owners):
            region = self.layout.placements[owner].region
            # what is next to a region in a packed picture is not next to it in the frame
            ends = (0, [self.layout.width, self.layout.height]) if self.layout.in_place else (region[:2], region[2:])
            answers.append(
                map_coordinates(
                    _subset(answer, owners == owner, line_owners == owner),
                    lambda points, owner=owner, ends=ends: (points + offsets[owner]).clip(*ends) * self.factors,  # type: ignore[misc]
                )
            )
        return reduce(_concatenate, answers)

    def _without_duplicates(self, small_answer: Prediction, big_boxes: Sequence[Box]) -> Prediction:
        """Return the small model's answer without boxes of objects that the big model has found at a region's border.

        ``big_boxes``: the big model's, in pixels of the frame.
        """
        boxes = small_answer.boxes or []
        if not boxes or not big_boxes:
            return small_answer
        corners = corner_rows(big_boxes)
        # the factors across and down, twice: for x1, y1 and for x2, y2
        regions = np.array([placement.region for placement in self.layout.placements], np.float64) * (self.factors * 2)
        contained = [
            (corners[:, :2] > region[:2]).all(axis=1) & (corners[:, 2:] < region[2:]).all(axis=1) for region in regions
        ]
        # only boxes that reach the border of a region are compared
        crossing = np.flatnonzero(~np.any(contained, axis=0))
        best = sorted(crossing.tolist(), key=lambda index: -big_boxes[index].score)[:MAX_COMPARED]
        small = corner_rows(boxes).clip(-MAX_COORDINATE, MAX_COORDINATE)
        labels = np.array([str(box.label) for box in boxes])
        double = np.zeros(len(boxes), bool)
        for index in best:
            double |= (overlaps(corners[index], small) >= SAME_IOU) & (labels == str(big_boxes[index].label))
        return _subset(small_answer, ~double, np.ones(len(small_answer.lines or ()), bool))


def _subset(answer: Prediction, boxes: NDArray[np.bool_], lines: NDArray[np.bool_]) -> Prediction:
    """Return the boxes of an answer, with their landmarks, and the lines for which the masks are True."""
    return Prediction(
        boxes=_choose(answer.boxes or [], boxes),
        landmarks=_choose(_landmarks(answer), boxes) if answer.landmarks else None,
        lines=_choose(answer.lines or [], lines),
    )


def _concatenate(first: Prediction, second: Prediction) -> Prediction:
    """Return the boxes and lines of two answers."""
    return Prediction(
        boxes=[*(first.boxes or ()), *(second.boxes or ())],
        landmarks=[*_landmarks(first), *_landmarks(second)] if first.landmarks or second.landmarks else None,
        lines=[*(first.lines or ()), *(second.lines or ())],
    )


def _landmarks(answer: Prediction) -> list[list[PicturePoint]]:
    """Return the landmarks of each box; an empty list for a box that has none."""
    points, number = answer.landmarks or [], len(answer.boxes or ())
    return [*points[:number], *([] for _ in range(number - len(points)))]


def _choose(items: Sequence[T], mask: NDArray[np.bool_]) -> list[T]:
    """Return the items for which the mask is True."""
    return [items[index] for index in np.flatnonzero(mask).tolist()]


def _owners_present(*owners: Indices) -> list[int]:
    """Return the indices of the regions that contain anything, each once."""
    present: list[int] = np.unique(np.concatenate(owners)).tolist()
    return [owner for owner in present if owner >= 0]


def _centres(boxes: Sequence[Box]) -> Points:
    """Return the centres of boxes."""
    corners = corner_rows(boxes)
    return np.asarray((corners[:, :2] + corners[:, 2:]) / 2)


def _line_centres(lines: Sequence[TextLine]) -> Points:
    """Return the centres of the corners of lines of text; infinity for a line without corners."""
    rows = [
        np.mean([(point.x, point.y) for point in line.corners], axis=0) if line.corners else (np.inf, np.inf)
        for line in lines
    ]
    return np.array(rows, np.float64).reshape(-1, 2)
