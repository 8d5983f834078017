"""Limits of what the parties of a training take: parameters of the built-in trainer, files of others, and states."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from halimede.api.model import ModelSpec
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import TensorFile
from halimede.training.roles import trainer
from halimede.training.settings import JobSettings, TrainingSettings
from halimede.training.tensor_exchange import TensorExchange
from halimede.training.trainer import TrainingData
from halimede.training.trainers.perceptron import Perceptron
from halimede.training.weights import WeightsError, digest_of
from halimede.worker.settings import WorkerSettings
from tests.simulated import eventually

pytestmark = pytest.mark.simulated


def worker_settings(folder: Path, model_path: str = "", labels: Sequence[str] = ("a",)) -> WorkerSettings:
    return WorkerSettings(
        role="edge", namespace="default", service="job", worker="t0", node="edge0", uid="u-1", model_path=model_path,
        model=ModelSpec(url="/none", format="onnx", labels=list(labels)), estimator="", broker="", state=folder,
        period_s=1, grace_s=1,
    )  # fmt: skip


#: values in the range of a parameter, and outside of it
RANGES = {
    "epochs": (["1", "10000"], ["0", "10001"]),
    "batch": (["1"], ["0"]),
    "hidden": (["", "65536", ",".join(["1"] * 8)], ["0", "4,0", "65537", ",".join(["1"] * 9)]),
    "rate": (["1"], ["0", "1.01", "nan"]),
    "momentum": (["0"], ["1", "-0.1"]),
    "decay": (["0"], ["1", "-0.1"]),
}


@pytest.mark.parametrize("name", RANGES)
def test_each_parameter_of_the_built_in_trainer_has_its_range(name: str) -> None:
    inside, outside = RANGES[name]
    for value in inside:
        Perceptron(**{name: value})
    for value in outside:
        with pytest.raises(ValueError, match=r"must be|at most"):
            Perceptron(**{name: value})


def test_without_a_proximal_term_a_training_is_that_of_a_term_of_zero() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    labels = (rows[:, 0] > 0).astype(np.int64)
    perceptron = Perceptron(hidden="", epochs="3")
    weights = perceptron.initial_weights((4,), 2)
    plain, zero, one = (
        perceptron.train(TrainingData(rows, labels, 2, parameters=parameters), weights)[0]
        for parameters in ({}, {"mu": 0.0}, {"mu": 1.0})
    )
    assert all(np.array_equal(plain[name], zero[name]) for name in plain)
    assert any(not np.array_equal(plain[name], one[name]) for name in plain)


async def test_a_file_of_another_size_or_content_than_was_published_is_refused(tmp_path: Path) -> None:
    broker, content = MemoryBroker(), b"weights"
    digest = digest_of(content)
    async with MemoryBus("a", broker) as first, MemoryBus("b", broker) as second:
        parties = [TensorExchange(bus, "default", "job", name) for name, bus in (("a", first), ("b", second))]
        for party in parties:
            await party.start()
        serving = asyncio.create_task(parties[0].serve())
        (tmp_path / "file").write_bytes(content)
        parties[0].offered[digest] = tmp_path / "file"
        assert await parties[1].fetch("a", TensorFile(digest=digest, size=7), 7) == content
        assert (parties[1].received_bytes, parties[1].sent_bytes, parties[1].moved_bytes) == (7, 0, 7)
        await eventually(lambda: parties[0].moved_bytes >= 7, 10.0)
        for size, most, reason in ((7, 6, "TooLarge"), (8, 9, "Unreadable"), (6, 9, "Unreadable")):
            with pytest.raises(WeightsError) as caught:
                await parties[1].fetch("a", TensorFile(digest=digest, size=size), most)
            assert caught.value.reason == reason
        serving.cancel()


def test_the_will_of_a_trainer_clears_its_retained_state(tmp_path: Path) -> None:
    job = trainer(TrainingSettings(worker_settings(tmp_path), JobSettings(trainers={"t0": "edge0"})))
    will = job.announce().will
    assert (will.payload, will.qos, will.retain) == (b"", 1, True)
