"""Recognizes boxes in YOLO's form, a text file for each picture, so that readers of pictures can refuse them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

#: the ending of such files, in small letters
SUFFIX = ".txt"
#: the message about a folder with such files
ADVICE = (
    "it has boxes in YOLO's form, which are not read: export them as COCO (annotations.json) or Pascal VOC, or move"
    " these text files away to use the pictures without boxes"
)
#: an object: the number of its class, and a box or the corners of an outline, in fractions of the picture
_OBJECT = re.compile(rb"\s*\d+([ \t]+(0?\.\d+|[01](\.\d*)?)(e-\d+)?){4,}[ \t\r]*(\n|\Z)")
#: first bytes of a file, which are enough for an object with an outline
_HEAD = 64 * 1024


def label_file(pictures: Iterable[Path], files: Iterable[Path]) -> Path | None:
    """Return the first of ``files`` that has the boxes of one of the pictures; None: there is none. Raises OSError."""
    stems = {picture.stem for picture in pictures}
    for file in files:
        if file.suffix.lower() == SUFFIX and file.stem in stems:
            with file.open("rb") as text:
                if _OBJECT.match(text.read(_HEAD)):
                    return file
    return None
