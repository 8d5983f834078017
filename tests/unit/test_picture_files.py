"""Pictures are recognised by their first bytes, and listed by name, in folders as deep as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede.picture_files import MAGIC, encoding_of, encoding_of_file, files_below


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        *((magic + b"...", encoding) for encoding, magic in MAGIC.items()),
        *((other, None) for other in (b"", b"\xff\xd8", b"GIF89a", b"P6")),
    ],
)
@pytest.mark.parametrize("name", ["notes.txt", "a.jpg"])
def test_the_first_bytes_decide_whatever_the_name_is(
    tmp_path: Path, name: str, content: bytes, encoding: str | None
) -> None:
    (tmp_path / name).write_bytes(content)
    assert encoding_of_file(tmp_path / name) == encoding_of(content) == encoding


def test_files_come_by_name_without_folders_and_without_hidden_names_at_any_depth(tmp_path: Path) -> None:
    """Checkpoints of notebooks, and AppleDouble files (SanjaySoniLV/ProjectKestrel#58), are no samples."""
    root = tmp_path / ".data"  # the folder itself may be hidden
    hidden = ("3/._7.png", ".DS_Store", ".ipynb_checkpoints/7-checkpoint.png", "3/.cache/deep/7.png")
    for name in ("b/2", "b/1", "3/7.png", *hidden):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    assert [str(file.relative_to(root)) for file in files_below(root)] == ["3/7.png", "b/1", "b/2"]
