"""Pictures are recognised by their first bytes, and listed by name, in folders as deep as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede.picture_files import MAGIC, encoding_of, files_below, probe


@pytest.mark.parametrize("encoding", MAGIC)
def test_the_first_bytes_decide_whatever_the_name_is(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(MAGIC[encoding] + b"...")
    assert probe(file) == encoding_of(file.read_bytes()) == encoding


@pytest.mark.parametrize("content", [b"", b"\xff\xd8", b"GIF89a", b"P6"])
def test_anything_else_is_no_picture(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.jpg"
    file.write_bytes(content)
    assert probe(file) is None


def test_files_come_by_name_and_folders_do_not(tmp_path: Path) -> None:
    for name in ("b/2", "b/1", "a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [str(file.relative_to(tmp_path)) for file in files_below(tmp_path)] == ["a", "b/1", "b/2"]


def test_hidden_names_are_no_samples_at_any_depth(tmp_path: Path) -> None:
    """Checkpoints of notebooks, and AppleDouble files (SanjaySoniLV/ProjectKestrel#58): only ``3/7.png`` counts."""
    root = tmp_path / ".data"  # the folder itself may be hidden
    for name in ("3/7.png", "3/._7.png", ".DS_Store", ".ipynb_checkpoints/7-checkpoint.png", "3/.cache/deep/7.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(MAGIC["png"])
    assert [str(file.relative_to(root)) for file in files_below(root)] == ["3/7.png"]
