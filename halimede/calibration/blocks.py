"""Blocks of consecutive samples that depend on one another, such as frames of a film. Pure.

Samples are held out, and drawn again by a bootstrap, as whole blocks (Carlstein, Annals of Statistics 1986; Künsch,
ibid. 1989). A block has one sample unless the samples' own order shows a dependence. Then its length is that of Politis
and White, "Automatic block-length selection for the dependent bootstrap", Econometric Reviews 23 (2004), with the
correction of Patton, Politis and White, ibid. 28 (2009): the autocorrelations up to the last one above chance, with
flat-top weights, give the length with the least error of a mean's variance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from halimede.calibration.temperature import Vector

Indices = NDArray[np.int64]


def block_length(series: Iterable[Vector]) -> int:
    """Return the length of blocks for samples in their order: the longest that one of these figures of them needs."""
    return max(map(_length, series), default=1)


def _length(values: Vector) -> int:
    number = len(values)
    following = max(5, math.ceil(math.sqrt(math.log10(max(2, number)))))
    correlations = _autocorrelations(values, math.ceil(math.sqrt(number)) + following)
    is_above = correlations > 2 * math.sqrt(math.log10(max(2, number)) / max(1, number))
    last = next((lag for lag in range(len(is_above)) if not is_above[lag + 1 : lag + 1 + following].any()), 0)
    if not last:
        return 1
    lags = np.arange(1, min(2 * last, len(correlations) - 1) + 1)
    weighted = np.clip(2 * (1 - lags / (2 * last)), 0, 1) * correlations[lags]
    slope, variance = 2 * float(weighted @ lags), 1 + 2 * float(weighted.sum())
    if variance <= 1:  # the mean is no less certain than that of independent samples
        return 1
    length: float = (1.5 * (slope / variance) ** 2 * number) ** (1 / 3)
    return max(1, math.ceil(length))


def _autocorrelations(values: Vector, last: int) -> Vector:
    """Return the autocorrelations at the lags 0 to ``last``; 0 if all values are equal."""
    centred = np.asarray(values, np.float64) - np.mean(values)
    square = float(centred @ centred)
    lags = min(last, len(centred) - 1)
    if not square:
        return np.zeros(lags + 1)
    return np.array([float(centred[lag:] @ centred[: len(centred) - lag]) / square for lag in range(lags + 1)])


def shuffled_blocks(number: int, length: int, seed: int) -> tuple[Indices, Indices]:
    """Return the indices of samples with their blocks in a random order, and the number of the block of each."""
    order = np.random.default_rng(seed).permutation(-(-number // length))
    indices = (order[:, np.newaxis] * length + np.arange(length)).ravel()
    blocks = np.repeat(np.arange(len(order)), length)
    return indices[indices < number], blocks[indices < number]
