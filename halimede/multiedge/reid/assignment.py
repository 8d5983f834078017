"""One-to-one assignment: pairs rows with columns so that the sum of their worths is the highest. Pure.

The Hungarian method with potentials and shortest augmenting paths (Kuhn 1955, Munkres 1957; in O(rows^2 * columns),
as Jonker and Volgenant 1987), one vectorised step for each row that a path passes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def assign(worth: NDArray[np.floating]) -> list[tuple[int, int]]:
    """Return the pairs of row and column, by row. Pairs of worth 0 or less are left out.

    ``worth`` is ``[rows, columns]``; the cost grows with the square of the smaller dimension.
    """
    rows, columns = worth.shape
    if not rows or not columns or not (worth > 0).any():
        return []
    if rows > columns:
        return sorted((row, column) for column, row in assign(worth.T))
    # an extra column of worth 0 for each row, which stays unpaired with it
    gains = np.maximum(worth, 0.0).astype(np.float64)
    costs = np.concatenate([-gains, np.zeros((rows, rows))], axis=1)
    owner = _cheapest(costs)
    pairs = [(int(owner[column]), column) for column in range(columns) if owner[column] >= 0]
    return sorted((row, column) for row, column in pairs if worth[row, column] > 0)


def _cheapest(costs: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the row of each column, -1 for none: each row gets one column, at the least total cost."""
    rows, columns = costs.shape
    of_row, of_column = np.zeros(rows), np.zeros(columns)
    owner = np.full(columns, -1)
    for start in range(rows):
        nearest = np.full(columns, np.inf)
        before = np.full(columns, -1)
        done = np.zeros(columns, bool)
        row, column = start, -1
        while True:
            reduced = costs[row] - of_row[row] - of_column
            if column >= 0:
                done[column] = True
            better = ~done & (reduced < nearest)
            nearest[better], before[better] = reduced[better], column
            step = int(np.argmin(np.where(done, np.inf, nearest)))
            delta = nearest[step]
            of_row[start] += delta
            of_row[owner[done]] += delta
            of_column[done] -= delta
            nearest[~done] -= delta
            column = step
            if owner[column] < 0:
                break
            row = owner[column]
        while column >= 0:
            previous = before[column]
            owner[column] = start if previous < 0 else owner[previous]
            column = previous
    return owner
