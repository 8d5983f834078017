"""How sure a figure is: 95 % intervals of shares, of what follows from samples, and of paired differences. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from halimede.calibration.temperature import Vector
from halimede.stats.agreement import wilson

RESAMPLES = 1000
SEED = 0
#: of Student's t, two-sided 95 %, for 1 to 30 degrees of freedom; beyond, 1.96 * (1 + 1.3 / degrees) is near enough
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def share(hits: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Return a share and its interval (Wilson 1927)."""
    number, of = int(np.count_nonzero(hits)), len(hits)
    return (number / of if of else 0.0, *wilson(number, of))


def bootstrap(statistic: Callable[[NDArray[np.int64]], float], samples: int) -> tuple[float, float]:
    """Return the percentile interval (Efron 1979) of what is computed from samples, given by their indices."""
    chance = np.random.default_rng(SEED)
    drawn = [statistic(chance.integers(0, samples, samples)) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def mean_interval(values: Vector) -> tuple[float, float, float]:
    """Return the mean of independent runs and its interval (Student 1908); of paired runs, give their differences."""
    mean, runs = float(np.mean(values)), len(values)
    if runs < 2:
        return mean, -math.inf, math.inf
    degrees = runs - 1
    t = T95[degrees - 1] if degrees <= len(T95) else 1.96 * (1 + 1.3 / degrees)
    half = t * float(np.std(values, ddof=1)) / math.sqrt(runs)
    return mean, mean - half, mean + half
