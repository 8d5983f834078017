"""A trainer on samples that a service keeps, as a process: it trains, then compares the model with the present one."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from halimede.api.learning_loop import GateSettings
from halimede.learning_loop.gate import Evidence, decide
from halimede.mining.calibration_file import CalibrationFile
from halimede.training.tensor_file import encode
from services.broker import MosquittoProcess
from tests.kept_samples import SPEC, drifted, halves, keep, trained
from tests.simulated import eventually
from tests.training_world import AGGREGATOR, JOB_S, TrainingWorld, training

pytestmark = pytest.mark.timeout(300)


async def begin(world: TrainingWorld, tmp_path: Path, parameters: dict[str, str]) -> None:
    """Start an aggregator and a trainer next to a store of drifted digits."""
    (first, first_labels), (rows, labels) = halves()
    weights, small = trained(first, first_labels, tmp_path / "present.onnx")
    (tmp_path / "weights").write_bytes(encode(weights))
    keep(tmp_path / "hard", small, drifted(rows), labels)
    world.spec |= {"parameters": parameters, "initialWeights": str(tmp_path / "weights"), "rounds": 1, "compares": True}
    model = {**msgspec.to_builtins(SPEC), "url": str(tmp_path / "present.onnx")}
    told = {"MODEL_SPEC": json.dumps(model), "MODEL_URL": model["url"]}
    world.plan("edge")
    world.start("aggregator", AGGREGATOR, **told)
    world.start("trainer", "edge", tmp_path / "hard", **told)


async def evidence(world: TrainingWorld) -> tuple[Evidence, str]:
    """Wait until the trainer has compared the model; return the evidence and the calibration."""
    done = await world.done()
    assert done.model is not None
    name, digest = world.name("edge"), done.model.digest

    def compared() -> bool:
        told = world.infos[name].training
        return told is not None and told.compared == digest

    await eventually(compared, JOB_S)
    told = world.infos[name].training
    assert told is not None
    return msgspec.json.decode(told.evidence, type=Evidence), told.calibration


async def test_a_trainer_compares_the_trained_model_with_the_present_one_and_calibrates_it(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    async with training(mosquitto, unique, tmp_path) as world:
        await begin(world, tmp_path, {"hidden": "32", "epochs": "20"})
        found, calibration = await evidence(world)
        assert decide(found, GateSettings(least=50)).accepted, found
        assert msgspec.json.decode(calibration, type=CalibrationFile).rule == "Margin"
        # a killed trainer compares again, and reports the same
        world.infos.clear()
        world.kill("edge")
        world.again("edge")
        await eventually(lambda: world.name("edge") in world.infos, JOB_S)
        again, _ = await evidence(world)
        assert (again.strata, again.groups) == (found.strata, found.groups)
