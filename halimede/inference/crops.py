"""Crops of boxes: which boxes of a picture are cropped, and the pixels of each. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from halimede.inference.model import Array
from halimede.messages import Box

#: limit of coordinates in pixels: models may return any number
FAR = 1e6


def best(boxes: Iterable[Box], limit: int) -> list[Box]:
    """Return the boxes with the best scores, in their original order."""
    candidates = list(boxes)
    if len(candidates) <= limit:
        return candidates
    order = sorted(range(len(candidates)), key=lambda i: -candidates[i].score)[:limit]
    return [candidates[i] for i in sorted(order)]


def pixels(box: Box, picture: Array, margin: float = 0.0) -> tuple[int, int, int, int] | None:
    """Return left, top, right and bottom of a box in whole pixels of a picture; None if it contains no pixel.

    ``margin`` is a share of the box's own width and height, on each side.
    """
    height, width = picture.shape[:2]
    x1, y1, x2, y2 = (min(max(value, -FAR), FAR) for value in (box.x1, box.y1, box.x2, box.y2))
    (x1, x2), (y1, y2) = sorted((x1, x2)), sorted((y1, y2))
    across, down = margin * (x2 - x1), margin * (y2 - y1)
    columns = _between(x1 - across, width), _between(x2 + across, width, up=True)
    rows = _between(y1 - down, height), _between(y2 + down, height, up=True)
    is_empty = columns[0] >= columns[1] or rows[0] >= rows[1]
    return None if is_empty else (columns[0], rows[0], columns[1], rows[1])


def _between(value: float, most: int, *, up: bool = False) -> int:
    """Round a coordinate to a pixel in the picture."""
    inside = min(max(value, 0.0), float(most))
    return math.ceil(inside) if up else math.floor(inside)
