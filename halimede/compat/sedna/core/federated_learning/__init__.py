"""Federated learning, which is not supported: its names can be imported, and raise an error when used."""

from halimede.compat.sedna.service.server import AggregationServer
from halimede.compat.sedna.unsupported import FEDERATED, absent

__all__ = ("AggregationServer", "FederatedLearning")

FederatedLearning = absent("FederatedLearning", FEDERATED)
