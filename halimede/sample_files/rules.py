"""The rules by which files of samples are read, for all readers, and the error of an unreadable file.

| what | rule |
|---|---|
| hidden files and folders | ``halimede.hidden_names``: `.ipynb_checkpoints`, `._a.jpg`, `__MACOSX`, `Thumbs.db`, ... |
| folders that are no class | splits (``SPLITS``), and folders that only divide pictures from labels (``CONTAINERS``) |
| line ends of text | LF, CR LF and CR |
| separator of a table | stated by a line `sep=;`, else the most frequent one of the first line outside of quotes |
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
#: endings of the names of pictures, in small letters
PICTURES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
#: separators of columns in tables, the default first
SEPARATORS = ",;\t|"
#: column names of the class, best first
CLASS_COLUMNS = ("label", "class", "category", "target", "labels", "classes", "class_name", "y")


class SampleFileError(HalimedeError):
    """A whole file cannot be read. The message begins with its name, unless the function that raises says otherwise."""


def class_of(inside: PurePath) -> str:
    """Return the class of a picture by its path below the dataset: the first folder that may be a class; else empty."""
    return next((name for name in inside.parts[:-1] if name.lower() not in SPLITS | CONTAINERS), "")


def class_column(names: Sequence[str]) -> tuple[int, bool]:
    """Return the index of the class column by the names of the columns, and whether it is a guess.

    The guess is the last column, if no column has a name of CLASS_COLUMNS.
    """
    lower = [name.strip().strip('"').lower() for name in names]
    for name in CLASS_COLUMNS:
        if name in lower:
            return lower.index(name), False
    return len(names) - 1, True


def is_set(flag: object) -> bool:
    """Whether a flag is set: it is true or 1, as a value or as text."""
    return str(flag).strip().lower() in {"1", "true"}
