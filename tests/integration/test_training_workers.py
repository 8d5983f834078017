"""Federated training by processes over a real broker: rounds, the target, the model that comes out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from services.broker import MosquittoProcess
from tests.training_world import AGGREGATOR, digits, run_job, shares, training, write

pytestmark = pytest.mark.timeout(300)


async def test_a_job_trains_on_all_nodes_and_makes_a_model(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    data = {f"n{i}": write(tmp_path / f"n{i}.npz", *share) for i, share in enumerate(shares(3, 300))}
    async with training(mosquitto, unique, tmp_path, rounds=4, minClients=3) as world:
        done = await run_job(world, data)
        assert done.reason == "RoundsDone"
        assert done.evaluated == 5
        assert done.metrics["accuracy"] > 0.85
        assert done.dropped == {}
        assert done.model is not None
        model = world.folder / world.name(AGGREGATOR) / "training" / done.model.digest
        rows, classes = digits()
        session = onnxruntime.InferenceSession(str(model))
        (found,) = session.run(["probabilities"], {"samples": rows[900:]})
        assert (found.argmax(axis=1) == classes[900:]).mean() > 0.85
        await world.until(lambda _: "accuracy" in world.infos[world.name(AGGREGATOR)].message)


async def test_a_job_ends_when_its_target_is_reached(mosquitto: MosquittoProcess, unique: str, tmp_path: Path) -> None:
    data = {f"n{i}": write(tmp_path / f"n{i}.npz", *share) for i, share in enumerate(shares(2, 300))}
    target = {"metric": "accuracy", "value": 0.5}
    async with training(mosquitto, unique, tmp_path, rounds=50, minClients=2, target=target) as world:
        done = await run_job(world, data)
        assert done.reason == "TargetReached"
        assert done.number < 10
        assert done.metrics["accuracy"] >= 0.5


async def test_compressed_updates_train_as_well(mosquitto: MosquittoProcess, unique: str, tmp_path: Path) -> None:
    data = {f"n{i}": write(tmp_path / f"n{i}.npz", *share) for i, share in enumerate(shares(2, 300))}
    compression = {"dtype": "float16", "topK": 0.1}
    async with training(mosquitto, unique, tmp_path, rounds=8, minClients=2, compression=compression) as world:
        done = await run_job(world, data)
        assert done.metrics["accuracy"] > 0.8
        sizes = {state.update.size for state in world.states.values() if state.update}
        assert done.weights is not None
        assert not sizes or max(sizes) * 4 < done.weights.size
        assert done.dropped == {}


async def test_a_worker_that_stops_in_order_clears_its_state(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    rows, classes = shares(1, 200)[0]
    path = write(tmp_path / "n0.npz", rows, np.asarray(classes))
    async with training(mosquitto, unique, tmp_path, rounds=1000, minClients=2) as world:
        world.plan("n0", "n1")
        world.start("trainer", "n0", path)
        world.start("aggregator", AGGREGATOR)
        await world.until(lambda body: body.reason == "TooFewTrainers" and "1 of 2" in body.message)
        for worker in ("n0", AGGREGATOR):
            world.processes[worker].terminate()
            assert await asyncio.to_thread(world.processes[worker].wait, 30) == 0
        assert not world.packets[-1].payload or world.round is not None
