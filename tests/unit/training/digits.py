"""Rounds of federated training in one process, on the digits: what the tests of aggregation and trainers measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from examples.digits.data import load
from halimede.training.aggregation import create
from halimede.training.trainer import TrainingData, load_trainer
from halimede.training.update_checks import Update, clipped
from halimede.training.weights import Weights, difference

CLASSES = 10
#: the update of a trainer as it arrives; None: refused
Arriving = Callable[[Update], Update | None]


def parts(nodes: int, seed: int = 0) -> list[TrainingData]:
    """Return the training half of the digits, shuffled, in equal parts."""
    split = load()
    order = np.random.default_rng(seed).permutation(len(split.train_y))
    return [TrainingData(split.train_x[i], split.train_y[i], CLASSES) for i in np.array_split(order, nodes)]


def unseen_half() -> TrainingData:
    split = load()
    return TrainingData(split.test_x, split.test_y, CLASSES)


def accuracy(
    aggregation: str, data: Sequence[TrainingData], arriving: Arriving, *, rounds: int = 10, clip: bool = True
) -> float:
    """Train by federated rounds and return the accuracy on the test half."""
    trainer, aggregator = load_trainer("Perceptron", {"epochs": "2"}), create(aggregation, {})
    weights: Weights = trainer.initial_weights((64,), CLASSES)
    for number in range(rounds):
        updates = []
        for i, part in enumerate(data):
            seeded = TrainingData(part.samples, part.labels, CLASSES, seed=number * 100 + i)
            after, metrics = trainer.train(seeded, weights)
            update = arriving(Update(f"t{i}", len(part), difference(after, weights), dict(metrics)))
            updates += [update] if update else []
        weights = aggregator.aggregate(weights, clipped(updates)[0] if clip else updates)
    return trainer.evaluate(unseen_half(), weights)["accuracy"]
