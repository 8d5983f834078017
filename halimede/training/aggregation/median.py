"""Median: the median of each value over the updates.

Yin et al. 2018, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, arXiv 1803.01498.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from halimede.api.aggregation import MedianParameters
from halimede.training.aggregation.registry import Aggregation, add_delta, register
from halimede.training.update_checks import Update
from halimede.training.weights import Weights


@register("Median")
@dataclass(slots=True)
class Median(MedianParameters, Aggregation):
    """The median of each value: up to half of the updates may be poisoned. Samples do not count."""

    def aggregate(self, weights: Weights, updates: Sequence[Update]) -> Weights:
        """Add the median of the updates."""
        return add_delta(
            weights,
            {
                name: np.median([update.delta[name].astype(np.float64) for update in updates], axis=0)
                for name in updates[0].delta
            },
        )
