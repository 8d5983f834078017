"""One-to-one assignment: pairs rows with columns so that the sum of the pairs' worths is the highest.

``assign`` is the Hungarian method with potentials and shortest augmenting paths (Kuhn 1955, Munkres 1957; in
O(rows^2 * columns) as by Jonker and Volgenant 1987), with one vectorised step for each row that a path passes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def assign(worth: NDArray[np.floating]) -> list[tuple[int, int]]:
    """Return the pairs (row, column), by row. Pairs of worth 0 or less are left out.

    ``worth``: that of each pair, ``(rows, columns)``. The time grows with the square of the smaller dimension.
    """
    rows, columns = worth.shape
    if not rows or not columns or not (worth > 0).any():
        return []
    if rows > columns:
        return sorted((row, column) for column, row in assign(worth.T))
    # an extra column of worth 0 for each row, which stays unpaired with it
    gains = np.maximum(worth, 0.0).astype(np.float64)
    costs = np.concatenate([-gains, np.zeros((rows, rows))], axis=1)
    owner = _cheapest_owners(costs)
    pairs = [(int(owner[column]), column) for column in range(columns) if owner[column] >= 0]
    return sorted((row, column) for row, column in pairs if worth[row, column] > 0)


def _cheapest_owners(costs: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the row that owns each column, ``(columns,)``; -1 for none. Each row gets one, at the least total cost.

    ``costs``: ``(rows, columns)``, with at least as many columns as rows.
    """
    rows, columns = costs.shape
    row_potentials, column_potentials = np.zeros(rows), np.zeros(columns)
    owner = np.full(columns, -1)
    for start in range(rows):
        nearest = np.full(columns, np.inf)
        previous_columns = np.full(columns, -1)
        visited = np.zeros(columns, bool)
        row, column = start, -1
        while True:  # visit columns, the cheapest first, until one is free
            reduced = costs[row] - row_potentials[row] - column_potentials
            if column >= 0:
                visited[column] = True
            better = ~visited & (reduced < nearest)
            nearest[better], previous_columns[better] = reduced[better], column
            step = int(np.argmin(np.where(visited, np.inf, nearest)))
            delta = nearest[step]
            row_potentials[start] += delta
            row_potentials[owner[visited]] += delta
            column_potentials[visited] -= delta
            nearest[~visited] -= delta
            column = step
            if owner[column] < 0:
                break
            row = owner[column]
        while column >= 0:  # along the path, each column gets the row of the column before it
            previous = previous_columns[column]
            owner[column] = start if previous < 0 else owner[previous]
            column = previous
    return owner
