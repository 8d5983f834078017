from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.inference.connected_regions import dilate, regions
from halimede.multiedge.stages.motion import remove_isolated

SIDES = st.integers(1, 12)
MASKS = st.builds(
    lambda height, width, seed, share: np.random.default_rng(seed).random((height, width)) < share,
    SIDES,
    SIDES,
    st.integers(0, 2**32),
    st.floats(0.1, 0.9),
)


def flood(mask: np.ndarray) -> list[tuple[int, ...]]:
    """The same by going from cell to cell."""
    left = {(int(y), int(x)) for y, x in zip(*np.nonzero(mask), strict=True)}
    found = []
    while left:
        waiting, part = [left.pop()], []
        while waiting:
            y, x = waiting.pop()
            part.append((y, x))
            near = {(y + i, x + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & left
            left -= near
            waiting += near
        rows, columns = zip(*part, strict=True)
        found.append((min(columns), min(rows), max(columns) + 1, max(rows) + 1, len(part)))
    return sorted(found)


def as_tuples(found):
    return sorted((part.x1, part.y1, part.x2, part.y2, part.area) for part in found)


@given(MASKS)
def test_parts_are_those_that_one_can_walk_through_the_largest_first(mask):
    parts = regions(mask)
    assert as_tuples(parts) == flood(mask)
    sizes = [part.area for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == mask.sum()


@pytest.mark.parametrize(("apart", "gap", "count"), [(1, 0, 2), (2, 2, 1), (3, 2, 2), (3, 4, 1)])
def test_parts_that_are_a_gap_apart_are_one(apart, gap, count):
    mask = np.zeros((9, 20), bool)
    mask[3:6, 2:5] = mask[3:6, 5 + apart : 8 + apart] = True
    found = regions(mask, gap)
    assert len(found) == count
    assert sum(part.area for part in found) == 18
    assert (found[0].x1, found[0].y1, found[0].y2) == (2, 3, 6)


def test_a_cell_grows_in_all_directions_up_to_the_edges():
    mask = np.zeros((4, 5), bool)
    mask[0, 2] = True
    np.testing.assert_array_equal(np.nonzero(dilate(mask, 1)), ([0, 0, 0, 1, 1, 1], [1, 2, 3, 1, 2, 3]))
    assert dilate(mask, 9).all()


def test_single_cells_are_dropped_and_blocks_stay():
    mask = np.zeros((6, 6), bool)
    mask[0, 0] = True
    mask[3:5, 3:5] = True
    assert as_tuples(regions(remove_isolated(mask, 4))) == [(3, 3, 5, 5, 4)]
