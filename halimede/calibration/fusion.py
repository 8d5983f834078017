"""Fits the mixture of two answers: a logarithmic opinion pool, its weight that of the greatest likelihood.

The mixture has to earn its place: cross-validated, it must mend more of the big model's answers than it spoils.
Otherwise there is none, and the big model's word stands: it costs nothing where it cannot
help. Pure. Hinton, "Products of experts", ICANN 1999; Genest and Zidek, "Combining probability distributions",
Statistical Science 1986.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from halimede.calibration.deferral import FOLDS, folds
from halimede.calibration.temperature import Truth, Vector
from halimede.mining.calibration_file import MixtureRule

#: weights of the small model that are tried; that of the big one is 1 minus it
WEIGHTS = np.linspace(0, 0.9, 19)
#: fewer samples than this tell nothing
LEAST = 40


@dataclass(frozen=True, slots=True)
class Mixed:
    """The mixture, None: it does not help. Of the samples that were looked at, so many it mended, and spoiled."""

    rule: MixtureRule | None
    mended: int = 0
    spoiled: int = 0


def fit_mixture(edge: Vector, cloud: Vector, truth: Truth, *, seed: int = 0) -> Mixed:
    """Fit on calibrated distributions ``[samples, classes]`` of both models; ``truth`` is each sample's class index."""
    if len(truth) < LEAST:
        return Mixed(None)
    logs = np.stack([w * np.log(edge) + (1 - w) * np.log(cloud) for w in WEIGHTS])
    right = logs.argmax(axis=2) == truth
    gained = right.astype(np.int64) - right[0]  # weight 0 is the big model alone
    likely = np.take_along_axis(logs, truth[None, :, None], axis=2)[:, :, 0] - np.logaddexp.reduce(logs, axis=2)
    mended = spoiled = 0
    for part in folds(~right[0], FOLDS, seed):
        best = int(likely[:, ~part].mean(axis=1).argmax())
        mended += int((gained[best, part] > 0).sum())
        spoiled += int((gained[best, part] < 0).sum())
    weight = round(float(WEIGHTS[likely.mean(axis=1).argmax()]), 4)
    if not weight or mended <= spoiled:
        return Mixed(None, mended, spoiled)
    return Mixed(MixtureRule(kind="product", edge=weight, cloud=round(1 - weight, 4)), mended, spoiled)


def mixture(rule: MixtureRule, edge: Vector, cloud: Vector) -> Vector:
    """Return the mixture of calibrated distributions, as ``halimede.mining.mixture.pool`` does for one sample."""
    if rule.kind == "sum":
        pooled = rule.edge * edge + rule.cloud * cloud
        return np.asarray(pooled / pooled.sum(axis=1, keepdims=True))
    logs = rule.edge * np.log(edge) + rule.cloud * np.log(cloud)
    powers = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
