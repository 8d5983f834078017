"""Federated learning, which is not there: its names can be imported, and say so when they are used."""

from halimede.compat.sedna.service.server import AggregationServer
from halimede.compat.sedna.unsupported import FEDERATED, absent

__all__ = ("AggregationServer", "FederatedLearning")

FederatedLearning = absent("FederatedLearning", FEDERATED)
