"""Fault 31: kill -9 of the aggregator, a trainer, the broker, GM or LCs in mid-round. At most that round again.

The result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from examples.training import data as training_data
from halimede.cli.manifests import load as load_manifests
from halimede.messages import TrainingRound
from services.broker import MosquittoProcess
from tests.e2e.running import DIGITS, System, digits, running
from tests.e2e.test_training_model import dataset, file_model, gone, until
from tests.e2e.test_training_model import training as training_model
from tests.ports import free_port
from tests.training_world import AGGREGATOR, TrainingWorld, begin, gated_trainer, shares, training, write

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

SPEC = {"rounds": 3, "minClients": 3, "compression": {"dtype": "float16", "topK": 0.5}}


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Path]:
    return {f"n{i}": write(tmp_path / f"n{i}.npz", *share) for i, share in enumerate(shares(3, 150))}


def in_mid_round(world: TrainingWorld) -> Callable[[TrainingRound], bool]:
    """Return whether the second round is open, and somebody still trains."""
    return lambda body: body.state == "open" and body.number == 2 and len(body.received) < len(world.trainers)


async def interrupted(folder: Path, job: str, data: dict[str, Path], killed: str) -> TrainingRound:
    """Return the result of a job on a broker of its own, in which something is killed in the second round.

    All updates of that round are under way then, and end after it.
    """
    folder.mkdir()
    gate = folder / "gate"
    (folder / "gated.py").write_text(gated_trainer(gate))
    async with (
        MosquittoProcess(folder / "broker", port=free_port()) as broker,
        training(broker, job, folder, **SPEC, entry="gated:Gated") as world,
    ):
        begin(world, data)
        await world.until(in_mid_round(world))
        workers = {"aggregator": [AGGREGATOR], "trainer": ["n1"], "all": list(world.processes)}.get(killed, [])
        for worker in workers:
            world.kill(worker)
        if killed in {"broker", "all"}:
            await world.broker.restart()
        for worker in workers:
            world.again(worker)
        gate.touch()
        return await world.done()


async def test_fault_31_kill_9_in_mid_round_changes_no_result(
    tmp_path: Path, unique: str, data: dict[str, Path]
) -> None:
    expected = await interrupted(tmp_path / "nobody", unique, data, "nobody")
    assert expected.metrics["accuracy"] > 0.6
    for killed in ("aggregator", "trainer", "broker", "all"):
        done = await interrupted(tmp_path / killed, unique, data, killed)
        assert done.weights == expected.weights, killed
        assert done.change == expected.change is not None
        assert done.metrics == expected.metrics
        assert done.epoch == (2 if killed in {"aggregator", "all"} else 1)
        assert "RoundRepeated" not in done.dropped


JOB = "killed"


async def trained(system: System, gate: Path, *killed: str) -> str:
    """Return the digest of the model of a training in whose second round processes are killed."""
    trainer = {"entry": "gated.py:Gated", "archive": {"name": "gated"}}
    gate.unlink(missing_ok=True)
    await system.client.apply(training_model(JOB, trainer=trainer, rounds=3, compression=SPEC["compression"]))
    await until(system.client, JOB, lambda s: (s.get("training") or {}).get("round") == 2)
    for name in killed:
        system.processes()[name].kill()
    gate.touch()
    status = await until(system.client, JOB, lambda s: s.get("phase") == "Done")
    model = await system.client.get("models", "digits-small")
    assert model["spec"]["targetVersion"] == status["training"]["version"]
    dropped: Sequence[dict[str, str]] = status["training"].get("dropped") or []
    assert "RoundRepeated" not in {count["key"] for count in dropped}
    await gone(system.client, JOB)
    return str(status["training"]["digest"])


async def test_fault_31_kill_9_of_gm_and_lc_in_mid_round_changes_no_model(tmp_path: Path) -> None:
    digits()  # trains the models if they are not there
    gate = tmp_path / "gate"
    (tmp_path / "gated.py").write_text(gated_trainer(gate))
    async with running(tmp_path / "home", "edge0,edge1,edge2,cloud0") as system:
        for manifest in load_manifests([str(DIGITS / "1-models.yaml")]):
            await system.client.apply(manifest.resource.body)
        for i, pictures in enumerate(training_data.write(tmp_path / "data", most=60)):
            await system.client.apply(dataset(i, pictures))
        await system.client.apply(file_model("gated", tmp_path / "gated.py"))
        expected = await trained(system, gate)
        for killed in (["gm"], ["lc:cloud0"], ["lc:edge1"], ["gm", "lc:cloud0", "lc:edge1"]):
            assert await trained(system, gate, *killed) == expected, killed
