"""A file is replaced whole or not at all, and nothing is left of an attempt that failed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from halimede.system.files import replacement_file, write_atomic


def test_a_reader_that_has_the_old_file_open_reads_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_atomic(path, b"old")
    with path.open("rb") as reader:
        write_atomic(path, b"new", durable=True)
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"
    assert [each.name for each in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("shared", [False, True])
def test_an_attempt_that_fails_leaves_the_old_content_and_nothing_else(tmp_path: Path, shared: bool) -> None:
    path = tmp_path / "state"
    write_atomic(path, b"old", shared=shared)

    def fail_halfway() -> None:
        with replacement_file(path, shared=shared) as new:
            new.write_bytes(b"half")
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        fail_halfway()
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["state"]


def test_the_mode_holds_whatever_the_umask_is(tmp_path: Path) -> None:
    path, before = tmp_path / "secret", os.umask(0o277)
    try:
        write_atomic(path, b"x", mode=0o640)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_a_killed_process_left_is_replaced_and_a_link_there_is_not_followed(tmp_path: Path) -> None:
    path, other = tmp_path / "state", tmp_path / "other"
    other.write_bytes(b"other")
    (tmp_path / ".state.new").symlink_to(other)
    write_atomic(path, b"x")
    assert (path.read_bytes(), other.read_bytes()) == (b"x", b"other")
