"""Which parts of a frame are uploaded: around uncertain boxes, and cells in which the small model misses objects.

A cell is a part of a grid of GRID x GRID over the frame; calibration has found where the small model misses objects.
Regions are whole blocks of 8 x 8 pixels, as JPEG has them, up to the edge of the frame. Two regions become their common
rectangle if that has no more pixels than both; in a packed picture also if they overlap. MAX_REGIONS bounds the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halimede.inference.boxes import areas
from halimede.messages import Box
from halimede.mining.calibration_file import GRID, RegionRule

#: side of the blocks of which a region consists, in pixels
BLOCK = 8
#: most regions of a frame: a frame with more is uploaded whole
MAX_REGIONS = 128
#: largest area of the regions, as a fraction of the frame: with more, it is uploaded whole
MAX_AREA = 0.75

#: rectangles ``[n, 4]``: x1, y1, x2, y2 in pixels; x2 and y2 are outside
Rows = NDArray[np.int64]


class FrameRegion(NamedTuple):
    """A rectangle of a picture in pixels; ``x2`` and ``y2`` are outside."""

    x1: int
    y1: int
    x2: int
    y2: int

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.x2 - self.x1

    @property
    def height(self) -> int:
        """The number of rows."""
        return self.y2 - self.y1


def find_regions(boxes: Sequence[Box], width: int, height: int, rule: RegionRule) -> list[FrameRegion] | None:
    """Return the regions of a picture of ``width`` x ``height`` pixels, in which the small model found these boxes.

    ``rule``: which scores are certain, the padding around boxes, and the cells. None: the picture is uploaded whole,
    because there is no region, the regions have more than MAX_AREA of its pixels, or they are more than MAX_REGIONS.
    """
    uncertain = [(box.x1, box.y1, box.x2, box.y2) for box in boxes if box.score < rule.sure]
    corners = np.array(uncertain, np.float64).reshape(-1, 4)
    rows = np.concatenate([_pad(corners, width, height, rule.padding), _cells(rule.cells, width, height)])
    rows = np.unique(rows, axis=0)
    if not len(rows) or covered_share(rows, width, height) > MAX_AREA:
        return None
    outermost = _without_contained(rows)
    return None if outermost is None else [FrameRegion(*row) for row in _merge(outermost).tolist()]


def merge_overlapping(regions: Sequence[FrameRegion]) -> list[FrameRegion]:
    """Return regions that do not overlap: those that overlap are replaced by their common rectangle."""
    return [FrameRegion(*row) for row in _merge(np.array(regions, np.int64), overlapping=True).tolist()]


def covered_share(rows: Rows, width: int, height: int) -> float:
    """Return the fraction of a picture's blocks that rectangles cover; a block that several cover counts once."""
    across, down = -(-width // BLOCK), -(-height // BLOCK)
    # the sums over the changes down and across are, for each block, the number of rectangles that cover it
    changes = np.zeros((down + 1, across + 1), np.int64)
    x1, y1, x2, y2 = (-(-rows // BLOCK)).T
    np.add.at(changes, (y1, x1), 1)
    np.add.at(changes, (y2, x2), 1)
    np.add.at(changes, (y1, x2), -1)
    np.add.at(changes, (y2, x1), -1)
    return float((changes.cumsum(axis=0).cumsum(axis=1)[:down, :across] > 0).mean())


def _pad(corners: NDArray[np.float64], width: int, height: int, padding: float) -> Rows:
    """Return boxes with padding as rectangles of whole blocks; a box outside of the picture is left out.

    ``corners``: ``[n, 4]``. ``padding``: what is added on each side, as a fraction of the box's width and height.
    """
    limits = np.array([width, height], np.float64)
    first, last = (np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:]))
    visible = (np.minimum(last, limits) > np.maximum(first, 0)).all(axis=1)
    # a coordinate far outside stays finite: a model may return any number
    first, last = first[visible].clip(-2 * limits, 3 * limits), last[visible].clip(-2 * limits, 3 * limits)
    margin = padding * (last - first)
    first = (np.floor((first - margin) / BLOCK) * BLOCK).clip(0)
    last = np.minimum(np.ceil((last + margin) / BLOCK) * BLOCK, limits)
    return np.concatenate([first, last], axis=1).astype(np.int64)


def _cells(cells: Sequence[int], width: int, height: int) -> Rows:
    """Return cells of the grid, by their numbers row by row, as rectangles of whole blocks."""
    index = np.array(cells, np.int64).reshape(-1, 1)
    sides = np.array([width, height]) / (GRID * BLOCK)
    position = np.concatenate([index % GRID, index // GRID], axis=1)
    first = np.floor(position * sides) * BLOCK
    last = np.minimum(np.ceil((position + 1) * sides) * BLOCK, [width, height])
    return np.concatenate([first, last], axis=1).astype(np.int64)


def _without_contained(rows: Rows) -> Rows | None:
    """Return the rectangles that are in no other one, the largest first; None for more than ``MAX_REGIONS``."""
    remaining = rows[np.argsort(-areas(rows), kind="stable")]
    chosen: list[Rows] = []
    while len(remaining):
        if len(chosen) == MAX_REGIONS:
            return None
        largest = remaining[0]
        chosen.append(largest)
        inside = (remaining[:, :2] >= largest[:2]).all(axis=1) & (remaining[:, 2:] <= largest[2:]).all(axis=1)
        remaining = remaining[~inside]
    return np.array(chosen)


def _merge(rows: Rows, *, overlapping: bool = False) -> Rows:
    """Return rectangles, merged by twos while the common rectangle has no more pixels than both of them.

    ``overlapping``: merge while two overlap.
    """
    index = 0
    while index < len(rows):
        row = rows[index]
        hull = np.concatenate([np.minimum(rows[:, :2], row[:2]), np.maximum(rows[:, 2:], row[2:])], axis=1)
        saved = areas(rows) + areas(row[np.newaxis]) - areas(hull)
        if overlapping:
            shared = np.minimum(rows[:, 2:], row[2:]) > np.maximum(rows[:, :2], row[:2])
            saved = np.where(shared.all(axis=1), 0, -1)
        saved[index] = -1  # a rectangle is not merged with itself
        best = int(saved.argmax())
        if saved[best] < 0:
            index += 1
            continue
        rows = np.concatenate([np.delete(rows, [index, best], axis=0), hull[best : best + 1]])
        index = 0
    return rows
