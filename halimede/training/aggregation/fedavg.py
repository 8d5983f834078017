"""FedAvg: the mean of the updates, each weighted by its samples.

McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data, arXiv 1602.05629.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from halimede.api.aggregation import FedAvgParameters
from halimede.training.aggregation.registry import Aggregation, add_delta, mean_delta, register
from halimede.training.update_checks import Update
from halimede.training.weights import Weights


@register("FedAvg")
@dataclass(slots=True)
class FedAvg(FedAvgParameters, Aggregation):
    """An ``Aggregation``: the weighted mean. A poisoned update moves it as far as the limit of its norm allows."""

    def aggregate(self, weights: Weights, updates: Sequence[Update]) -> Weights:
        """Return the weights with the weighted mean of the updates added."""
        return add_delta(weights, mean_delta(updates))
