"""Limits of what the parties of a training take: parameters of the built-in trainer, files of others, and states."""

from __future__ import annotations

import asyncio
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
from tests.simulated import eventually, simulated


@pytest.mark.parametrize(
    ("parameters", "is_valid"),
    [
        ({"epochs": "10000"}, True),
        ({"epochs": "10001"}, False),
        ({"epochs": "1"}, True),
        ({"epochs": "0"}, False),
        ({"batch": "1"}, True),
        ({"batch": "0"}, False),
        ({"hidden": ",".join(["1"] * 8)}, True),
        ({"hidden": ",".join(["1"] * 9)}, False),
        ({"hidden": "65536"}, True),
        ({"hidden": "65537"}, False),
        ({"hidden": "0"}, False),
        ({"hidden": "4,0"}, False),
        ({"hidden": ""}, True),
        ({"rate": "1"}, True),
        ({"rate": "1.01"}, False),
        ({"rate": "0"}, False),
        ({"momentum": "0"}, True),
        ({"momentum": "1"}, False),
        ({"momentum": "-0.1"}, False),
        ({"decay": "0"}, True),
        ({"decay": "1"}, False),
        ({"decay": "-0.1"}, False),
        ({"rate": "nan"}, False),
    ],
)
def test_each_parameter_of_the_built_in_trainer_has_its_range(parameters: dict[str, str], is_valid: bool) -> None:
    if is_valid:
        Perceptron(**parameters)
    else:
        with pytest.raises(ValueError, match=r"must be|at most"):
            Perceptron(**parameters)


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


@simulated
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
    worker = WorkerSettings(
        role="edge", namespace="default", service="job", worker="t0", node="edge0", uid="u-1", model_path="",
        model=ModelSpec(url="/none", format="onnx", labels=["a"]), estimator="", broker="", state=tmp_path,
        period_s=1, grace_s=1,
    )  # fmt: skip
    job = trainer(TrainingSettings(worker, JobSettings(trainers={"t0": "edge0"})))
    assert job.announce is not None
    will = job.announce().will
    assert will is not None
    assert (will.payload, will.qos, will.retain) == (b"", 1, True)
