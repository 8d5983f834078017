"""Tables of samples: csv, tsv and others with a separator. ``read_head`` reads their head, ``read_rows`` their rows.

The head of a table is what its first lines state: separator, byte order mark, and the names of columns, if any. Text is
handled as bytes in latin-1, so that positions are bytes.
"""

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

#: endings of tables, in small letters
SUFFIXES = frozenset({".csv", ".tsv"})
#: most bytes of one row
MAX_ROW_BYTES = 4 * 1024 * 1024
#: part of the error about a header with an open quote
OPEN_QUOTE = "its header opens a quote and never closes it: close it, or take it out"
#: the byte order mark of UTF-8
BOM = b"\xef\xbb\xbf"
#: Excel's first line that states the separator
_SEPARATOR_LINE = re.compile(rb'"?sep=([^"\r\n])"?[ \t,;|]*\r?(\n|\Z)', re.IGNORECASE)
_QUOTED = re.compile('"[^"]*"')
_DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d)")


@dataclass(frozen=True, slots=True)
class TableHead:
    """What the first lines of a table state.

    Attributes:
        first: the text of its first row, whether that is a header or has values.
        separator: of the columns, one character.
        length: bytes before the first row of values.
        number_of_lines: lines before the first row of values.

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
        """Whether the first row has names. It has values if all its fields, except the last one, are numbers.

        A last field with a name of CLASS_COLUMNS makes it a header in any case.
        """
        *values, last = names = self.names
        if not class_column(names[-1:])[1]:
            return True
        return not all(self.is_number(name) for name in values or [last])

    @property
    def width(self) -> int:
        """The number of columns, without those at the end that have no name: Excel writes them for erased cells."""
        names = self.names
        named = (number for number in range(len(names), 0, -1) if names[number - 1])
        return next(named, len(names)) if self.has_header else len(names)

    def class_column(self) -> tuple[int, bool]:
        """Return the index of the class column, and whether it is a guess. Without a header it is the last column."""
        names = self.names
        return class_column(names) if self.has_header else (len(names) - 1, len(names) == 1)

    def number(self, field: str) -> float:
        """Return a field as a number; with the separator ``;`` a comma may be the decimal point. Raises ValueError."""
        if self.separator == ";" and "." not in field:
            field = field.replace(",", ".")
        return float(field)

    def is_number(self, field: str) -> bool:
        """Whether ``number`` can read a field."""
        try:
            self.number(field)
        except ValueError:
            return False
        return True

    def row_fault(self, row: list[str], width: int) -> str | None:
        """Return what is wrong with a row; empty: it has ``width`` columns; None: it is blank, or all fields are."""
        if not any(row) or (len(row) < 2 and not row[0].strip()):
            return None
        return "" if len(row) == width else f"{len(row)} columns where the header has {width}"


def read_head(blocks: Iterable[bytes], name: str) -> TableHead | None:
    """Return the head of a table from the blocks of its file; None for a file without a row. Raises SampleFileError.

    Reads only as many blocks as it needs. ``name``: of the file, for errors.
    """
    data, tried_length = b"", 0
    for block in blocks:
        data += block
        if len(data) >= 2 * tried_length:
            tried_length = len(data)
            if (head := _head(data, name)) is not None:
                return head
    return _head(data + b"\n", name, is_whole=True)


def _head(data: bytes, name: str, *, is_whole: bool = False) -> TableHead | None:
    """Return the head in the first bytes of a file; None: it is not complete. ``is_whole``: the file ends there.

    Raises SampleFileError for a quote that does not end, and for a header that is too long.
    """
    start = _skip_blank(data, len(BOM) if data.startswith(BOM) else 0)
    separator = ""
    if separator_line := _SEPARATOR_LINE.match(data, start):
        separator, start = separator_line[1].decode("latin-1"), _skip_blank(data, separator_line.end())
    end = data.find(b"\n", start)
    if end >= 0:
        first = data[start:end].decode("latin-1")
        text = _TextLines(data[start : data.rfind(b"\n") + 1].decode("latin-1"))
        separator = separator or _most_frequent_separator(first)
        csv.field_size_limit(2 * MAX_ROW_BYTES)  # this limit is global: each reader sets its own
        next(csv.reader(text, delimiter=separator), None)
        if not text.has_ended:
            end = start + text.length
            if text.number > 1:  # a name of several lines, or a quote that ends in a row of values
                _check_quotes(data[start:end], separator, name)
            head = TableHead(data[start:end].decode("latin-1"), separator, end, data.count(b"\n", 0, end))
            return head if head.has_header else TableHead(head.first, separator, start, data.count(b"\n", 0, start))
        if is_whole or len(data) > MAX_ROW_BYTES:
            raise SampleFileError(f"{name}: {OPEN_QUOTE}")
    elif len(data) > MAX_ROW_BYTES:
        raise SampleFileError(f"{name}: its header is over {MAX_ROW_BYTES >> 20} MiB: is it a csv file?")
    return None


def _check_quotes(header: bytes, separator: str, name: str) -> None:
    """Raise SampleFileError if the quotes in a header are not closed where a field ends."""
    try:
        next(csv.reader(io.StringIO(header.decode("latin-1"), newline="\n"), delimiter=separator, strict=True), None)
    except csv.Error:
        raise SampleFileError(f"{name}: {OPEN_QUOTE}") from None


def _skip_blank(data: bytes, start: int) -> int:
    """Return the position of the first byte from ``start`` on that is no line end."""
    while data[start : start + 1] in {b"\n", b"\r"}:
        start += 1
    return start


def _most_frequent_separator(line: str) -> str:
    """Return the most frequent separator of a line outside of quotes; a comma only if no other one is as frequent."""
    plain = _QUOTED.sub("", line)
    if ";" in plain:
        plain = _DECIMAL_COMMA.sub("", plain)
    best = max(reversed(SEPARATORS), key=plain.count)
    return best if best in plain else SEPARATORS[0]


class _TextLines:
    """An iterator over the lines of a text for Python's csv reader; it counts what the reader has taken.

    Attributes:
        length: characters of the lines that the reader has taken.
        number: how many lines the reader has taken.
        has_ended: the reader requested a further line after the last one.

    """

    def __init__(self, text: str) -> None:
        self._text = io.StringIO(text, newline="\n")
        self.length = 0
        self.number = 0
        self.has_ended = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline()
        if not line:
            self.has_ended = True
            raise StopIteration
        self.length += len(line)
        self.number += 1
        return line


def whole_rows(data: bytes, separator: str) -> Iterator[tuple[list[str], str, int, int]]:
    """Yield each whole row of ``data``, which begins with a row; a row that ``data`` cuts off is not yielded.

    A row is its fields, what is wrong with it (empty: nothing), and the numbers of bytes and of lines up to its end.
    """
    lines = _TextLines(data.decode("latin-1"))
    csv.field_size_limit(2 * MAX_ROW_BYTES)
    reader = csv.reader(lines, delimiter=separator)
    while True:
        try:
            row, fault = next(reader, None), ""
        except csv.Error as error:
            row, fault = [], str(error)
        if row is None or lines.has_ended:
            return
        yield row, fault, lines.length, lines.number


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of values that is not blank.

    Attributes:
        line_number: of its last line in the file, from 1.
        fields: the text of each column.
        fault: what is wrong with the row; empty: nothing.

    """

    line_number: int
    fields: list[str]
    fault: str


def read_rows(path: Path, most_field: int) -> tuple[TableHead | None, Iterator[TableRow]]:
    """Return the head of a table, and its rows of values, which are read when they are iterated.

    ``most_field``: most characters of a field. A file without a row has no head (None) and no rows. Raises OSError,
    SampleFileError; iterating raises OSError, csv.Error.
    """
    with path.open("rb") as file:
        head = read_head(text_blocks(file.fileno(), path.name, 0, os.fstat(file.fileno()).st_size), path.name)
    return head, iter(()) if head is None else _rows(path, head, most_field)


def _rows(path: Path, head: TableHead, most_field: int) -> Iterator[TableRow]:
    """Yield the rows of values of a table. Raises OSError, csv.Error."""
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
    """Return the files that are tables, by their endings."""
    return [file for file in files if file.suffix.lower() in SUFFIXES]
