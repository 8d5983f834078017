"""Pictures with a text each: a folder with ``metadata.csv``, as Hugging Face's ImageFolder has it.

Its column ``file_name`` has the pictures' paths from the folder on, its column ``text`` what they read.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from halimede.sample_files.rules import SampleFileError
from halimede.sample_files.tables import TableRow, read_rows

NAME = "metadata.csv"
FILE, TEXT = "file_name", "text"
#: most bytes of the table, and most characters of one text: an answer's label has no more
MAX_BYTES, MAX_TEXT = 64 * 1024 * 1024, 1024


def read_texts(folder: Path, most: int) -> list[tuple[Path, str]]:
    """Return the pictures of a folder and their texts, at most ``most``; empty if it has no such table.

    Raises SampleFileError for a table that is too large or broken, and for a picture that is not in the folder.
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
    file_column, text_column = columns
    for row in rows:
        at = f"{NAME}, line {row.line_number}"
        if row.fault:
            raise SampleFileError(f"{at}: it has {row.fault}")
        picture = folder / row.fields[file_column].strip()
        if not picture.resolve().is_relative_to(folder.resolve()) or not picture.is_file():
            raise SampleFileError(f"{at}: its picture is not in this folder: put it there, or remove this line")
        yield picture, row.fields[text_column]
