"""Polygons in a picture, as sequences of corners (x, y); the last corner is joined to the first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

Point = tuple[float, float]


def contains(polygon: Sequence[Point], point: Point) -> bool:
    """Whether a point is inside a polygon: a ray to the right crosses an odd number of its sides (even-odd rule)."""
    x, y = point
    inside = False
    for (x1, y1), (x2, y2) in _sides(polygon):
        if (y1 > y) != (y2 > y) and x < x1 + (y - y1) / (y2 - y1) * (x2 - x1):
            inside = not inside
    return inside


def area(polygon: Sequence[Point]) -> float:
    """Return the area of a polygon that does not cross itself, by the shoelace formula."""
    return abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in _sides(polygon))) / 2


def is_self_crossing(polygon: Sequence[Point]) -> bool:
    """Whether two sides of a polygon that are no neighbours meet, or a corner stands twice."""
    if len(set(polygon)) < len(polygon):
        return True
    sides = _sides(polygon)
    return any(_has_common_point(*a, *b) for a, b in combinations(sides, 2) if not set(a) & set(b))


def _sides(polygon: Sequence[Point]) -> list[tuple[Point, Point]]:
    """Return the sides of a polygon, each as its two corners."""
    return list(zip(polygon, [*polygon[1:], polygon[0]], strict=True))


def _has_common_point(a: Point, b: Point, c: Point, d: Point) -> bool:
    """Whether the segments ab and cd have a common point; False if all four are on one line."""
    products = _cross_product(a, b, c), _cross_product(a, b, d), _cross_product(c, d, a), _cross_product(c, d, b)
    return any(products) and products[0] * products[1] <= 0 and products[2] * products[3] <= 0


def _cross_product(a: Point, b: Point, c: Point) -> float:
    """Return 0 if c is on the line from a to b; the sign of any other number is the side of the line."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
