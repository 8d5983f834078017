"""Sedna's IncrementalLearning: train, evaluate and serve one model with the script's estimator."""

from halimede.compat.sedna.core.incremental_learning.incremental_learning import IncrementalLearning

__all__ = ("IncrementalLearning",)
