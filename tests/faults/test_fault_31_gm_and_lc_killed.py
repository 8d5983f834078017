"""Fault 31: kill -9 of GM, and of the LCs of the aggregator and of a trainer, in mid-round changes no model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from examples.training import data as training_data
from halimede.cli.manifests import load as load_manifests
from tests.e2e.running import DIGITS, System, digits, running
from tests.e2e.test_training_model import SLOW, dataset, file_model, gone, training, until

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]
JOB = "killed"


def spec() -> dict[str, Any]:
    return training(
        JOB,
        trainer={"entry": "slow.py:Slow", "archive": {"name": "slow"}},
        rounds=3,
        compression={"dtype": "float16", "topK": 0.5},
    )


async def trained(system: System, *killed: str) -> str:
    """Return the digest of the model of a training in whose second round processes are killed."""
    await system.client.apply(spec())
    if killed:
        await until(system.client, JOB, lambda s: (s.get("training") or {}).get("round") == 2)
        await asyncio.sleep(0.5)
        for name in killed:
            system.processes()[name].kill()
    found = await until(system.client, JOB, lambda s: s.get("phase") == "Done")
    model = await system.client.get("models", "digits-small")
    assert model["spec"]["targetVersion"] == found["training"]["version"]
    dropped: Sequence[dict[str, str]] = found["training"].get("dropped") or []
    assert "RoundRepeated" not in {each["key"] for each in dropped}
    await gone(system.client, JOB)
    return str(found["training"]["digest"])


async def test_fault_31_kill_9_of_gm_and_lc_in_mid_round_changes_no_model(tmp_path: Path) -> None:
    digits()  # trains the models if they are not there
    (tmp_path / "slow.py").write_text(SLOW)
    async with running(tmp_path / "home", "edge0,edge1,edge2,cloud0") as system:
        for manifest in load_manifests([str(DIGITS / "1-models.yaml")]):
            await system.client.apply(manifest.resource.body)
        for i, pictures in enumerate(training_data.write(tmp_path / "data", most=60)):
            await system.client.apply(dataset(i, pictures))
        await system.client.apply(file_model("slow", tmp_path / "slow.py"))
        expected = await trained(system)
        for killed in (["gm"], ["lc:cloud0"], ["lc:edge1"], ["gm", "lc:cloud0", "lc:edge1"]):
            assert await trained(system, *killed) == expected, killed
