"""Built-in trainers learn, repeat themselves exactly, and write models that serve; a user's class is found."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from examples.federated.split import CLASSES, together, training_parts, unseen
from halimede.api.model import ModelSpec
from halimede.errors import InvalidFieldError
from halimede.inference import open_model
from halimede.training.trainer import TrainingData, load_trainer
from halimede.training.trainers.perceptron import Perceptron
from halimede.training.weights import Weights, difference, norm

LABELS = [str(digit) for digit in range(CLASSES)]


def trained(trainer: Perceptron, seed: int = 0, **parameters: float) -> tuple[Weights, dict[str, float]]:
    data = together(training_parts())
    weights = trainer.initial_weights((64,), CLASSES)
    after, metrics = trainer.train(TrainingData(data.samples, data.labels, CLASSES, seed, parameters), weights)
    return after, dict(metrics)


@pytest.mark.parametrize(("hidden", "least"), [("", 0.92), ("64", 0.94)], ids=["softmax regression", "perceptron"])
def test_it_learns_the_digits_and_its_model_answers_the_same(hidden: str, least: float, tmp_path: Path) -> None:
    trainer = Perceptron(hidden=hidden, epochs="20")
    weights, metrics = trained(trainer)
    assert metrics["loss"] < 0.3
    found = trainer.evaluate(unseen(), weights)
    assert found["accuracy"] > least

    trainer.export(weights, tmp_path / "model.onnx")
    spec = ModelSpec(url="file:///model.onnx", format="onnx", labels=LABELS)
    with open_model(tmp_path / "model.onnx", spec) as model:
        answers = [model.predict([model.prepare(sample)])[0].label for sample in unseen().samples]
    right = np.mean([answer == str(label) for answer, label in zip(answers, unseen().labels, strict=True)])
    assert right == pytest.approx(found["accuracy"], abs=1e-9)


def test_a_seed_gives_the_same_weights_each_time_and_another_seed_others() -> None:
    first, again, other = (trained(Perceptron(epochs="1"), seed)[0] for seed in (1, 1, 2))
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)
    assert any(first[name].tobytes() != other[name].tobytes() for name in first)


def test_training_leaves_the_weights_that_it_was_given_as_they_are() -> None:
    trainer = Perceptron(epochs="1")
    weights = trainer.initial_weights((64,), CLASSES)
    before = {name: each.copy() for name, each in weights.items()}
    trainer.train(training_parts()[0], weights)
    assert all((weights[name] == before[name]).all() for name in before)


def test_the_proximal_term_keeps_a_trainer_near_the_weights_of_the_round() -> None:
    trainer = Perceptron(epochs="3")
    start = trainer.initial_weights((64,), CLASSES)
    moved = [norm(difference(trained(trainer, mu=mu)[0], start)) for mu in (0.0, 0.1, 1.0)]
    assert moved[0] > moved[1] > moved[2]


def test_a_node_whose_samples_are_all_used_for_training_reports_no_metrics_instead_of_nan() -> None:
    trainer = Perceptron()
    nothing = TrainingData(np.zeros((0, 64), np.float32), np.zeros(0, np.int64), CLASSES)
    assert trainer.evaluate(nothing, trainer.initial_weights((64,), CLASSES)) == {}


CODE = """
class Mean:
    def __init__(self, rate="0.1"):
        self.rate = float(rate)
    def train(self, data, weights):
        return weights, {"loss": 0.0}
    def evaluate(self, data, weights):
        return {"accuracy": 1.0}
    def export(self, weights, path):
        path.write_bytes(b"")

class Half:
    def train(self, data, weights):
        return weights, {}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "users_trainer.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "users_trainer", raising=False)
    return "users_trainer"


def test_a_users_class_is_loaded_with_its_parameters(module: str) -> None:
    assert load_trainer(f"{module}:Mean", {"rate": "0.5"}).rate == 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("entry", "parameters", "field", "fix"),
    [
        ("users_trainer:Half", {}, "spec.trainer.entry", "no method evaluate and no method export"),
        ("users_trainer:None", {}, "spec.trainer.entry", "Mean, Half"),
        ("absent_trainer:Mean", {}, "spec.trainer.entry", "No module named 'absent_trainer'"),
        ("Perceptrn", {}, "spec.trainer.entry", "module:Class"),
        ("users_trainer:Mean", {"rate": "fast"}, "spec.trainer.parameters", "could not convert"),
        ("users_trainer:Mean", {"speed": "1"}, "spec.trainer.parameters", "unexpected keyword argument 'speed'"),
        ("Perceptron", {"epochs": "0"}, "spec.trainer.parameters", "epochs must be 1 to"),
        ("Perceptron", {"hidden": "-3"}, "spec.trainer.parameters", "units"),
        ("Perceptron", {"rate": "nan"}, "spec.trainer.parameters", "rate must be"),
    ],
)
@pytest.mark.usefixtures("module")
def test_what_cannot_train_is_refused_with_field_and_remedy(
    entry: str, parameters: dict[str, str], field: str, fix: str
) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        load_trainer(entry, parameters)
    assert caught.value.field == field
    assert fix in str(caught.value)
