"""docs/mining.md: a rule in a file beside its manifest, and one on PYTHONPATH, decide in a running service."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.e2e.running import DIGITS, digits, running
from tests.typed import halimede

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

RULE = """
from dataclasses import dataclass

from halimede.mining import ByHardness


@dataclass(frozen=True)
class Far(ByHardness):
    cut: float = {base}.5

    def hardness(self, prediction):
        return {base} + 1 - max(prediction.probabilities)
"""


async def test_rules_beside_the_manifest_and_on_the_path_decide(tmp_path: Path) -> None:
    pictures = digits()[:60]
    manifests, on_path = tmp_path / "manifests", tmp_path / "path"
    for folder, name, base in ((manifests, "beside", 100), (on_path, "far_on_the_path", 200)):
        folder.mkdir()
        (folder / f"{name}.py").write_text(RULE.format(base=base))
    service = (DIGITS / "2-service.yaml").read_text()
    parameter = '{key: threshold_margin, value: "0.19"}'
    rules = (("beside", "beside.py:Far", "100.3", "cam5"), ("path", "far_on_the_path:Far", "200.3", "cam6"))
    for name, rule, cut, camera in rules:
        text = service.replace("name: digits\n", f"name: {name}\n").replace("name: Margin", f"name: {rule}")
        text = text.replace(parameter, f'{{key: cut, value: "{cut}"}}').replace("cam0, cam1", camera)
        assert name in text
        assert rule in text
        assert camera in text
        (manifests / f"{name}.yaml").write_text(text)
    environment = {"PYTHONPATH": str(on_path)}
    async with running(tmp_path / "home", "edge0,cloud0", environment=environment) as system:
        client = {**os.environ, "HALIMEDE_HOME": str(system.home)}
        words = ("apply", "-f", DIGITS / "1-models.yaml", "-f", manifests)
        done = await asyncio.to_thread(halimede, *words, env=client)
        assert (done.returncode, done.stderr) == (0, "")
        for name, _, cut, camera in rules:
            system.results.clear()
            await system.follow(name)
            await system.until("Running", lambda: system.phase == "Running")
            await system.send(pictures, camera=camera)
            await system.until("answers", lambda: len(system.results) == len(pictures))
            found = list(system.results.values())
            low = float(cut) - 0.3
            assert all(low <= result.hardness <= low + 1 for result in found if result.hardness is not None)
            assert sum(result.hardness is not None for result in found) == len(found)
            assert all(result.hard == (result.hardness >= float(cut)) for result in found if result.hardness)
            assert 0 < sum(result.hard for result in found) < len(found)
        broken = (manifests / "beside.yaml").read_text().replace("beside.py:Far", "beside.py:Near")
        (manifests / "beside.yaml").write_text(
            broken.replace("name: beside\n", "name: broken\n").replace("cam5", "cam7")
        )
        await system.follow("broken")
        await asyncio.to_thread(halimede, "apply", "-f", manifests / "beside.yaml", env=client)
        await system.until("Failed", lambda: system.phase == "Failed")
        assert system.status is not None
        said = " ".join(condition.message for condition in system.status.status.conditions)
        assert "has no dataclass Near" in said
