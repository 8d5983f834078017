"""The watch of the Python files of services: what is being written is not used."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from services.lc import code_files
from services.lc.code_files import CodeFiles


@pytest.fixture
def rules(tmp_path: Path) -> tuple[CodeFiles, Path]:
    """Return the watch of one file, with the digest of its first content."""
    file, watch = tmp_path / "rule.py", CodeFiles()
    file.write_text("class Few: ...\n")
    watch._set(str(file), *code_files._read(str(file)))
    return watch, file


@pytest.mark.parametrize(
    "begin", [lambda file: file.write_text(""), Path.unlink], ids=["that is written", "that an editor replaces"]
)
async def test_no_other_content_is_known_of_a_file(
    rules: tuple[CodeFiles, Path], monkeypatch: pytest.MonkeyPatch, begin: Callable[[Path], object]
) -> None:
    watch, file = rules
    before = dict(watch.digests)

    async def pause(_: float) -> None:
        file.write_text("class Few: pass  # whole\n")

    monkeypatch.setattr(code_files.asyncio, "sleep", pause)  # type: ignore[attr-defined]
    begin(file)
    assert not await watch._is_changed(str(file))
    assert (watch.digests, watch.missing) == (before, set())


async def test_a_file_that_no_longer_changes_has_a_new_digest(
    rules: tuple[CodeFiles, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, file = rules
    before = watch.digests[str(file)]
    monkeypatch.setattr(code_files, "SETTLE_S", 0.0)
    file.write_text("class Few: pass  # whole\n")
    assert await watch._is_changed(str(file))
    assert watch.digests[str(file)] != before
    assert not await watch._is_changed(str(file))


async def test_a_file_that_is_removed_is_missing_until_it_is_back(
    rules: tuple[CodeFiles, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, file = rules
    before, content = dict(watch.digests), file.read_text()
    monkeypatch.setattr(code_files, "SETTLE_S", 0.0)
    file.unlink()
    assert await watch._is_changed(str(file))
    assert not await watch._is_changed(str(file))
    assert (watch.missing, watch.digests) == ({str(file)}, before)
    file.write_text(content)
    assert await watch._is_changed(str(file))
    assert (watch.missing, watch.digests) == (set(), before)


async def test_a_pipe_a_device_and_a_huge_file_are_no_scripts(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", code_files.MAX_BYTES + 1)
    for file in (tmp_path / "pipe", tmp_path / "huge", Path("/dev/zero"), tmp_path):
        async with asyncio.timeout(30):
            assert await asyncio.to_thread(code_files._read, str(file)) == ("", "")
        assert code_files._fingerprint(str(file)) == ""
