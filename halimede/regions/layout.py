"""One picture of the regions of a frame: each where it is in the frame, or packed into rows of a smaller picture.

``lay_out`` makes the ``RegionLayout``. A packed picture has the frame's ratio of sides, so that a model that resizes
pictures does not distort objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from halimede.regions.selection import BLOCK, FrameRegion, merge_overlapping

#: sides of packed pictures, as fractions of the frame's
CANVASES = (0.25, 0.375, 0.5, 0.75)
#: pixels between two regions, so that objects do not touch
GUTTER = BLOCK
#: one of so many pixels in each direction counts for the mean colour
STRIDE = 8

#: points ``[n, 2]``: x, y in pixels
Points = NDArray[np.float64]


class RegionPlacement(NamedTuple):
    """A region of the frame, and its left (``x``) and top (``y``) in the picture of regions, in pixels."""

    region: FrameRegion
    x: int
    y: int


class RegionLayout(Struct, frozen=True):
    """A picture of the regions of a frame.

    Attributes:
        width: of the picture in pixels.
        height: of the picture in pixels.
        placements: where each region is in the picture.
        in_place: each region is where it is in the frame; else regions are packed.

    """

    width: int
    height: int
    placements: tuple[RegionPlacement, ...]
    in_place: bool = True

    def paint(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """Return the picture of the regions of a frame; the space between them has the frame's mean colour.

        ``pixels``: of the frame, ``[height, width]`` or ``[height, width, channels]``; the result has as many axes.
        """
        colour = pixels[::STRIDE, ::STRIDE].reshape(-1, *pixels.shape[2:]).mean(axis=0)
        picture = np.empty((self.height, self.width, *pixels.shape[2:]), pixels.dtype)
        picture[:] = colour.astype(pixels.dtype)
        for region, x, y in self.placements:
            picture[y : y + region.height, x : x + region.width] = pixels[region.y1 : region.y2, region.x1 : region.x2]
        return picture

    def placement_at(self, points: Points) -> NDArray[np.int64]:
        """Return the index of the placement that contains each point ``[n, 2]`` of the picture; -1: none does."""
        return self._first_containing(points, [(placement.x, placement.y) for placement in self.placements])

    def region_at(self, points: Points) -> NDArray[np.int64]:
        """Return the index of the first region that contains each point ``[n, 2]`` of the frame; -1: none does."""
        return self._first_containing(points, [placement.region[:2] for placement in self.placements])

    def offsets(self) -> Points:
        """Return for each placement what is added to a point in it for the same point of the frame, ``[n, 2]``."""
        rows = [[placement.region.x1 - placement.x, placement.region.y1 - placement.y] for placement in self.placements]
        return np.array(rows, np.float64).reshape(-1, 2)

    def _first_containing(self, points: Points, origins: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        """Return the index of the first region that contains each point; -1: none does.

        ``origins``: left and top of each region.
        """
        owners = np.full(len(points), -1)
        x, y = points.T
        for index, (x1, y1) in reversed(list(enumerate(origins))):
            region, across, down = self.placements[index].region, x - x1, y - y1
            owners[(across >= 0) & (across < region.width) & (down >= 0) & (down < region.height)] = index
        return owners


def lay_out(regions: Sequence[FrameRegion], width: int, height: int, least_share: float) -> RegionLayout:
    """Return the smallest picture of regions of a frame of ``width`` x ``height`` pixels.

    ``least_share``: least sides of the picture, as a fraction of the frame's. If the regions fit into no smaller
    picture, each stays where it is in the frame. The regions of a packed picture do not overlap.
    """
    separate = merge_overlapping(regions)
    for share in CANVASES:
        if share < least_share:
            continue
        across, down = (max(BLOCK, round(side * share / BLOCK) * BLOCK) for side in (width, height))
        placements = pack_rows(separate, across, down) if across < width and down < height else None
        if placements is not None:
            return RegionLayout(across, down, tuple(placements), in_place=False)
    return RegionLayout(width, height, tuple(RegionPlacement(region, region.x1, region.y1) for region in regions))


def pack_rows(regions: Sequence[FrameRegion], width: int, height: int) -> list[RegionPlacement] | None:
    """Return regions placed in rows of a picture, the highest first, with gutters; None if they do not fit.

    First-fit decreasing height (Coffman et al., "Performance bounds for level-oriented two-dimensional packing
    algorithms", SIAM Journal on Computing 9, 1980).
    """
    rows: list[list[int]] = []  # of each row its top, its height, and the first free pixel
    placements = []
    for region in sorted(regions, key=lambda region: (-region.height, -region.width, region)):
        across = _round_up(region.width)
        row = next((row for row in rows if row[2] + region.width <= width), None)
        if row is None:
            top = rows[-1][0] + rows[-1][1] + GUTTER if rows else 0
            if region.width > width or top + region.height > height:
                return None
            row = [top, _round_up(region.height), 0]
            rows.append(row)
        placements.append(RegionPlacement(region, row[2], row[0]))
        row[2] += across + GUTTER
    return placements


def _round_up(side: int) -> int:
    """Return a side in whole blocks: a region at the edge of a frame may end within one."""
    return -(-side // BLOCK) * BLOCK
