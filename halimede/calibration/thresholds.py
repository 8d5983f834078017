"""Where the cut of a rule has to be so that a given share of samples goes up. Pure."""

from __future__ import annotations

import math

import numpy as np

from halimede.calibration.temperature import Vector


def cut_for_budget(hardness: Vector, ratio: float) -> float:
    """Return the cut at which the share of samples with ``hardness >= cut`` is nearest to ``ratio``.

    It lies in the middle between two samples. A sample that the rule cannot judge is infinitely hard: it goes up
    whatever the cut is. Samples of equal hardness go up together or not at all.
    """
    known = np.sort(hardness[np.isfinite(hardness)])[::-1]
    if not len(known):
        return 0.0
    wanted = ratio * len(hardness) - (len(hardness) - len(known))
    # after so many samples the next one is easier: between these a cut can be
    ends = np.flatnonzero(np.diff(known) < 0) + 1
    counts = np.concatenate([[0], ends, [len(known)]])
    count = int(counts[np.abs(counts - wanted).argmin()])
    if count == 0:
        return math.nextafter(float(known[0]), math.inf)
    if count == len(known):
        return float(known[-1])
    return between(float(known[count]), float(known[count - 1]))


def between(low: float, high: float) -> float:
    """Return the middle; ``high`` where there is no number between both."""
    middle = low / 2 + high / 2
    return middle if low < middle <= high else high


def quantiles(hardness: Vector, steps: int) -> list[float]:
    """Return quantiles at equal steps from 0 to 1, of the samples that the rule can judge."""
    known = hardness[np.isfinite(hardness)]
    return np.quantile(known, np.linspace(0, 1, steps + 1)).tolist() if len(known) else []
