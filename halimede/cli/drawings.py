"""Files with drawn answers: their names, which are safe whatever a frame or a service is called, and their folder."""

from __future__ import annotations

import re
from pathlib import Path

from halimede.errors import HalimedeError, InvalidFieldError

#: endings of a drawing's file: JPEG, PNG
JPEG_SUFFIXES, PNG_SUFFIX = (".jpg", ".jpeg"), ".png"
#: most characters of a file's own name in the name of its drawing
MAX_NAME = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def drawing_name(sequence: int, name: str, service: str) -> str:
    """Return the file name of a drawing: sequence number, name of the frame's file, service, without unsafe characters.

    ``name`` and ``service`` may be any text.
    """
    stem = _UNSAFE.sub("_", name.replace("\\", "/").rpartition("/")[2].rpartition(".")[0] or name)
    parts = (f"{sequence:06d}", stem[:MAX_NAME].strip("._-"), _UNSAFE.sub("_", service).strip("._-"))
    return "-".join(filter(None, parts)) + ".jpg"


def make_folder(option: str, folder: Path) -> None:
    """Make an empty folder for drawings, and check that the packages which draw are installed.

    Raises HalimedeError without these packages. Raises InvalidFieldError, which names ``option``, if the folder cannot
    be made, or has files: drawings of two runs have equal names.
    """
    try:
        from halimede.frames import drawing  # noqa: F401  # numpy and Pillow, which the command does without
    except ModuleNotFoundError as error:
        raise HalimedeError(f"{option} needs {error.name}: pip install 'halimede[worker]'") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        has_files = any(folder.iterdir())
    except OSError as error:
        raise InvalidFieldError(option, str(folder), f"this folder cannot be made: {error.strerror}") from error
    if has_files:
        raise InvalidFieldError(option, str(folder), "it has files: name a new folder, or an empty one")
