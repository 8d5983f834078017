"""What a participant of a federated job of Sedna returns to its script."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from halimede.compat.sedna.federated_job import ScriptTrainer
from halimede.training.tensor_file import encode
from halimede.training.weights import specs_of


class Estimator:
    """Adds one to its weights, and counts its trainings."""

    def __init__(self) -> None:
        self.weights, self.trained = [np.ones(3)], 0

    def train(self, train_data: Any, valid_data: Any = None) -> dict[str, Any]:
        self.trained += 1
        self.weights = [weights + 1 for weights in self.weights]
        return {"loss": 1 / self.trained, "note": "no number"}

    def get_weights(self) -> list[Any]:
        return self.weights

    def set_weights(self, weights: list[Any]) -> None:
        self.weights = weights


class Evaluated(Estimator):
    def evaluate(self, valid_data: Any) -> dict[str, float]:
        return {"accuracy": float(self.weights[0].sum())}


@pytest.mark.parametrize(
    ("estimator", "valid_data", "metrics"),
    [
        (Estimator, [1, 2], {"loss": 0.5}),
        (Evaluated, None, {"loss": 0.5}),
        (Evaluated, [1, 2], {"accuracy": 6.0}),
    ],
    ids=["no evaluate", "no data to evaluate with", "evaluated"],
)
def test_the_last_numbers_of_the_estimator_are_returned_after_the_step_that_only_evaluates(
    monkeypatch: pytest.MonkeyPatch, estimator: type[Estimator], valid_data: Any, metrics: dict[str, float]
) -> None:
    names = {"SERVICE_NAME": "job", "WORKER_NAME": "job-edge0", "NODE_NAME": "edge0"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    trainer = ScriptTrainer(estimator(), [1, 2, 3], valid_data, {})
    assert not trainer._carry_out("describe", {}).reason
    for step in ("train", "train", "evaluate"):
        final = {"tensor0": np.full(3, 2.0)}
        result = trainer._carry_out(step, {"weights": encode(final), "specs": specs_of(final)})
        assert not result.message
    assert trainer.metrics == metrics
