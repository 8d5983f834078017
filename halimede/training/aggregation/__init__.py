"""How the updates of a round become new weights: a module for each algorithm, which ``registry`` finds by its name."""

from halimede.training.aggregation.registry import Aggregation, create, names, register

__all__ = ["Aggregation", "create", "names", "register"]
