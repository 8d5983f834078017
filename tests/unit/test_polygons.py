"""Polygons: what is inside, how large they are, and which cross themselves."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.polygons import area, contains, is_self_crossing

SQUARE = [(0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8)]
#: a U, open at its top
HOLLOW = [(0.0, 0.0), (0.2, 0.0), (0.2, 0.8), (0.8, 0.8), (0.8, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
BOW_TIE = [(0.0, 0.0), (1.0, 1.0), (1.0, 0.0), (0.0, 1.0)]


@pytest.mark.parametrize(
    ("polygon", "point", "is_inside"),
    [
        (SQUARE, (0.5, 0.5), True),
        (SQUARE, (0.1, 0.5), False),
        (SQUARE, (0.9, 0.5), False),
        (SQUARE, (0.5, 0.9), False),
        (HOLLOW, (0.5, 0.5), False),
        (HOLLOW, (0.5, 0.9), True),
        (HOLLOW, (0.1, 0.1), True),
    ],
)
def test_a_point_is_inside_if_a_ray_crosses_the_border_an_odd_number_of_times(polygon, point, is_inside):
    assert contains(polygon, point) is is_inside
    assert contains(polygon[::-1], point) is is_inside


@given(st.integers(3, 12), st.floats(0.05, 0.5))
def test_the_area_of_a_regular_polygon_is_exact_and_its_middle_inside(corners, radius):
    angles = [2 * math.pi * i / corners for i in range(corners)]
    polygon = [(0.5 + radius * math.cos(a), 0.5 + radius * math.sin(a)) for a in angles]
    assert area(polygon) == pytest.approx(corners / 2 * radius**2 * math.sin(2 * math.pi / corners))
    assert contains(polygon, (0.5, 0.5))
    assert not is_self_crossing(polygon)


@pytest.mark.parametrize(
    ("polygon", "is_crossing"),
    [
        (SQUARE, False),
        (HOLLOW, False),
        (BOW_TIE, True),
        ([(0.0, 0.0), (1.0, 0.0), (0.5, 0.5), (1.0, 0.0)], True),  # a corner stands twice
        ([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.5, 0.0), (0.0, 1.0)], True),  # a corner on another side
    ],
)
def test_a_border_that_meets_itself_crosses_itself(polygon, is_crossing):
    assert is_self_crossing(polygon) is is_crossing
