"""Connected parts of a mask, as boxes. Pure NumPy: a library for this alone would be a heavy thing on an edge node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Region:
    """A connected part: the half-open box ``left..right``, ``top..bottom``, and how many cells of it are set."""

    left: int
    top: int
    right: int
    bottom: int
    area: int


def regions(mask: Mask, gap: int = 0) -> list[Region]:
    """Return the connected parts of a mask, the largest first. Parts that are ``gap`` cells apart or nearer are one.

    The work grows with the number of runs of set cells in the mask's rows, which are at most half of its cells.
    """
    labels, count = _labelled(grown(mask, (gap + 1) // 2))
    rows, columns = np.nonzero(mask)
    if not rows.size:
        return []
    owner = labels[rows, columns]
    lows = [np.full(count, np.iinfo(np.intp).max) for _ in range(2)]
    highs = [np.full(count, -1) for _ in range(2)]
    for values, low, high in zip((columns, rows), lows, highs, strict=True):
        np.minimum.at(low, owner, values)
        np.maximum.at(high, owner, values)
    sizes = np.bincount(owner, minlength=count)
    order = np.argsort(-sizes, kind="stable")
    table = np.stack([*lows, *(high + 1 for high in highs), sizes], axis=1)[order[sizes[order] > 0]]
    return [Region(*row) for row in table.tolist()]


def grown(mask: Mask, by: int) -> Mask:
    """Set all cells around set ones, ``by`` in each direction."""
    for axis in (0, 1):
        wide = mask.copy()
        ahead, behind = (slice(None),) * axis, (slice(None),) * (1 - axis)
        for step in range(1, min(by, mask.shape[axis] - 1) + 1):
            wide[(*ahead, slice(step, None), *behind)] |= mask[(*ahead, slice(None, -step), *behind)]
            wide[(*ahead, slice(None, -step), *behind)] |= mask[(*ahead, slice(step, None), *behind)]
        mask = wide
    return mask


def crowded(mask: Mask, least: int) -> Mask:
    """Keep the cells that are set and have ``least`` set ones among the nine around them, itself included."""
    padded = np.pad(mask.astype(np.uint8), 1)
    across = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    return np.asarray(mask & (across[:-2] + across[1:-1] + across[2:] >= least))


def _labelled(mask: Mask) -> tuple[NDArray[np.intp], int]:
    """Number the connected parts (corners touch): the label of each set cell, and one more than the highest label."""
    height, width = mask.shape
    flat = np.zeros((height, width + 1), np.int8)  # a column that parts one row from the next
    flat[:, :width] = mask
    edges = np.diff(flat.ravel(), prepend=0)
    starts, ends = np.nonzero(edges == 1)[0], np.nonzero(edges == -1)[0]
    parent = _joined(starts.tolist(), ends.tolist(), width + 1)
    labels = np.zeros(height * (width + 1), np.intp)
    labels[flat.ravel() == 1] = np.repeat(parent, ends - starts)
    return labels.reshape(height, width + 1)[:, :width], len(starts)


def _joined(starts: list[int], ends: list[int], stride: int) -> NDArray[np.intp]:
    """Give each run the number of the first run of its part: runs touch that lie in neighbouring rows."""
    parent = list(range(len(starts)))

    def root(run: int) -> int:
        while parent[run] != run:
            parent[run] = parent[parent[run]]
            run = parent[run]
        return run

    above = 0
    for run, (start, end) in enumerate(zip(starts, ends, strict=True)):
        while ends[above] + stride < start:
            above += 1
        at = above
        while at < run and starts[at] + stride <= end:
            first, second = sorted((root(at), root(run)))
            parent[second] = first
            at += 1
    return np.array([root(run) for run in range(len(starts))], np.intp)
