"""A demo that is ended by SIGTERM ends the system that it runs."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.simulated import eventually
from tests.waiting import patience

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
#: runs a system, as the demos of real pairs, of several cameras and of the learning loop do
DEMO = """
import asyncio, sys
from pathlib import Path
from examples.demo_command import errors_in_a_line
from examples.multi_edge import live

async def run():
    async with live.system(Path(sys.argv[1]), ["--insecure"], ["edge0"]):
        await asyncio.Event().wait()

with errors_in_a_line():
    asyncio.run(run())
"""


def processes_of(home: Path) -> Iterator[psutil.Process]:
    """Yield the processes whose arguments name a folder."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(home) in argument for argument in process.cmdline()):
                yield process


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "ignored",
    [
        pytest.param([], id="in the foreground", marks=pytest.mark.slow),
        pytest.param([signal.SIGINT], id="in the background of a shell"),
    ],
)
async def test_a_demo_that_is_ended_by_sigterm_leaves_no_process_of_its_system(
    ignored: list[signal.Signals], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    try:
        demo = await asyncio.create_subprocess_exec(sys.executable, "-c", DEMO, str(home), cwd=ROOT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    try:
        await eventually((home / "run.json").exists, PATIENCE_S)
        assert len(list(processes_of(home))) > 2
        demo.terminate()
        async with asyncio.timeout(patience(PATIENCE_S)):
            assert await demo.wait() == 130
        assert list(processes_of(home)) == []
    finally:
        for process in processes_of(home):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
