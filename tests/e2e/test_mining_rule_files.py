"""docs/mining.md: a rule in a file beside its manifest, and one on PYTHONPATH, decide in a running service."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.running import DIGITS, digits, running
from tests.e2e.shell import halimede
from tests.e2e.test_bad_input import condition

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
        await halimede(system.home, "apply", "-f", DIGITS / "1-models.yaml", "-f", manifests)
        for name, _, cut, camera in rules:
            system.results.clear()
            await system.follow(name)
            await system.until_running()
            await system.send(pictures, camera=camera)
            await system.until("answers", lambda: len(system.results) == len(pictures))
            results = system.results.values()
            low = float(cut) - 0.3
            assert all(low <= result.hardness <= low + 1 for result in results)
            assert all(result.hard == (result.hardness >= float(cut)) for result in results)
            assert 0 < sum(result.hard for result in results) < len(pictures)
        text = (manifests / "beside.yaml").read_text().replace("beside.py:Far", "beside.py:Near")
        text = text.replace("name: beside\n", "name: broken\n").replace("cam5", "cam7")
        (manifests / "beside.yaml").write_text(text)
        await system.follow("broken")
        await halimede(system.home, "apply", "-f", manifests / "beside.yaml")
        await system.until("Failed", lambda: system.phase == "Failed")
        assert "has no dataclass Near" in condition(system)[1]
