"""FedAdam: the mean update is the gradient of an Adam step at the aggregator.

Reddi et al. 2021, Adaptive Federated Optimization, arXiv 2003.00295, algorithm 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from halimede.api.aggregation import FedAdamParameters
from halimede.training.aggregation.registry import Aggregation, add_delta, mean_delta, register
from halimede.training.update_checks import Update
from halimede.training.weights import Weights

#: prefixes of the names of Adam's two moments in the state
FIRST, SECOND = "first/", "second/"


@register("FedAdam")
@dataclass(slots=True)
class FedAdam(FedAdamParameters, Aggregation):
    """An ``Aggregation``: a step of Adam, whose gradient is the mean of the updates, each weighted by its samples."""

    _moments: Weights = field(default_factory=dict, init=False)

    def aggregate(self, weights: Weights, updates: Sequence[Update]) -> Weights:
        """Return the weights after one step of Adam, and keep its moments for the next round."""
        step = {}
        for name, mean in mean_delta(updates).items():
            first = self._moments.get(FIRST + name, np.zeros_like(mean))
            # the paper begins with tau squared
            second = self._moments.get(SECOND + name, np.full_like(mean, self.tau**2))
            first = self.beta1 * first + (1 - self.beta1) * mean
            second = self.beta2 * second + (1 - self.beta2) * np.square(mean)
            self._moments |= {FIRST + name: np.asarray(first), SECOND + name: np.asarray(second)}
            step[name] = self.rate * first / (np.sqrt(second) + self.tau)
        return add_delta(weights, step)

    def state(self) -> Weights:
        """Return both moments of each tensor, under their prefixes."""
        return dict(self._moments)

    def restore(self, state: Weights) -> None:
        """Continue with both moments, as ``state`` has returned them."""
        self._moments = dict(state)
