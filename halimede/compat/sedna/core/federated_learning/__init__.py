"""Sedna's FederatedLearning: the script's estimator takes part in a training job on the bus."""

from halimede.compat.sedna.core.federated_learning.federated_learning import FederatedLearning
from halimede.compat.sedna.service.server import AggregationServer

__all__ = ("AggregationServer", "FederatedLearning")
