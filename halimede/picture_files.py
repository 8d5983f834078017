"""Lists the files of a folder, and recognises JPEG and PNG by their first bytes, because names may be wrong.

This module does not need NumPy, as ``halimede.frames`` does, so programs that only send pictures can use it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from halimede.hidden_names import is_hidden

#: the encodings that are recognised
Encoding = Literal["jpeg", "png"]

#: the first bytes of each encoding's files
JPEG_MAGIC, PNG_MAGIC = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
MAGIC: dict[Encoding, bytes] = {"jpeg": JPEG_MAGIC, "png": PNG_MAGIC}
#: bytes that are enough to recognise an encoding
LONGEST_MAGIC = 8


def encoding_of(data: bytes) -> Encoding | None:
    """Return the encoding of data that begins like a JPEG or PNG; None for other data."""
    return next((encoding for encoding, magic in MAGIC.items() if data.startswith(magic)), None)


def encoding_of_file(file: Path) -> Encoding | None:
    """Return the encoding of a file that begins like a JPEG or PNG; None for other files. Raises OSError."""
    with file.open("rb") as opened:
        return encoding_of(opened.read(LONGEST_MAGIC))


def files_below(folder: Path, until_ns: float = math.inf) -> Iterator[Path]:
    """Yield all files below a folder, sorted by path, that did not change after ``until_ns``, in ns since 1970.

    Hidden files and folders are left out, and links to folders are not followed.
    """
    visible = (path for path in folder.rglob("*") if not any(map(is_hidden, path.relative_to(folder).parts)))
    files = (path for path in sorted(visible) if path.is_file())
    return files if until_ns == math.inf else (path for path in files if changed_ns(path) <= until_ns)


def changed_ns(file: Path) -> int:
    """Return when a file was changed last, in ns since 1970 by its file system's clock; 0 if it was removed."""
    try:
        return file.stat().st_ctime_ns
    except OSError:
        return 0
