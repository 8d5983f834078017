"""The watch of users' mining rules: what is being written is not used."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from services.lc import rule_files
from services.lc.rule_files import RuleFiles


@pytest.fixture
def rules(tmp_path: Path) -> tuple[RuleFiles, Path]:
    """Return the watch of one file, with the digest of its first content."""
    file, watch = tmp_path / "rule.py", RuleFiles()
    file.write_text("class Few: ...\n")
    watch._set(str(file), *rule_files._read(str(file)))
    return watch, file


async def test_a_file_is_not_read_while_it_is_written(
    rules: tuple[RuleFiles, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, file = rules
    before = watch.digests[str(file)]

    async def pause(_: float) -> None:
        file.write_text("class Few: pass  # whole\n")

    monkeypatch.setattr(rule_files.asyncio, "sleep", pause)
    file.write_text("")  # who writes a file empties it first
    assert not await watch._is_changed(str(file))
    assert watch.digests[str(file)] == before


async def test_a_file_that_no_longer_changes_has_a_new_digest(
    rules: tuple[RuleFiles, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, file = rules
    before = watch.digests[str(file)]
    monkeypatch.setattr(rule_files, "QUIET_S", 0.0)
    file.write_text("class Few: pass  # whole\n")
    assert await watch._is_changed(str(file))
    assert watch.digests[str(file)] != before
    assert not await watch._is_changed(str(file))


async def test_a_pipe_a_device_and_a_huge_file_are_no_files_of_rules(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", rule_files.MOST_BYTES + 1)
    for file in (tmp_path / "pipe", tmp_path / "huge", Path("/dev/zero"), tmp_path):
        async with asyncio.timeout(30):
            assert await asyncio.to_thread(rule_files._read, str(file)) == ("", "")
        assert rule_files._mark(str(file)) == ""
