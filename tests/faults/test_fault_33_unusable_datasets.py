"""Fault 33: a dataset is empty, has one class, or changes under way. A reason; the rounds go on without it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from halimede.training.aggregator import SETTLE_S
from services.broker import MosquittoProcess
from tests.training_world import begin, gated_trainer, shares, training, write
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def test_fault_33_the_rounds_go_on_without_a_dataset_that_cannot_be_used(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    (*good, (rows, classes)) = shares(4, 200)
    data = {f"n{i}": write(tmp_path / f"n{i}.npz", *share) for i, share in enumerate(good)}
    data["missing"] = tmp_path / "nothing.npz"
    data["empty"] = write(tmp_path / "empty.npz", rows[:0], classes[:0])
    data["one"] = write(tmp_path / "one.npz", rows[classes == 3], classes[classes == 3])
    gate = tmp_path / "gate"
    (tmp_path / "gated.py").write_text(gated_trainer(gate))
    async with training(mosquitto, unique, tmp_path, rounds=6, minClients=2, entry="gated:Gated") as world:
        begin(world, data)
        await world.until(lambda body: body.number == 2)
        write(data["n2"], rows[classes == 5], classes[classes == 5])
        gate.touch()
        began = time.monotonic()
        done = await world.done()
        assert time.monotonic() - began < patience(4 * SETTLE_S), "no round waits for them until its deadline"
        reasons = {name: world.states[world.name(name)].reason for name in ("missing", "empty", "one", "n2")}
        assert reasons["missing"] == reasons["empty"] == "DatasetEmpty"
        assert reasons["one"] == reasons["n2"] == "DatasetOneClass"
        assert world.infos[world.name("one")].reason == "DatasetOneClass"
        assert done.counted == [world.name("n0"), world.name("n1")]
        done.dropped.pop("Clipped", None)  # an update that is larger than the others still counts
        assert done.dropped == {"DatasetOneClass": 1}
        assert done.metrics["accuracy"] > 0.8
