"""Crops of boxes: which boxes of a picture are cropped, and the rectangle of whole pixels of each. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from halimede.inference.boxes import MAX_COORDINATE
from halimede.inference.model import Array
from halimede.messages import Box


def best(boxes: Iterable[Box], limit: int) -> list[Box]:
    """Return the ``limit`` boxes with the highest scores, in their original order; all if there are no more."""
    candidates = list(boxes)
    if len(candidates) <= limit:
        return candidates
    order = sorted(range(len(candidates)), key=lambda i: -candidates[i].score)[:limit]
    return [candidates[i] for i in sorted(order)]


def pixels(box: Box, picture: Array, margin: float = 0.0) -> tuple[int, int, int, int] | None:
    """Return left, top, right and bottom of a box in whole pixels of a picture; None if it contains no pixel.

    The box's coordinates are pixels of ``picture``, ``[height, width, ...]``. ``margin``: what is added on each side,
    as a fraction of the box's own width and height. Right and bottom are the first pixels outside.
    """
    height, width = picture.shape[:2]
    x1, y1, x2, y2 = (min(max(side, -MAX_COORDINATE), MAX_COORDINATE) for side in (box.x1, box.y1, box.x2, box.y2))
    (x1, x2), (y1, y2) = sorted((x1, x2)), sorted((y1, y2))
    across, down = margin * (x2 - x1), margin * (y2 - y1)
    columns = _pixel_within(x1 - across, width), _pixel_within(x2 + across, width, up=True)
    rows = _pixel_within(y1 - down, height), _pixel_within(y2 + down, height, up=True)
    is_empty = columns[0] >= columns[1] or rows[0] >= rows[1]
    return None if is_empty else (columns[0], rows[0], columns[1], rows[1])


def _pixel_within(value: float, most: int, *, up: bool = False) -> int:
    """Return a coordinate, limited to 0..``most``, rounded down to a whole pixel, or up."""
    inside = min(max(value, 0.0), float(most))
    return math.ceil(inside) if up else math.floor(inside)
