"""Connected regions of a mask, in pure NumPy: a library only for this is too large for an edge node.

The detection of texts and the detection of motion use it. A run is a row's uninterrupted sequence of set cells. The
work grows with the number of runs: a row of n cells has at most (n + 1) / 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: ``[height, width]``, True for each set cell
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Region:
    """A connected part of a mask.

    Attributes:
        x1: the first column; ``x2`` is one more than the last.
        y1: the first row; ``y2`` is one more than the last.
        area: the number of set cells.
        weight: the sum of the weights of the set cells; without weights the same as ``area``.

    """

    x1: int
    y1: int
    x2: int
    y2: int
    area: int
    weight: float


def regions(mask: Mask, gap: int = 0, weights: NDArray[np.floating[Any]] | None = None) -> list[Region]:
    """Return the connected parts of a mask, the one with the most set cells first. Cells that touch at corners connect.

    ``gap``: parts with at most so many unset cells between them are one; an odd number counts as the next even one.
    ``weights``: a number for each cell, ``[height, width]``; None: 1 for each.
    """
    labels, count = _label_parts(dilate(mask, (gap + 1) // 2))
    rows, columns = np.nonzero(mask)
    if not rows.size:
        return []
    owner = labels[rows, columns]  # the part of each set cell
    # first and last column and row of each part
    lows = [np.full(count, np.iinfo(np.intp).max) for _ in range(2)]
    highs = [np.full(count, -1) for _ in range(2)]
    for values, low, high in zip((columns, rows), lows, highs, strict=True):
        np.minimum.at(low, owner, values)
        np.maximum.at(high, owner, values)
    sizes = np.bincount(owner, minlength=count)
    order = np.argsort(-sizes, kind="stable")
    order = order[sizes[order] > 0]  # not every number is the label of a part
    table = np.stack([*lows, *(high + 1 for high in highs), sizes], axis=1)[order].tolist()
    sums = sizes if weights is None else np.bincount(owner, weights[rows, columns], minlength=count)
    counted = zip(table, sums[order].tolist(), strict=True)
    return [Region(x1, y1, x2, y2, area, weight) for (x1, y1, x2, y2, area), weight in counted]


def dilate(mask: Mask, by: int) -> Mask:
    """Return a mask with all cells set that are at most ``by`` cells from a set one, diagonally too."""
    for axis in (0, 1):
        wide = mask.copy()
        ahead, behind = (slice(None),) * axis, (slice(None),) * (1 - axis)
        for step in range(1, min(by, mask.shape[axis] - 1) + 1):
            wide[(*ahead, slice(step, None), *behind)] |= mask[(*ahead, slice(None, -step), *behind)]
            wide[(*ahead, slice(None, -step), *behind)] |= mask[(*ahead, slice(step, None), *behind)]
        mask = wide
    return mask


def _label_parts(mask: Mask) -> tuple[NDArray[np.intp], int]:
    """Return the label of each cell's part, ``[height, width]``, and a number above all labels; unset cells have 0."""
    height, width = mask.shape
    flat = np.zeros((height, width + 1), np.int8)  # the extra column separates each row from the next
    flat[:, :width] = mask
    edges = np.diff(flat.ravel(), prepend=0)
    starts, ends = np.nonzero(edges == 1)[0], np.nonzero(edges == -1)[0]
    parent = _merge_runs(starts.tolist(), ends.tolist(), width + 1)
    labels = np.zeros(height * (width + 1), np.intp)
    labels[flat.ravel() == 1] = np.repeat(parent, ends - starts)
    return labels.reshape(height, width + 1)[:, :width], len(starts)


def _merge_runs(starts: list[int], ends: list[int], stride: int) -> NDArray[np.intp]:
    """Return for each run the number of the first run of its part.

    ``starts`` and ``ends``: half-open positions in the flat mask, whose rows have ``stride`` cells.
    """
    parent = list(range(len(starts)))

    def first_run(run: int) -> int:
        """Return the first run of the part to which a run belongs by now."""
        while parent[run] != run:
            parent[run] = parent[parent[run]]
            run = parent[run]
        return run

    above = 0
    for run, (start, end) in enumerate(zip(starts, ends, strict=True)):
        while ends[above] + stride < start:  # it ends left of this run, also for later ones
            above += 1
        at = above  # the first run of the row above that may touch this one, at a corner too
        while at < run and starts[at] + stride <= end:
            first, second = sorted((first_run(at), first_run(run)))
            parent[second] = first
            at += 1
    return np.array([first_run(run) for run in range(len(starts))], np.intp)
