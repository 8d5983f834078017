"""One poisoned trainer of five moves the robust algorithms little, and FedAvg much: with real training on digits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from examples.digits.data import load
from examples.federated.simulation import JobParameters, simulate
from halimede.training.tensor_file import decode, encode
from halimede.training.trainer import TrainingData
from halimede.training.update_checks import Update
from halimede.training.weights import WeightsError, check_finite, specs_of

NODES, POISONED = 5, "trainer0"


def _altered(update: Update, kind: str) -> Update:
    if update.trainer != POISONED:
        return update
    random = np.random.default_rng(int(update.delta["layer0.weight"].sum() * 1e6) & 0xFFFF)
    change = {
        "scaled": lambda each: each * np.float32(-100),
        "random": lambda each: random.normal(0, 10, each.shape).astype(np.float32),
        "not finite": lambda each: np.full_like(each, np.nan),
        "wrong shape": lambda each: np.zeros((*each.shape, 2), np.float32),
    }[kind]
    return replace(update, delta={name: change(each) for name, each in update.delta.items()})


def arriving(kind: str):
    def receive(update: Update) -> Update | None:
        sent = _altered(update, kind) if kind else update
        try:
            delta = decode(encode(sent.delta), specs_of(update.delta))
            check_finite(delta)
        except WeightsError:
            return None
        return replace(sent, delta=delta)

    return receive


def accuracy(aggregation: str, kind: str, *, clip: bool = True) -> float:
    """Return the accuracy of a job whose five nodes have like digits, the first of them poisoned."""
    split = load()
    order = np.random.default_rng(0).permutation(len(split.train_y))
    nodes = [TrainingData(split.train_x[i], split.train_y[i], 10) for i in np.array_split(order, NODES)]
    trainer = {"epochs": "2", "rate": "0.05"}
    job = JobParameters(10, trainer, aggregation, {}, arriving=arriving(kind), clip=clip)
    return simulate(nodes, job).accuracy[-1]


@cache
def clean(aggregation: str) -> float:
    return accuracy(aggregation, "")


@pytest.mark.parametrize("aggregation", ["TrimmedMean", "Median"])
@pytest.mark.parametrize("kind", ["scaled", "random", "not finite", "wrong shape"])
def test_a_poisoned_trainer_moves_robust_algorithms_by_two_points_at_most(aggregation: str, kind: str) -> None:
    assert clean(aggregation) > 0.9
    assert abs(accuracy(aggregation, kind) - clean(aggregation)) <= 0.02


@pytest.mark.parametrize("kind", ["scaled", "random"])
def test_the_same_update_destroys_the_plain_mean(kind: str) -> None:
    assert clean("FedAvg") - accuracy("FedAvg", kind, clip=False) > 0.2
