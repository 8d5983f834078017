"""Built-in trainers learn, repeat themselves exactly, and write models that serve; a user's class is found."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from examples.federated.split import CLASSES, together, training_parts, unseen
from halimede.api.model import ModelSpec
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.inference import open_model
from halimede.training import candidate, child
from halimede.training.child_messages import TrainingTask
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


def test_a_step_follows_the_gradient_of_the_loss_and_weights_decay_but_not_biases() -> None:
    random = np.random.default_rng(3)
    samples, labels = random.normal(size=(12, 4)).astype(np.float32), np.arange(12) % 3
    data = TrainingData(samples, labels, 3, 0, {})
    trainer = Perceptron(hidden="5", rate="1", momentum="0", decay="0.5", epochs="1", batch="100")
    weights = {name: each + np.float32(0.1) for name, each in trainer.initial_weights((4,), 3).items()}
    after, metrics = trainer.train(data, weights)
    assert metrics["loss"] == pytest.approx(trainer.evaluate(data, weights)["loss"], rel=1e-5)

    def loss(name: str, at: tuple[int, ...], change: float) -> float:
        moved = weights[name].copy()
        moved[at] += change
        return trainer.evaluate(data, weights | {name: moved})["loss"]

    for name, tensor in weights.items():
        for at in np.ndindex(tensor.shape):
            slope = (loss(name, at, 0.01) - loss(name, at, -0.01)) / 0.02
            decay = 0.5 * tensor[at] if name.endswith("weight") else 0.0
            assert after[name][at] == pytest.approx(tensor[at] - slope - decay, abs=0.01)


def test_the_first_weights_have_the_spread_of_their_inputs_and_nothing_else_is_known() -> None:
    for inputs in (100, 400):
        weights = Perceptron(hidden="").initial_weights((inputs,), 50)
        assert weights["layer0.weight"].std() == pytest.approx(np.sqrt(2 / inputs), rel=0.05)
        assert not weights["layer0.bias"].any()
    zeros = {name: np.zeros_like(each) for name, each in weights.items()}
    data = TrainingData(np.ones((4, 400), np.float32), np.array([0, 0, 0, 7]), 50, 0, {})
    assert Perceptron(hidden="").evaluate(data, zeros) == pytest.approx({"accuracy": 0.75, "loss": np.log(50)})


def test_the_present_model_may_be_in_the_folder_of_an_archive(tmp_path: Path) -> None:
    trainer, file = Perceptron(), tmp_path / "unpacked" / "model.onnx"
    file.parent.mkdir()
    trainer.export(trainer.initial_weights((64,), CLASSES), file)
    spec = ModelSpec(url="file:///model.onnx", format="onnx", labels=LABELS)
    for path in (file, file.parent):
        with candidate._open_present(str(path), spec) as model:
            assert model.labels == tuple(LABELS)


def test_files_of_a_folder_have_no_limit_of_time_unless_the_round_has_one() -> None:
    task = TrainingTask(
        do="train", entry="Perceptron", parameters={}, model_spec="", memory_bytes=1, seconds=1, clock_s=1,
        written_bytes=1,
    )  # fmt: skip
    assert child._until_ns(task) == math.inf
    assert child._until_ns(msgspec.structs.replace(task, until_ns=5)) == 5


def test_metrics_of_a_user_are_bounded_and_finite() -> None:
    found = child._metrics({"k" * 64: 1, "x" * 65: 2.5, **{f"m{i}": 0.0 for i in range(40)}})
    assert len(found) == 32
    assert (found["k" * 64], found["x" * 64]) == (1.0, 2.5)
    for bad in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(HalimedeError, match="must return finite numbers"):
            child._metrics({"fine": 1.0, "loss": bad})


def test_training_leaves_the_weights_that_it_was_given_as_they_are() -> None:
    trainer = Perceptron(epochs="1")
    weights = trainer.initial_weights((64,), CLASSES)
    before = {name: each.copy() for name, each in weights.items()}
    trainer.train(training_parts()[0], weights)
    assert all((weights[name] == before[name]).all() for name in before)


def test_the_proximal_term_keeps_a_trainer_near_the_weights_of_the_round() -> None:
    trainer = Perceptron(epochs="3")
    start = trainer.initial_weights((64,), CLASSES)
    terms: list[dict[str, float]] = [{}, {"mu": 0.0}, {"mu": 0.1}, {"mu": 1.0}]
    moved = [norm(difference(trained(trainer, **term)[0], start)) for term in terms]
    assert moved[0] == moved[1] > moved[2] > moved[3]


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


def test_a_users_class_may_be_in_one_python_file_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    monkeypatch.delitem(sys.modules, "lone_trainer", raising=False)
    (tmp_path / "0123abcd").write_text(CODE)  # as a node stores it
    found = load_trainer("src/lone_trainer.py:Mean", {"rate": "0.25"}, str(tmp_path / "0123abcd"))
    assert found.rate == 0.25  # type: ignore[attr-defined]
    (tmp_path / "bad").write_text("import absent_module")
    with pytest.raises(InvalidFieldError, match=r"reading it as a Python file failed with .*absent_module"):
        load_trainer("bad_trainer.py:Mean", {}, str(tmp_path / "bad"))


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
