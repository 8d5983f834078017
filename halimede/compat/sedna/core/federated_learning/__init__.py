"""Federated learning, which is not there: its names can be imported, and say so when they are used."""

from halimede.compat.sedna.missing import FEDERATED, absent
from halimede.compat.sedna.service.server import AggregationServer

__all__ = ("AggregationServer", "FederatedLearning")

FederatedLearning = absent("FederatedLearning", FEDERATED)
