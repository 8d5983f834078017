"""Boxes as plain arrays: their forms, their overlaps, and non-maximum suppression. Pure, independent of models.

Corners are ``[n, 4]``: x1, y1, x2, y2, the smaller of each pair first.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from halimede.inference.model import Array

#: limit of coordinates in pixels: no picture is as large, but a model or a sender may give any number
MAX_COORDINATE = 1e6

#: what the four numbers of a box are: two corners; the upper left corner and the size; the middle and the size
Form: TypeAlias = Literal["xyxy", "xywh", "cxcywh"]


def corners(boxes: Array, form: Form) -> Array:
    """Return the corners of ``[n, 4]`` boxes of a form."""
    if form == "xyxy":
        first, second = boxes[:, :2], boxes[:, 2:]
    else:
        size = boxes[:, 2:]
        first = boxes[:, :2] if form == "xywh" else boxes[:, :2] - size / 2
        second = first + size
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=1)


def overlaps(box: Array, boxes: Array) -> Array:
    """Return the intersection over union, 0..1, of one box ``[4]`` with each of ``[n, 4]`` corners.

    It is 0 where neither box has an area.
    """
    return _overlaps(box, boxes.T, areas(boxes), areas(box[np.newaxis])[0])


def areas(boxes: Array) -> Array:
    """Return the area of each of ``[n, 4]`` corners."""
    return np.asarray((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))


def suppress(boxes: Array, scores: Array, classes: Array, *, iou: float, limit: int) -> Array:
    """Return the indices of the boxes to keep, at most ``limit``, the highest score first, of equal ones the first.

    ``boxes``: ``[n, 4]`` corners. ``scores``, ``classes``: ``[n]``. A box is removed if its intersection over union
    with a kept box of its class is more than ``iou``. The work is at most ``limit`` times n comparisons for a class.
    """
    order = np.argsort(-scores, kind="stable")
    groups = [order[classes[order] == kind] for kind in np.unique(classes)]
    groups = [members[_best_indices(boxes[members], iou, limit)] for members in groups]
    indices = np.concatenate([np.zeros(0, np.intp), *groups])
    indices.sort()  # so that equal scores keep their original order
    return indices[np.argsort(-scores[indices], kind="stable")][:limit]


def _best_indices(boxes: Array, iou: float, limit: int) -> list[int]:
    """Return the indices to keep of boxes of one class, ``[n, 4]`` corners with the best first."""
    sides, sizes = np.ascontiguousarray(boxes.T), areas(boxes)
    remaining = np.arange(len(boxes))
    chosen: list[int] = []
    while remaining.size and len(chosen) < limit:
        best = int(remaining[0])
        chosen.append(best)
        stays = _overlaps(boxes[best], sides[:, 1:], sizes[1:], sizes[0]) <= iou
        remaining, sides, sizes = remaining[1:][stays], sides[:, 1:][:, stays], sizes[1:][stays]
    return chosen


def _overlaps(box: Array, sides: Array, sizes: Array, size: float) -> Array:
    """Return the intersection over union of one box, of area ``size``, with boxes of ``sides`` ``[4, n]``.

    ``sizes``: the areas of the boxes, ``[n]``.
    """
    width = np.minimum(box[2], sides[2]) - np.maximum(box[0], sides[0])
    height = np.minimum(box[3], sides[3]) - np.maximum(box[1], sides[1])
    shared = np.maximum(width, 0) * np.maximum(height, 0)
    union = sizes + size - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0))
