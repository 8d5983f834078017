"""Reads samples that are rows of numbers: of tables (csv, tsv), and of NumPy's npz without pickles.

Sizes are checked before memory is allocated. Errors are InvalidFieldError on ``--data``.
"""

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

#: the option, for errors
FIELD = "--data"
#: most bytes of a table's file
MAX_CSV = 1024**3
#: most characters of one field: a number, or the name of a class
MAX_FIELD = 4096
#: what to do about an invalid npz, and about a table without classes
NPZ_FIX = "save it by numpy.savez(file, x=samples, y=classes)"
NO_CLASS_COLUMN = f"the table has no column {', '.join(CLASS_COLUMNS)}: name the class column label"

#: samples, and the class of each as text; None: they have no classes
Table = tuple[list[Array], list[str] | None]


def data_error(origin: Path | str, fix: str) -> InvalidFieldError:
    """Return the error about data; ``origin`` is its path, or its file and line as text.

    ``fix``: what is wrong, and what the user can do.
    """
    return InvalidFieldError(FIELD, str(origin), fix)


def read_table(path: Path, limit: int, max_bytes: int) -> Table:
    """Return the rows of a table, each ``(columns,) float32``, and their classes.

    ``limit``: most rows, ``max_bytes``: most bytes of all. Raises InvalidFieldError for a table that is unreadable,
    larger than the limits, or has other values than numbers.
    """
    if path.stat().st_size > MAX_CSV:
        raise data_error(path, f"it is larger than {MAX_CSV >> 30} GiB: give a part of it")
    try:
        head, rows = read_rows(path, MAX_FIELD)
        return ([], None) if head is None else _read_rows(path, head, rows, limit, max_bytes)
    except (SampleFileError, csv.Error) as error:
        raise data_error(path, f"it is no csv of numbers in UTF-8: {error}") from error
    except OSError as error:
        raise data_error(path, f"it cannot be read: {error.strerror}") from error


def _read_rows(path: Path, head: TableHead, rows: Iterable[TableRow], limit: int, max_bytes: int) -> Table:
    """Return the rows of a table and their classes, with the limits of ``read_table``. Raises InvalidFieldError."""
    samples: list[Array] = []
    classes: list[str] = []
    column, is_guess = head.class_column()
    width = head.width
    for row in rows:
        origin = f"{path}, line {row.line_number}"
        if row.fault:
            raise data_error(origin, f"it has {row.fault}")
        if len(samples) >= limit or (len(samples) + 1) * len(row.fields) * 4 > max_bytes:
            raise data_error(path, f"it has more than {len(samples)} rows: give a part of them")
        if not any(row.fields[width:]):
            del row.fields[width:]
        classes.append("" if is_guess else row.fields[column].strip())
        if not is_guess:
            del row.fields[column]
            if not classes[-1]:
                raise data_error(origin, "it has no class: write one, or remove the row")
        samples.append(_numbers(row.fields, origin, head))
    return samples, None if is_guess else classes


def _numbers(fields: list[str], origin: str, head: TableHead) -> Array:
    """Return a row as ``(columns,) float32``; ``origin`` is its file and line, for errors. Raises InvalidFieldError."""
    try:
        values = np.array([head.number(field) for field in fields], np.float32)
    except ValueError as error:
        raise data_error(origin, f"{error}: write numbers, and the class in a column `label`") from error
    if not len(values) or not np.isfinite(values).all():
        raise data_error(origin, "it has no numbers, or NaN or infinity among them: repair or remove it")
    return values


def read_npz(path: Path, limit: int, max_bytes: int) -> Table:
    """Return the samples of the array ``x``, along its first axis, and their classes from the array ``y``, if any.

    ``limit``: most samples, ``max_bytes``: most bytes of an array. Raises InvalidFieldError.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            if "x.npy" not in names:
                listed = ", ".join(sorted(names)[:5])
                raise data_error(path, f"it has no array x but {listed}: {NPZ_FIX}")
            x = _array(path, archive, "x", max_bytes, "uif")
            y = _array(path, archive, "y", max_bytes, "iuU") if "y.npy" in names else None
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        raise data_error(path, f"it is no readable .npz ({error}): {NPZ_FIX}") from error
    if x.ndim < 2:
        raise data_error(path, f"x has the shape {list(x.shape)}: its first axis counts the samples")
    if len(x) > limit:
        raise data_error(path, f"it has {len(x)} samples, more than {limit}: give a part of them")
    if y is not None and y.shape != (len(x),):
        raise data_error(path, f"y has the shape {list(y.shape)}: give one class for each of {len(x)}")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise data_error(path, "x holds NaN or infinity: repair it")
    return list(x), None if y is None else [str(kind) for kind in y.tolist()]


def _array(path: Path, archive: zipfile.ZipFile, name: str, max_bytes: int, kinds: str) -> Array:
    """Return the array ``name`` of an npz; ``kinds`` are its allowed kinds of elements (NumPy's letters).

    Raises InvalidFieldError for an array that claims more bytes than the archive contains, or than ``max_bytes``.
    """
    info = archive.getinfo(f"{name}.npy")
    if info.file_size > max_bytes:
        raise data_error(path, f"{name} takes {info.file_size} bytes, over {max_bytes}: give a part of it")
    try:
        with archive.open(info) as file:
            shape, dtype = _header(file)
            if dtype.hasobject or dtype.kind not in kinds:
                fix = f"{name} holds {dtype}, where {'numbers' if name == 'x' else 'whole numbers or text'} belong"
                raise data_error(path, f"{fix}: {NPZ_FIX}")
            if math.prod(shape) * dtype.itemsize > info.file_size:
                raise data_error(path, f"{name} claims more than is there: {NPZ_FIX}")
        with archive.open(info) as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    except (ValueError, SyntaxError, TypeError) as error:
        raise data_error(path, f"{name} is no array that can be read here: {NPZ_FIX}") from error


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and the element type that an array's header claims. Raises ValueError."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype
