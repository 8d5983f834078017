"""The trainer for PyTorch: state_dict as weights, the same result again, an ONNX model. Needs the extra ``pytorch``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from halimede.training.child_process import TrainingProcess
from halimede.training.tensor_file import decode, encode
from halimede.training.trainer import TrainingData, load_trainer
from halimede.training.weights import specs_of
from tests.training_world import digits
from tests.unit.training.test_child_process import settings

torch = pytest.importorskip("torch", reason="the extra pytorch is not installed")

CLASSES = 10
CODE = """
import math
from torch import nn
from halimede.training.trainers.pytorch import TorchTrainer

class Digits(TorchTrainer):
    def module(self, shape, classes):
        size = math.prod(shape)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(size, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, classes)
        )
"""


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    name = f"torch_trainer_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return load_trainer(f"{name}:Digits", {"epochs": "5"})


@pytest.fixture
def data() -> TrainingData:
    rows, labels = digits()
    return TrainingData(rows[:600].reshape(-1, 1, 8, 8), labels[:600], CLASSES, seed=3)


def test_it_learns_and_the_same_round_has_the_same_result(trainer: Any, data: TrainingData) -> None:
    first = trainer.initial_weights((1, 8, 8), CLASSES)
    results = [trainer.train(data, first)[0] for _ in range(2)]
    assert specs_of(results[0]) == specs_of(first)
    assert all(np.array_equal(results[0][name], results[1][name]) for name in first)
    assert trainer.evaluate(data, results[0])["accuracy"] > 0.9 > trainer.evaluate(data, first)["accuracy"]


def test_its_weights_travel_as_plain_numbers(trainer: Any) -> None:
    first = trainer.initial_weights((1, 8, 8), CLASSES)
    again = decode(encode(first), specs_of(first))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert first["2.num_batches_tracked"].shape == (1,)


def test_fedprox_stays_closer_to_the_weights_of_the_round(trainer: Any, data: TrainingData) -> None:
    first = trainer.initial_weights((1, 8, 8), CLASSES)

    def moved(mu: float) -> float:
        changed = TrainingData(data.samples, data.labels, CLASSES, 3, {"mu": mu})
        found, _ = trainer.train(changed, first)
        return float(np.abs(found["1.weight"] - first["1.weight"]).sum())

    assert moved(1.0) < moved(0.0)


def test_the_exported_model_answers_as_the_module_does(trainer: Any, data: TrainingData, tmp_path: Path) -> None:
    weights, _ = trainer.train(data, trainer.initial_weights((1, 8, 8), CLASSES))
    trainer.export(weights, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(["probabilities"], {"samples": data.samples.astype(np.float32)})
    assert found.shape == (600, CLASSES)
    accuracy = float((found.argmax(axis=1) == data.labels).mean())
    assert accuracy == pytest.approx(trainer.evaluate(data, weights)["accuracy"], abs=1e-3)


async def test_its_steps_run_within_the_limits_of_the_child_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "limited.py").write_text(CODE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with contextlib.closing(TrainingProcess(settings(tmp_path, "limited:Digits"))) as process:
        first = await process.step("initial", shape=[64])
        assert (first.reason, first.message) == ("", "")
        for _ in range(2):
            trained = await process.step("train", weights=first.content, specs=first.specs, seed=1)
            assert (trained.reason, trained.message) == ("", "")
            assert trained.metrics["loss"] > 0
        model = await process.step("export", weights=first.content, specs=first.specs)
        assert (model.reason, model.message) == ("", "")
        assert len(model.content) > 1000
