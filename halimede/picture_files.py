"""Finds JPEG and PNG files in a folder by their first bytes, because names may be wrong.

It is not in ``halimede.frames``, which needs numpy: a program that only sends pictures does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from halimede.hidden_names import is_hidden

Encoding = Literal["jpeg", "png"]

JPEG_MAGIC, PNG_MAGIC = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
MAGIC: dict[Encoding, bytes] = {"jpeg": JPEG_MAGIC, "png": PNG_MAGIC}
MAGIC_BYTES = 8


def encoding_of(data: bytes) -> Encoding | None:
    """Return the encoding of a picture by its first bytes, None for anything else."""
    return next((encoding for encoding, magic in MAGIC.items() if data.startswith(magic)), None)


def probe(file: Path) -> Encoding | None:
    """Return the encoding of a file, None if it is not a picture. Raises OSError."""
    with file.open("rb") as opened:
        return encoding_of(opened.read(MAGIC_BYTES))


def files_below(folder: Path, until_ns: float = math.inf) -> Iterator[Path]:
    """Yield the files below a folder, by name, that did not change after a time; links to folders are not followed.

    Hidden files, and files in hidden folders, are left out.
    """
    visible = (path for path in folder.rglob("*") if not any(map(is_hidden, path.relative_to(folder).parts)))
    files = (path for path in sorted(visible) if path.is_file())
    return files if until_ns == math.inf else (path for path in files if changed_ns(path) <= until_ns)


def changed_ns(file: Path) -> int:
    """Return the time of a file's last change, by the clock of its file system; 0: it was removed meanwhile."""
    try:
        return file.stat().st_ctime_ns
    except OSError:
        return 0
