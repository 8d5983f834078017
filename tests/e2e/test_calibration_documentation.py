"""docs/calibration.md: every line is typed in as it stands there, and a running service takes what came of it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from tests.e2e.running import ROOT, digits, running
from tests.e2e.test_documentation import commands
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
FOLDER = "build/digits"


async def typed(line: str, environment: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", line, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(patience(90)):
        output, _ = await process.communicate()
    assert process.returncode == 0, f"{line}\n{output.decode()}"
    return output.decode()


async def test_the_lines_of_the_tutorial(tmp_path: Path) -> None:
    lines = [line.replace(FOLDER, str(tmp_path / "digits")) for line in commands("docs/calibration.md")]
    assert [line.split()[1] for line in lines] == ["-m", "calibrate", "evaluate", "apply", "publish", "describe"]
    digits()
    async with running(tmp_path / "home", "edge0,cloud0") as system:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "HALIMEDE_HOME": str(system.home), "COLUMNS": "160"}
        await system.follow("digits")
        for line in lines:
            if line.startswith("halimede publish"):
                await system.until("Running", lambda: system.phase == "Running")
            if line.startswith("halimede describe"):
                await system.until("answers", lambda: len(system.results) == 450)
            shown = await typed(line, environment)
        assert "digits" in shown
        report = json.loads((tmp_path / "digits" / "evaluation.json").read_text())
        assert {"Margin", "Learned"} <= set(report["curves"])
        assert report["edge_only"] < report["operating_point"]["accuracy"]
        assert report["operating_point"]["target_upload_ratio"] == 0.15
        # the calibrated rule decides: it says how hard each sample is, and about the budget goes up
        assert all(result.hardness is not None for result in system.results.values())
        assert 0.05 < sum(result.hard for result in system.results.values()) / 450 < 0.3
