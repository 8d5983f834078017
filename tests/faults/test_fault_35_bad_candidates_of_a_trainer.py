"""Fault 35 on real processes: a trainer makes bad models. Each is refused with its reason, and answers no frame."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from halimede.learning_loop import gate
from tests import bad_trainers
from tests.e2e.running import System
from tests.e2e.test_learning_loop import SETTINGS, Stream, answering, model, training, until
from tests.simulated import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
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


async def test_fault_35_each_bad_candidate_is_refused_with_its_reason_and_answers_nothing(tmp_path: Path) -> None:
    script = tmp_path / "bad_trainers.py"
    shutil.copy(bad_trainers.__file__, script)
    async with answering(tmp_path, Stream(drift=False, pause_s=0.03)) as system:
        await system.client.apply(model("trainers", script, "python"))
        for command, (name, reason) in enumerate(REASONS.items(), 1):
            await system.client.apply(bad(name, command))
            found = await until(system, "Never", rounds=command)
            record = found["loop"]["history"][-1]
            assert (record["outcome"], record["reason"]) == ("Withdrawn", reason), record
            assert record["message"]
            assert (found["loop"]["rolledOut"], found["loop"]["refused"]) == (0, command)
            assert record["version"] not in answered_by(system)
        made = {each["version"] for each in found["loop"]["history"]}
        await eventually(lambda: _left(system, made), 30)


async def _left(system: System, made: set[str]) -> bool:
    """Whether none of these versions is in the Model any more."""
    spec = (await system.client.get("models", "small"))["spec"]
    return not made & {spec.get("targetVersion"), *(each["version"] for each in spec.get("versions", []))}
