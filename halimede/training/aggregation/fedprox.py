"""FedProx: FedAvg whose trainers are held near the weights of the round.

Li et al. 2020, Federated Optimization in Heterogeneous Networks, arXiv 1812.06127: a trainer adds
``mu / 2 * |w - w_round|^2`` to its loss, which helps where nodes have unlike samples.
"""

from __future__ import annotations

from dataclasses import dataclass

from halimede.api.aggregation import FedProxParameters
from halimede.training.aggregation.fedavg import FedAvg
from halimede.training.aggregation.registry import register


@register("FedProx")
@dataclass(slots=True)
class FedProx(FedProxParameters, FedAvg):
    """FedAvg with the proximal term ``mu`` for the trainers."""

    def trainer_parameters(self) -> dict[str, float]:
        """Return ``mu``: trainers that know it add the term."""
        return {"mu": self.mu}
