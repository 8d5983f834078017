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

#: prefixes of the two moments in the state
FIRST, SECOND = "first/", "second/"


@register("FedAdam")
@dataclass(slots=True)
class FedAdam(FedAdamParameters, Aggregation):
    """Adam on the weighted mean."""

    _moments: Weights = field(default_factory=dict, init=False)

    def aggregate(self, weights: Weights, updates: Sequence[Update]) -> Weights:
        """Make one step."""
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
        """Return both moments."""
        return dict(self._moments)

    def restore(self, state: Weights) -> None:
        """Continue with both moments."""
        self._moments = dict(state)
