"""A trainer whose candidates are worse: the loop of the demo must refuse them."""

from __future__ import annotations

from collections.abc import Mapping

from halimede.training.trainer import TrainingData
from halimede.training.trainers.perceptron import Perceptron
from halimede.training.weights import Weights


class Worse(Perceptron):
    """Trains with labels that are off by one."""

    def train(self, data: TrainingData, weights: Weights) -> tuple[Weights, Mapping[str, float]]:
        """Train on wrong labels."""
        wrong = (data.labels + 1) % data.classes
        return super().train(TrainingData(data.samples, wrong, data.classes, data.seed, data.parameters), weights)
