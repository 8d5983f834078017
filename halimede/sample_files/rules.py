"""The rules by which files of samples are read: one table for all readers.

| what | rule |
|---|---|
| hidden files and folders | ``halimede.hidden_names``: `.ipynb_checkpoints`, `._a.jpg`, `__MACOSX`, `Thumbs.db`, ... |
| folders that are no class | splits (``SPLITS``), and folders that only divide pictures from labels (``CONTAINERS``) |
| line ends of text | LF, CR LF and CR |
| separator of a table | stated by a first line `sep=;`; else the most frequent one outside of quotes in that line |
| comma between digits | in a first line with `;` it is a decimal comma |
| first line of a table | no header if it has numbers only, the last column apart, which may hold a class |
| class of a row | the column with the best name of ``CLASS_COLUMNS``; without a header the last column |
| quotes of a table | as in Python's ``csv``: a quote inside of an unquoted field is a character |
| flags (`iscrowd`, `difficult`) | ``is_set`` |
| picture of an annotation | by its name, its name without folders, or the annotation's own name; any of ``PICTURES`` |
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from halimede.errors import HalimedeError

#: folders that split a dataset and are not classes
SPLITS = frozenset({"train", "training", "val", "valid", "validation", "test", "testing"})
#: folders that divide pictures from their labels and are not classes: Roboflow's and YOLO's `train/images`
CONTAINERS = frozenset({"images", "imgs", "jpegimages", "labels", "annotations"})
#: endings of pictures
PICTURES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SEPARATORS = ",;\t|"
#: column names of the class, best first
CLASS_COLUMNS = ("label", "class", "category", "target", "labels", "classes", "class_name", "y")


class SampleFileError(HalimedeError):
    """A whole file is unreadable. The message begins with its name."""


def class_of(inside: PurePath) -> str:
    """Return the class of a picture by its path below the dataset: the first folder that may be one, else empty."""
    return next((name for name in inside.parts[:-1] if name.lower() not in SPLITS | CONTAINERS), "")


def class_column(names: Sequence[str]) -> tuple[int, bool]:
    """Return the index of the class column, and whether it is a guess: the last column then."""
    lower = [name.strip().strip('"').lower() for name in names]
    for name in CLASS_COLUMNS:
        if name in lower:
            return lower.index(name), False
    return len(names) - 1, True


def is_set(flag: object) -> bool:
    """Whether a flag is set: true, 1, or their text."""
    return str(flag).strip().lower() in {"1", "true"}
