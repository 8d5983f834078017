"""Every line of docs/commands.md, typed in as it stands there."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.e2e.running import DIGITS, digits, running
from tests.e2e.test_documentation import commands
from tests.typed import halimede

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


async def test_the_lines_of_the_operators_commands(tmp_path: Path) -> None:
    lines = [line for line in commands("docs/commands.md") if line.startswith("halimede")]
    assert len(lines) >= 15
    digits()
    async with running(tmp_path / "home") as system:
        await system.follow("digits")
        await system.apply(DIGITS)
        await system.until("Running", lambda: system.status is not None and system.status.status.phase == "Running")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "HALIMEDE_HOME": str(system.home), "COLUMNS": "160"}
        for line in lines:
            words = shlex.split(line.replace("$REC", str(tmp_path / "recording")))
            done = await asyncio.to_thread(halimede, *words[1:], env=environment)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        await system.until("answers", lambda: len(system.results) >= 100)
