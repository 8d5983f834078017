"""Boxes as plain arrays: their forms, their overlaps, and non-maximum suppression. Pure, independent of models."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from halimede.inference.model import Array

Form: TypeAlias = Literal["xyxy", "xywh", "cxcywh"]


def corners(boxes: Array, form: Form) -> Array:
    """Return ``[n, 4]`` boxes of any form as x1, y1, x2, y2, the smaller of each pair first."""
    if form == "xyxy":
        first, second = boxes[:, :2], boxes[:, 2:]
    else:
        size = boxes[:, 2:]
        first = boxes[:, :2] if form == "xywh" else boxes[:, :2] - size / 2
        second = first + size
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=1)


def overlaps(box: Array, boxes: Array) -> Array:
    """Return the intersection over union of one box with each of ``[n, 4]`` corners: 0 where neither has an area."""
    return _overlaps(box, boxes.T, areas(boxes), areas(box[np.newaxis])[0])


def areas(boxes: Array) -> Array:
    """Return the area of each of ``[n, 4]`` corners."""
    return np.asarray((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))


def suppress(boxes: Array, scores: Array, classes: Array, *, iou: float, limit: int) -> Array:
    """Return the indices of the boxes to keep, the best score first, the first among equals: ``limit`` at most.

    A box is removed if it overlaps a better kept one of its own class by more than ``iou``. Each kept box is compared
    with the rest of its class, so the work is bounded by ``limit`` times their number.
    """
    order = np.argsort(-scores, kind="stable")
    groups = [order[classes[order] == kind] for kind in np.unique(classes)]
    groups = [mine[_stay(boxes[mine], iou, limit)] for mine in groups]
    indices = np.concatenate([np.zeros(0, np.intp), *groups])
    indices.sort()  # so that equal scores keep their original order
    return indices[np.argsort(-scores[indices], kind="stable")][:limit]


def _stay(boxes: Array, iou: float, limit: int) -> list[int]:
    """Return the indices to keep of the boxes of one class, which are sorted with the best first."""
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
    """Return the same as ``overlaps``, from the four sides ``[4, n]`` and the areas."""
    width = np.minimum(box[2], sides[2]) - np.maximum(box[0], sides[0])
    height = np.minimum(box[3], sides[3]) - np.maximum(box[1], sides[1])
    shared = np.maximum(width, 0) * np.maximum(height, 0)
    union = sizes + size - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0))
