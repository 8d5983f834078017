"""Tables: csv, tsv and their kin. The head of a table says how its rows are read, and is read once for all readers."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from halimede.sample_files.rules import SEPARATORS, SampleFileError, class_column
from halimede.sample_files.text_blocks import text_blocks

SUFFIXES = frozenset({".csv", ".tsv"})
#: most bytes of one row
MAX_ROW = 4 * 1024 * 1024
OPEN_QUOTE = "its header opens a quote and never closes it: close it, or take it out"
BOM = b"\xef\xbb\xbf"
#: Excel's first line that states the separator
_STATED = re.compile(rb'"?sep=([^"\r\n])"?[ \t,;|]*\r?(\n|\Z)', re.IGNORECASE)
_QUOTED = re.compile('"[^"]*"')
_DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d)")


@dataclass(frozen=True, slots=True)
class TableHead:
    """What the first lines of a table state. ``first``: its first row, a header or not.

    ``length``: bytes before the first row of values, ``number_of_lines``: lines among them.
    """

    first: str
    separator: str
    length: int = 0
    number_of_lines: int = 0

    @property
    def names(self) -> list[str]:
        """The fields of the first row."""
        return next(csv.reader(io.StringIO(self.first, newline="\n"), delimiter=self.separator), [""])

    @property
    def has_header(self) -> bool:
        """Whether the first row has names: it is a row of values if all its fields but the class are numbers."""
        *values, last = names = self.names
        if not class_column(names[-1:])[1]:
            return True
        return not all(self.is_number(name) for name in values or [last])

    @property
    def width(self) -> int:
        """The number of columns without the nameless ones at the end, which Excel writes for cells that were erased."""
        names = self.names
        named = (number for number in range(len(names), 0, -1) if names[number - 1])
        return next(named, len(names)) if self.has_header else len(names)

    def class_column(self) -> tuple[int, bool]:
        """Return the index of the class column, and whether it is a guess."""
        names = self.names
        return class_column(names) if self.has_header else (len(names) - 1, len(names) == 1)

    def number(self, field: str) -> float:
        """Return a field as a number. Raises ValueError."""
        if self.separator == ";" and "." not in field:
            field = field.replace(",", ".")
        return float(field)

    def is_number(self, field: str) -> bool:
        """Whether a field is a number."""
        try:
            self.number(field)
        except ValueError:
            return False
        return True

    def row_fault(self, row: list[str], width: int) -> str | None:
        """Return what is wrong with a row, empty for a good one, None for a blank line, or one of empty fields."""
        if not any(row) or (len(row) < 2 and not row[0].strip()):
            return None
        return "" if len(row) == width else f"{len(row)} columns where the header has {width}"


def read_head(blocks: Iterable[bytes], name: str) -> TableHead | None:
    """Return the head of a table from the blocks of its file, None for one without a row. Raises SampleFileError."""
    data, tried = b"", 0
    for block in blocks:
        data += block
        if len(data) >= 2 * tried:
            tried = len(data)
            if (head := _head(data, name)) is not None:
                return head
    return _head(data + b"\n", name, is_whole=True)


def _head(data: bytes, name: str, *, is_whole: bool = False) -> TableHead | None:
    """Return the head, None while it is incomplete, or if there is none."""
    start = _skip_blank(data, len(BOM) if data.startswith(BOM) else 0)
    separator = ""
    if stated := _STATED.match(data, start):
        separator, start = stated[1].decode("latin-1"), _skip_blank(data, stated.end())
    end = data.find(b"\n", start)
    if end >= 0:
        first = data[start:end].decode("latin-1")
        text = _TextLines(data[start : data.rfind(b"\n") + 1].decode("latin-1"))
        separator = separator or _frequent(first)
        csv.field_size_limit(2 * MAX_ROW)  # this limit is global: each reader sets its own
        next(csv.reader(text, delimiter=separator), None)
        if not text.ended:
            end = start + text.length
            if text.number > 1:  # a name of several lines, or a quote that ends in a row of values
                _check_quotes(data[start:end], separator, name)
            head = TableHead(data[start:end].decode("latin-1"), separator, end, data.count(b"\n", 0, end))
            return head if head.has_header else TableHead(head.first, separator, start, data.count(b"\n", 0, start))
        if is_whole or len(data) > MAX_ROW:
            raise SampleFileError(f"{name}: {OPEN_QUOTE}")
    elif len(data) > MAX_ROW:
        raise SampleFileError(f"{name}: its header is over {MAX_ROW >> 20} MiB: is it a csv file?")
    return None


def _check_quotes(header: bytes, separator: str, name: str) -> None:
    try:
        next(csv.reader(io.StringIO(header.decode("latin-1"), newline="\n"), delimiter=separator, strict=True), None)
    except csv.Error:
        raise SampleFileError(f"{name}: {OPEN_QUOTE}") from None


def _skip_blank(data: bytes, start: int) -> int:
    while data[start : start + 1] in {b"\n", b"\r"}:
        start += 1
    return start


def _frequent(first: str) -> str:
    """Return the most frequent separator of a line; of equally frequent ones a comma is the least likely."""
    plain = _QUOTED.sub("", first)
    if ";" in plain:
        plain = _DECIMAL_COMMA.sub("", plain)
    best = max(reversed(SEPARATORS), key=plain.count)
    return best if best in plain else SEPARATORS[0]


class _TextLines:
    """Lines for Python's reader, and their length. ``ended``: it requested more lines than there are."""

    def __init__(self, text: str) -> None:
        self._text = io.StringIO(text, newline="\n")
        self.length = 0
        self.number = 0
        self.ended = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline()
        if not line:
            self.ended = True
            raise StopIteration
        self.length += len(line)
        self.number += 1
        return line


def whole_rows(data: bytes, separator: str) -> Iterator[tuple[list[str], str, int, int]]:
    """Yield each whole row of data that begins a row: its fields, its fault, and the bytes and lines up to its end."""
    lines = _TextLines(data.decode("latin-1"))
    csv.field_size_limit(2 * MAX_ROW)
    reader = csv.reader(lines, delimiter=separator)
    while True:
        try:
            row, reason = next(reader, None), ""
        except csv.Error as error:
            row, reason = [], str(error)
        if row is None or lines.ended:
            return
        yield row, reason, lines.length, lines.number


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row that is not blank. ``fault``: what is wrong with it, else empty."""

    line_number: int
    fields: list[str]
    fault: str


def read_rows(path: Path, most_field: int) -> tuple[TableHead | None, Iterator[TableRow]]:
    """Return the head of a table and its rows of values. Raises OSError, SampleFileError; the rows raise csv.Error.

    ``most_field``: most characters of a field.
    """
    with path.open("rb") as file:
        head = read_head(text_blocks(file.fileno(), path.name, 0, os.fstat(file.fileno()).st_size), path.name)
    return head, iter(()) if head is None else _rows(path, head, most_field)


def _rows(path: Path, head: TableHead, most_field: int) -> Iterator[TableRow]:
    width = len(head.names)
    with path.open("rb") as file:
        file.seek(head.length)
        csv.field_size_limit(most_field)
        reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8", errors="replace"), delimiter=head.separator)
        for row in reader:
            fault = head.row_fault(row, width)
            if fault is not None:
                yield TableRow(head.number_of_lines + reader.line_num, row, fault)


def tables_below(files: Iterable[Path]) -> list[Path]:
    """Return those files that are tables, by their endings."""
    return [file for file in files if file.suffix.lower() in SUFFIXES]
