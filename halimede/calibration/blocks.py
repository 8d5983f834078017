"""Blocks of consecutive samples that depend on one another, such as frames of a film. Pure.

Samples are held out, and drawn again by a bootstrap, as whole blocks (Carlstein, Annals of Statistics 1986; Künsch,
ibid. 1989). A block has one sample unless the samples' own order shows a dependence. Then its length is that of Politis
and White, "Automatic block-length selection for the dependent bootstrap", Econometric Reviews 23 (2004), with the
correction of Patton, Politis and White, ibid. 28 (2009): the autocorrelations up to the last one above chance, with
flat-top weights, give the length with the least error of a mean's variance.

What is above chance is shown by the same samples in random orders, because errors of a good model are so few that two
of them in a row have no normal distribution. Folders are sorted by class, and classes differ in how often they are
right. So only the distance from the mean of a class counts, and a random order exchanges samples of one class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from halimede.calibration.temperature import Vector

#: indices of samples, or numbers of their blocks: ``(n,) int64``
Indices = NDArray[np.int64]
#: number of random orders; an autocorrelation is above chance if it is higher than that of each of them
ORDERS = 100
#: seed of the random orders
SEED = 0


def block_length(series: Vector, classes: Sequence[str] | None = None) -> int:
    """Return the length of blocks for samples in their order, 1 if they are independent.

    It is the longest that one of the measures needs. ``series``: numbers of each sample, ``(measures, samples)``.
    ``classes``: the class of each sample; None: no classes.
    """
    number = series.shape[1]
    kinds = np.zeros(number, np.int64) if classes is None else np.unique(classes, return_inverse=True)[1]
    return max(_length(np.asarray(row, np.float64), kinds) for row in series)


def _length(values: Vector, kinds: Indices) -> int:
    """Return the length of blocks for one measure. ``kinds``: the class of each sample as a number from 0 on."""
    number = len(values)
    centred = values - (np.bincount(kinds, values) / np.bincount(kinds))[kinds]
    # the last lag above chance is one behind which so many are not (K_N of Politis and White)
    following = max(5, math.ceil(math.sqrt(math.log10(max(2, number)))))
    lags = np.arange(1, min(math.ceil(math.sqrt(number)) + following, number - 1) + 1)
    correlations = _autocorrelations(centred, lags)
    is_above = correlations > _highest_by_chance(centred, kinds, lags)
    last = next(lag for lag in range(len(lags) + 1) if not is_above[lag : lag + following].any())
    if not last:
        return 1
    weights = np.clip(2 * (1 - lags / (2 * last)), 0, 1) * correlations
    slope, variance = 2 * float(weights @ lags), 1 + 2 * float(weights.sum())
    if variance <= 1:  # the mean is no less certain than that of independent samples
        return 1
    # (2 G^2 / D * n)^(1/3), with G the slope and D = 4 / 3 * variance^2
    length: float = (1.5 * (slope / variance) ** 2 * number) ** (1 / 3)
    return max(1, math.ceil(length))


def _autocorrelations(centred: Vector, lags: Indices) -> Vector:
    """Return the autocorrelation at each lag; 0 if all values are equal."""
    square = float(centred @ centred)
    if not square:
        return np.zeros(len(lags))
    spectrum = np.fft.rfft(centred, 2 * len(centred))  # twice the length, so that the end does not meet the start
    return np.asarray(np.round(np.fft.irfft(np.abs(spectrum) ** 2)[lags] / square, 12))  # equal counts stay equal


def _highest_by_chance(centred: Vector, kinds: Indices, lags: Indices) -> float:
    """Return the highest autocorrelation at any of the lags, of samples in random orders within their classes."""
    generator = np.random.default_rng(SEED)
    by_class, highest = np.argsort(kinds, kind="stable"), 0.0
    for _ in range(ORDERS if len(lags) else 0):
        exchanged = np.empty_like(centred)
        exchanged[by_class] = centred[np.lexsort((generator.random(len(centred)), kinds))]
        highest = max(highest, float(_autocorrelations(exchanged, lags).max()))
    return highest


def shuffled_blocks(number: int, length: int, seed: int) -> tuple[Indices, Indices]:
    """Return the indices of samples with their blocks in a random order, and the block of each, numbered from 0 on.

    ``number``: of samples; ``length``: of a block in samples; ``seed``: of the order.
    """
    order = np.random.default_rng(seed).permutation(-(-number // length))
    indices = (order[:, np.newaxis] * length + np.arange(length)).ravel()
    blocks = np.repeat(np.arange(len(order)), length)
    return indices[indices < number], blocks[indices < number]
