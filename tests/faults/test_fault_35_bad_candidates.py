"""Fault 35: a candidate that is worse, broken, slow, or trained on wrong labels, in simulated time and on processes.

It never serves beyond its canary, and the status has the reason.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from halimede.api.learning_loop import LoopSettings
from halimede.learning_loop import canary, gate
from tests import bad_trainers
from tests.e2e.running import System
from tests.e2e.test_learning_loop import SETTINGS, Stream, answering, training, until
from tests.e2e.test_learning_loop import model as model_of
from tests.loop_world import LoopWorld, SimulatedModel, model
from tests.simulated import eventually

PRESENT = model("1", 0.95, 0.70)
#: candidates that the gate refuses, and the reasons for it
REFUSED = {
    "worse": (model("2", 0.6, 0.5), gate.WORSE),
    "no better": (model("2", 0.95, 0.70), gate.NOT_BETTER),
    "broken file": (model("2", 0.9, 0.9, error="model.onnx: no ONNX file"), gate.NOT_LOADED),
    "slow": (model("2", 0.95, 0.94, milliseconds=40.0), gate.TOO_SLOW),
    "trained on wrong labels": (model("2", 0.02, 0.02), gate.WORSE),
    "forgets what was": (model("2", 0.6, 0.94), gate.FORGETS),
}


def drifted(candidate: SimulatedModel, seed: int = 0) -> LoopWorld:
    world = LoopWorld(PRESENT, lambda *_: candidate, LoopSettings(), seed=seed)
    world.run(40)
    world.kind, world.drifting, world.kinds = "drifted", True, []
    return world


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("seed", range(5))
def test_a_bad_candidate_gets_no_frame_and_the_status_has_the_reason(kind: str, seed: int) -> None:
    candidate, reason = REFUSED[kind]
    world = drifted(candidate, seed)
    world.until("Withdrawn")
    record = world.loop.history[-1]
    assert (record.outcome, record.reason) == ("Withdrawn", reason)
    assert record.message
    world.run(1000)
    assert world.loop.rolled_out == 0
    assert max(world.canary_share) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_a_candidate_that_the_gate_was_deceived_about_is_withdrawn_by_its_audits(seed: int) -> None:
    """The held-out labels are wrong as well: only the audits of the live stream show what the candidate is."""
    world = drifted(model("2", 0.95, 0.94), seed)
    world.until("Canary")
    world.known["2"] = model("2", 0.4, 0.4)
    world.until("Withdrawn")
    assert world.loop.reason == canary.AUDITS_WORSE
    assert world.loop.rolled_out == 0
    assert max(world.canary_share) <= 0.2


#: the trainers in this order, with the reasons: each refusal doubles the samples of the next round, and the last one
#: needs some to be compared
REASONS = {"Broken": gate.NOT_LOADED, "Slow": gate.TOO_SLOW, "WrongLabels": gate.WORSE}
#: milliseconds: far above the present model's median, far below that of the slow one
DEADLINE_MS = 10.0


def bad(name: str, command: int) -> dict[str, Any]:
    parameters = [{"key": "hidden", "value": "32"}, {"key": "epochs", "value": "20"}]
    trainer = {"entry": f"bad_trainers.py:{name}", "archive": {"name": "trainers"}, "parameters": parameters}
    settings = {**SETTINGS, "labelled": 80, "easy": 10, "gate": {"least": 40, "leastStratum": 5, "mostMs": DEADLINE_MS}}
    return training(trainer=trainer, loop={"service": {"name": "digits"}, "command": command, **settings})


def answered_by(system: System) -> set[str]:
    return {result.model or "" for result in system.results.values()}


@pytest.mark.timeout(600)
@pytest.mark.slow
async def test_fault_35_each_bad_candidate_is_refused_with_its_reason_and_answers_nothing(tmp_path: Path) -> None:
    script = tmp_path / "bad_trainers.py"
    shutil.copy(bad_trainers.__file__, script)
    async with answering(tmp_path, Stream(drift=False, pause_s=0.03)) as system:
        await system.client.apply(model_of("trainers", script, "python"))
        for command, (name, reason) in enumerate(REASONS.items(), 1):
            await system.client.apply(bad(name, command))
            status = await until(system, "Never", rounds=command)
            record = status["loop"]["history"][-1]
            assert (record["outcome"], record["reason"]) == ("Withdrawn", reason), record
            assert record["message"]
            assert (status["loop"]["rolledOut"], status["loop"]["refused"]) == (0, command)
            assert record["version"] not in answered_by(system)
        versions = {record["version"] for record in status["loop"]["history"]}
        await eventually(lambda: _left(system, versions), 30)


async def _left(system: System, versions: set[str]) -> bool:
    """Whether none of these versions is in the Model any more."""
    spec = (await system.client.get("models", "small"))["spec"]
    return not versions & {spec.get("targetVersion"), *(version["version"] for version in spec.get("versions", []))}
