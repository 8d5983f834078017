"""Samples as rows of numbers: csv, and NumPy's npz without pickles. Sizes are checked before memory is allocated."""

from __future__ import annotations

import csv
import itertools
import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from halimede.datasets.counts import class_column
from halimede.errors import InvalidFieldError
from halimede.inference import Array

FIELD = "--data"
MAX_CSV = 1024**3
#: most characters of one field: a number, or the name of a class
MAX_FIELD = 4096
NPZ_FIX = "save it by numpy.savez(file, x=samples, y=classes)"

Table = tuple[list[Array], list[str] | None]


def read_csv(path: Path, limit: int, room: int) -> Table:
    """Return float32 rows and their classes as text.

    With a header the class is in the column ``label`` (or another name in ``halimede.datasets.counts``); without such a
    column the rows have no classes. Without a header it is in the last column.
    """
    if path.stat().st_size > MAX_CSV:
        raise InvalidFieldError(FIELD, str(path), f"it is larger than {MAX_CSV >> 30} GiB: give a part of it")
    rows: list[Array] = []
    classes: list[str] = []
    csv.field_size_limit(MAX_FIELD)  # this limit is global: other modules set their own
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            first = next(reader, None)
            if first is None:
                return [], None
            column, header = _layout(first)
            width = len(first)
            for row in itertools.chain([] if header else [first], reader):
                if not row:
                    continue
                at = f"{path}, line {reader.line_num}"
                if len(row) != width:
                    raise InvalidFieldError(FIELD, at, f"it has {len(row)} columns, and the first line {width}")
                if len(rows) >= limit or (len(rows) + 1) * width * 4 > room:
                    raise InvalidFieldError(FIELD, str(path), f"it has more than {len(rows)} rows: give a part of them")
                if column is not None:
                    classes.append(row.pop(column).strip())
                rows.append(_numbers(row, at))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidFieldError(FIELD, str(path), f"it is no csv of numbers in UTF-8: {error}") from error
    except OSError as error:
        raise InvalidFieldError(FIELD, str(path), f"it cannot be read: {error.strerror}") from error
    return rows, classes if column is not None else None


def _layout(first: list[str]) -> tuple[int | None, bool]:
    """Return the index of the class column, if any, and whether the first line is a header."""
    if not all(_is_number(cell) for cell in first[:-1]):
        column, guessed = class_column(first)
        return None if guessed else column, True
    named = class_column(first[-1:])
    return (len(first) - 1, not named[1])  # a header of numbers, such as 0,1,2,label


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _numbers(row: list[str], at: str) -> Array:
    try:
        values = np.array([float(cell) for cell in row], np.float32)
    except ValueError as error:
        raise InvalidFieldError(FIELD, at, f"{error}: write numbers, and the class in a column `label`") from error
    if not len(values) or not np.isfinite(values).all():
        raise InvalidFieldError(FIELD, at, "it has no numbers, or NaN or infinity among them: repair or remove it")
    return values


def read_npz(path: Path, limit: int, room: int) -> Table:
    """Return the samples of the array ``x`` (along its first axis), and the classes in ``y`` as text."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            if "x.npy" not in names:
                listed = ", ".join(sorted(names)[:5])
                raise InvalidFieldError(FIELD, str(path), f"it has no array x but {listed}: {NPZ_FIX}")
            x = _array(path, archive, "x", room, "uif")
            y = _array(path, archive, "y", room, "iuU") if "y.npy" in names else None
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        raise InvalidFieldError(FIELD, str(path), f"it is no readable .npz ({error}): {NPZ_FIX}") from error
    if x.ndim < 2:
        raise InvalidFieldError(FIELD, str(path), f"x has the shape {list(x.shape)}: its first axis counts the samples")
    if len(x) > limit:
        raise InvalidFieldError(FIELD, str(path), f"it has {len(x)} samples, more than {limit}: give a part of them")
    if y is not None and y.shape != (len(x),):
        raise InvalidFieldError(
            FIELD, str(path), f"y has the shape {list(y.shape)}: give one class for each of {len(x)}"
        )
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise InvalidFieldError(FIELD, str(path), "x holds NaN or infinity: repair it")
    return list(x), None if y is None else [str(kind) for kind in y.tolist()]


def _array(path: Path, archive: zipfile.ZipFile, name: str, room: int, kinds: str) -> Array:
    """Read one member. Its header must not claim more bytes than the archive contains, or than are left."""
    info = archive.getinfo(f"{name}.npy")
    if info.file_size > room:
        raise InvalidFieldError(
            FIELD, str(path), f"{name} takes {info.file_size} bytes, over {room}: give a part of it"
        )
    try:
        with archive.open(info) as file:
            shape, dtype = _header(file)
            if dtype.hasobject or dtype.kind not in kinds:
                fix = f"{name} holds {dtype}, where {'numbers' if name == 'x' else 'whole numbers or text'} belong"
                raise InvalidFieldError(FIELD, str(path), f"{fix}: {NPZ_FIX}")
            if math.prod(shape) * dtype.itemsize > info.file_size:
                raise InvalidFieldError(FIELD, str(path), f"{name} claims more than is there: {NPZ_FIX}")
        with archive.open(info) as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    except (ValueError, SyntaxError, TypeError) as error:
        raise InvalidFieldError(FIELD, str(path), f"{name} is no array that can be read here: {NPZ_FIX}") from error


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype
