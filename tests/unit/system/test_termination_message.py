"""The last words of a process in a container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halimede.system import termination_message
from halimede.worker import main


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of the file, which is not there yet."""
    return tmp_path / "termination-log"


def test_the_end_of_a_long_text_is_kept(file: Path) -> None:
    file.write_text("what an earlier container said, at length")
    termination_message.write("no model", file)
    assert file.read_text() == "no model"
    termination_message.write("x" * 10_000 + "é the end", file)
    assert file.read_bytes().endswith("é the end".encode())
    assert len(file.read_bytes()) == 4096


def test_outside_of_a_container_nothing_is_made(file: Path) -> None:
    termination_message.write("no model", file)
    assert not file.exists()


def test_a_worker_that_ends_by_an_error_says_it_there(file: Path, monkeypatch: Any) -> None:
    file.touch()
    write = termination_message.write
    monkeypatch.setattr(termination_message, "write", lambda text: write(text, file))

    def fails(*_: object) -> object:
        raise OSError("no space on http://me:word@store")

    assert main.main("edge", environ={}) == 2
    assert "is not accepted" in file.read_text() or "required" in file.read_text()
    with pytest.raises(OSError, match="no space"):
        main.main("edge", environ={}, prepare=fails)  # type: ignore[arg-type]
    assert file.read_text() == "OSError: no space on http://***@store"
