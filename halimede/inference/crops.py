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
    kept = list(boxes)
    if len(kept) <= limit:
        return kept
    order = sorted(range(len(kept)), key=lambda i: -kept[i].score)[:limit]
    return [kept[i] for i in sorted(order)]


def pixels(box: Box, picture: Array, margin: float = 0.0) -> tuple[int, int, int, int] | None:
    """Return left, top, right and bottom of a box in whole pixels of a picture; None if it contains no pixel.

    ``margin`` is a share of the box's own width and height, on each side.
    """
    height, width = picture.shape[:2]
    x1, y1, x2, y2 = (min(max(value, -FAR), FAR) for value in (box.x1, box.y1, box.x2, box.y2))
    (x1, x2), (y1, y2) = sorted((x1, x2)), sorted((y1, y2))
    across, down = margin * (x2 - x1), margin * (y2 - y1)
    left, right = _between(x1 - across, width), _between(x2 + across, width, up=True)
    top, bottom = _between(y1 - down, height), _between(y2 + down, height, up=True)
    return (left, top, right, bottom) if left < right and top < bottom else None


def _between(value: float, most: int, *, up: bool = False) -> int:
    """Round a coordinate to a pixel in the picture."""
    inside = min(max(value, 0.0), float(most))
    return math.ceil(inside) if up else math.floor(inside)
