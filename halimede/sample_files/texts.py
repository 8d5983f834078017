"""Pictures with the text that is in each of them: a folder with ``metadata.csv``, as in Hugging Face's ImageFolder.

The column ``file_name`` has the paths of the pictures below the folder, the column ``text`` their texts.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from halimede.sample_files.rules import SampleFileError
from halimede.sample_files.tables import TableRow, read_rows

#: the name of the table
NAME = "metadata.csv"
#: the names of its columns
FILE, TEXT = "file_name", "text"
#: most bytes of the table, and most characters of one of its fields: a label of an answer has as many
MAX_BYTES, MAX_TEXT = 64 * 1024 * 1024, 1024


def read_texts(folder: Path, most: int) -> list[tuple[Path, str]]:
    """Return the pictures of a folder and their texts; empty if the folder has no table with both columns.

    Raises SampleFileError for a table that is too large, broken or has more than ``most`` pictures, and for a picture
    that is not in the folder; OSError.
    """
    table = folder / NAME
    if not table.is_file():
        return []
    if table.stat().st_size > MAX_BYTES:
        raise SampleFileError(f"{NAME}: it is larger than {MAX_BYTES >> 20} MiB: give a part of it")
    head, rows = read_rows(table, MAX_TEXT)
    names = [name.strip().lower() for name in head.names] if head else []
    if head is None or not {FILE, TEXT} <= set(names):
        return []
    try:
        pairs = list(_pairs(folder, rows, (names.index(FILE), names.index(TEXT))))
    except csv.Error as error:
        raise SampleFileError(f"{NAME}: {error}") from error
    if len(pairs) > most:
        raise SampleFileError(f"{NAME}: it has over {most} pictures: give a part of them")
    return pairs


def _pairs(folder: Path, rows: Iterable[TableRow], columns: tuple[int, int]) -> Iterator[tuple[Path, str]]:
    """Yield the picture and the text of each row. ``columns``: the indexes of both. Raises SampleFileError."""
    file_column, text_column = columns
    for row in rows:
        at = f"{NAME}, line {row.line_number}"
        if row.fault:
            raise SampleFileError(f"{at}: it has {row.fault}")
        picture = folder / row.fields[file_column].strip()
        if not picture.resolve().is_relative_to(folder.resolve()) or not picture.is_file():
            raise SampleFileError(f"{at}: its picture is not in this folder: put it there, or remove this line")
        yield picture, row.fields[text_column]
