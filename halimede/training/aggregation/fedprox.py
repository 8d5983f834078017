"""FedProx: FedAvg whose trainers stay near the weights of the round.

Li et al. 2020, Federated Optimization in Heterogeneous Networks, arXiv 1812.06127: a trainer adds
``mu / 2 * |w - w_round|^2`` to its loss, which helps if nodes have unlike samples.
"""

from __future__ import annotations

from dataclasses import dataclass

from halimede.api.aggregation import FedProxParameters
from halimede.training.aggregation.fedavg import FedAvg
from halimede.training.aggregation.registry import register


@register("FedProx")
@dataclass(slots=True)
class FedProx(FedProxParameters, FedAvg):
    """An ``Aggregation``: ``FedAvg`` with the factor ``mu`` of the proximal term, which trainers add to their loss."""

    def trainer_parameters(self) -> dict[str, float]:
        """Return ``mu``. Trainers that do not know it ignore it."""
        return {"mu": self.mu}
