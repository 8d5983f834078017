"""Samples as rows of numbers: tables, and NumPy's npz without pickles. Sizes are checked before memory is allocated."""

from __future__ import annotations

import csv
import math
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np

from halimede.errors import InvalidFieldError
from halimede.inference import Array
from halimede.sample_files.rules import CLASS_COLUMNS, SampleFileError
from halimede.sample_files.tables import TableHead, TableRow, read_rows

FIELD = "--data"
MAX_CSV = 1024**3
#: most characters of one field: a number, or the name of a class
MAX_FIELD = 4096
NPZ_FIX = "save it by numpy.savez(file, x=samples, y=classes)"

NO_CLASS_COLUMN = f"the table has no column {', '.join(CLASS_COLUMNS)}: name the class column label"

Table = tuple[list[Array], list[str] | None]


def read_table(path: Path, limit: int, room: int) -> Table:
    """Return float32 rows and their classes as text, by the rules of ``halimede.sample_files``.

    Without a class column the rows have no classes.
    """
    if path.stat().st_size > MAX_CSV:
        raise InvalidFieldError(FIELD, str(path), f"it is larger than {MAX_CSV >> 30} GiB: give a part of it")
    try:
        head, rows = read_rows(path, MAX_FIELD)
        return ([], None) if head is None else _read_rows(path, head, rows, limit, room)
    except (SampleFileError, csv.Error) as error:
        raise InvalidFieldError(FIELD, str(path), f"it is no csv of numbers in UTF-8: {error}") from error
    except OSError as error:
        raise InvalidFieldError(FIELD, str(path), f"it cannot be read: {error.strerror}") from error


def _read_rows(path: Path, head: TableHead, rows: Iterable[TableRow], limit: int, room: int) -> Table:
    samples: list[Array] = []
    classes: list[str] = []
    column, is_guess = head.class_column()
    width = head.width
    for row in rows:
        at = f"{path}, line {row.line_number}"
        if row.fault:
            raise InvalidFieldError(FIELD, at, f"it has {row.fault}")
        if len(samples) >= limit or (len(samples) + 1) * len(row.fields) * 4 > room:
            raise InvalidFieldError(FIELD, str(path), f"it has more than {len(samples)} rows: give a part of them")
        if not any(row.fields[width:]):
            del row.fields[width:]
        classes.append("" if is_guess else row.fields[column].strip())
        if not is_guess:
            del row.fields[column]
            if not classes[-1]:
                raise InvalidFieldError(FIELD, at, "it has no class: write one, or remove the row")
        samples.append(_numbers(row.fields, at, head))
    return samples, None if is_guess else classes


def _numbers(fields: list[str], at: str, head: TableHead) -> Array:
    try:
        values = np.array([head.number(field) for field in fields], np.float32)
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
