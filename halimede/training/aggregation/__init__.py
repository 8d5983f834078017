"""How the updates of a round become new weights: one file for each algorithm, found by its name (``registry.py``)."""

from halimede.training.aggregation.registry import Aggregation, create, names, register

__all__ = ["Aggregation", "create", "names", "register"]
