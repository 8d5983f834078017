"""Calibrates a model's confidence with one number, its temperature.

Temperature scaling (Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML 2017): logarithms
of probabilities are divided by T, which changes no answer. T has the least negative log likelihood on labelled samples,
which is convex in 1/T.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halimede.mining.mixture import DOUBT

#: numbers of any shape, and the class indices of samples ``(n,)``
Vector = NDArray[np.float64]
Truth = NDArray[np.int64]

#: bounds of a temperature
COLDEST, HOTTEST = 0.05, 20.0
#: steps of golden section over log T: the last is narrower than 0.001
SECTIONS = 24
GOLDEN = (5**0.5 - 1) / 2
#: ranges of confidence by which the calibration error is measured
BINS = 15


def calibrate(rows: Vector, temperatures: Vector | float) -> Vector:
    """Make distributions ``(n, classes)`` less certain (temperature over 1) or more (below 1); return the new ones.

    ``temperatures``: one for all, or ``(n,)``, one per row. First, a share (``DOUBT``) of each row is spread evenly
    over all classes, so that no probability is 0.
    """
    doubted = (1.0 - DOUBT) * rows + DOUBT / rows.shape[1]
    return softmax(np.log(doubted) / np.atleast_1d(temperatures)[:, None])


def temperature(rows: Vector, truth: Truth) -> float:
    """Return the temperature of least negative log likelihood for distributions and true classes; 1 without samples."""
    if not len(rows):
        return 1.0

    def cost(log_t: float) -> float:
        hot = calibrate(rows, float(np.exp(log_t)))
        return float(-np.log(hot[np.arange(len(rows)), truth].clip(min=1e-300)).mean())

    low, high = float(np.log(COLDEST)), float(np.log(HOTTEST))
    for _ in range(SECTIONS):
        lower, upper = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, upper) if cost(lower) <= cost(upper) else (lower, high)
    return float(np.exp((low + high) / 2))


def calibration_error(rows: Vector, truth: Truth) -> float:
    """Return the mean difference of confidence and accuracy, 0..1 (expected calibration error, 15 bins)."""
    if not len(rows):
        return 0.0
    sure, right = rows.max(axis=1), rows.argmax(axis=1) == truth
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    gaps = [abs(right[bins == b].mean() - sure[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    return float(sum(gaps))


def softmax(logits: Vector) -> Vector:
    """Return distributions along the last axis from raw scores, without overflow."""
    powers: Vector = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
