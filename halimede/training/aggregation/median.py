"""Median: the median of each value over the updates.

Yin et al. 2018, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, arXiv 1803.01498.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from halimede.api.aggregation import MedianParameters
from halimede.training.aggregation.registry import Aggregation, add_delta, register, stack
from halimede.training.update_checks import Update
from halimede.training.weights import Weights


@register("Median")
@dataclass(slots=True)
class Median(MedianParameters, Aggregation):
    """An ``Aggregation``: the median of each value. Fewer than half of the updates may be poisoned.

    All updates weigh the same, whatever number of samples their trainers report.
    """

    def aggregate(self, weights: Weights, updates: Sequence[Update]) -> Weights:
        """Return the weights with the median of the updates added."""
        return add_delta(weights, {name: np.median(stack(updates, name), axis=0) for name in updates[0].delta})
