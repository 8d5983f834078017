"""Trimmed mean: the mean of each value without the largest and the smallest ones.

Yin et al. 2018, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, arXiv 1803.01498.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from halimede.api.aggregation import TrimmedMeanParameters
from halimede.training.aggregation.registry import Aggregation, add_delta, register, stack
from halimede.training.update_checks import Update
from halimede.training.weights import Weights


@register("TrimmedMean")
@dataclass(slots=True)
class TrimmedMean(TrimmedMeanParameters, Aggregation):
    """An ``Aggregation`` that leaves out the share ``trim`` of the values at each end.

    Unless ``trim`` is 0, that is at least one value of three or more. All updates weigh the same, because a trainer
    could claim to have many samples.
    """

    def aggregate(self, weights: Weights, updates: Sequence[Update]) -> Weights:
        """Return the weights with the trimmed mean of the updates added."""
        number = len(updates)
        # 0.2 x 15 is a little over 3 in floating-point numbers
        cut = min(math.ceil(round(self.trim * number, 9)), (number - 1) // 2)
        delta = {}
        for name in updates[0].delta:
            ordered = np.sort(stack(updates, name), axis=0)
            delta[name] = ordered[cut : number - cut].mean(axis=0)
        return add_delta(weights, delta)
