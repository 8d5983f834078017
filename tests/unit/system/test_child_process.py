"""A child's end is seen by whoever waits for it, and a log is emptied even where there is no room for its copy."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from halimede.system.child_process import reap, rotate, rotated_path, spawn, stat_fields, tail
from tests.waiting import patience


async def test_the_end_of_a_child_is_seen_also_when_it_was_reaped_before(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = spawn([sys.executable, "-c", "print('over'); raise SystemExit(3)"], log)
    async with asyncio.timeout(patience(20)):
        assert await reap(child) == 3
        assert await reap(child) == 3
    assert tail(log) == "over\n"


async def test_a_wait_that_is_cancelled_leaves_the_child_to_the_next_one() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await reap(child)
    child.kill()
    async with asyncio.timeout(patience(20)):
        assert await reap(child) == -9


def test_a_log_is_emptied_where_its_copy_has_no_room(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("long\n")
    rotated_path(log).mkdir()
    with pytest.raises(IsADirectoryError):
        rotate(log)
    assert log.read_text() == ""


def test_what_is_not_there_has_no_fields_and_no_end(tmp_path: Path) -> None:
    assert int(stat_fields(os.getpid())[1]) == os.getppid()
    assert stat_fields(2**22 + 1) == []
    assert tail(tmp_path / "none") == ""
