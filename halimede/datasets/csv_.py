"""csv: a header, then one sample per row; quoted fields may contain separators, newlines (RFC 4180).

Python's own reader takes a microsecond for each row. Most blocks do not need it: removing the bytes of their fields
shows at once that all rows have the columns of the header. Only if that fails, the block is halved, and its irregular
part is read row by row.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from halimede.datasets.counts import MAX_CLASSES, DatasetCounts
from halimede.datasets.registry import DatasetReader, FileBlocks
from halimede.datasets.row_ends import count_ends, is_faster
from halimede.sample_files.tables import MAX_ROW_BYTES, SUFFIXES, TableHead, read_head, whole_rows

#: bytes up to which blocks are not halved
MIN_HALVED_BYTES = 4 * 1024
#: most classes for which searching each class is faster than counting the ends of rows, and than splitting the rows
MAX_SEARCHED_FEW, MAX_SEARCHED = 3, 5
#: the texts of a class field that is empty
NO_CLASS = frozenset({b"", b"\r", b'""', b'""\r'})
#: replacements for separators and newlines inside of quotes while a block is split
MASKED = b"\x1f\x1e"


def record_end(data: bytes, limit: int) -> int:
    """Return the last position of at most ``limit`` after a newline outside of quotes, 0 if there is none."""
    end = data.rfind(b"\n", 0, limit) + 1
    has_quotes = b'"' in data  # searching takes a twentieth of counting
    while has_quotes and end and data.count(b'"', 0, end) % 2:
        end = data.rfind(b"\n", 0, data.rfind(b'"', 0, end)) + 1
    return end


class Rows:
    """Counts the rows of a table into a tally. ``line``: the number of lines of the file before the next row."""

    def __init__(self, source: FileBlocks, head: TableHead, tally: DatasetCounts, line: int) -> None:
        self.head = head
        #: the separator of fields
        self.sep = head.separator.encode("latin-1")
        self.line = line
        self._source = source
        self._tally = tally
        self._width = len(head.names)
        self._column, self._guessed = head.class_column()
        self._counts: Counter[bytes] = Counter()
        self._fields = bytes(byte for byte in range(256) if byte not in self.sep + b"\n")
        self._unit = self.sep * (self._width - 1) + b"\n"
        self._mask = bytes.maketrans(self.sep + b"\n", MASKED)
        # fields become x: a quote next to one is not a quote of RFC 4180
        self._shape = bytes(byte if byte in self.sep + b'\n"' else ord("x") for byte in range(256))

    def count(self, data: bytes) -> int:
        """Count the whole rows in ``data``, which ends with a newline; return the number of their bytes."""
        if not data:
            return 0
        if lines := self._count_regular(data):
            self.line += lines
            return len(data)
        half = record_end(data, len(data) // 2) if len(data) > MIN_HALVED_BYTES else 0
        if not half:
            return self.count_slowly(data)
        used = self.count(data[:half])
        return used + self.count(data[half:]) if used == half else used

    def count_rest(self, data: bytes) -> None:
        """Count what is left at the end of the file, where the last row may have no newline."""
        used = self.count(data + b"\n")
        if used < len(data):
            self.give_up("a quote is opened and never closed: what follows is not read")

    def give_up(self, reason: str) -> None:
        """Record the next row as unusable for this reason."""
        self._tally.record_fault(self._source.line(self.line + 1), reason)

    def add_classes(self) -> None:
        """Add the numbers of rows by class to the tally."""
        counts: Counter[str] = Counter()
        for value, number in self._counts.items():
            counts[self._field_value(value)] += number
        counts.pop("", None)
        self._counts.clear()
        self._tally.add_classes(counts, guessed=self._guessed)

    def _count_regular(self, data: bytes) -> int:
        """Count all rows of ``data``; return the number of its lines, 0 (nothing is counted) if a row is irregular."""
        if self._width == 1:
            return self._count_one_column(data)
        if b'"' in data:
            parts = data.split(b'"')
            outside = b'"'.join(parts[::2])
            shape = outside.translate(self._shape, b"\r")
            if len(parts) % 2 == 0 or b'x"' in shape or b'"x' in shape:
                return 0
            lines = data.count(b"\n")
            parts[1::2] = b'"'.join(parts[1::2]).translate(self._mask).split(b'"')
            data = b'"'.join(parts)
        else:
            outside, lines = data, 0
        skeleton = outside.translate(None, self._fields)
        number = skeleton.count(b"\n")
        if skeleton != self._unit * number:
            return 0
        if self._tally.unclassed:
            if b"\n" + self._unit[:-1] in data or data.startswith(self._unit[:-1]):
                return 0  # there may be a row of empty fields, which is none
        elif not self._count_classes(data, number):
            return 0
        self._tally.samples += number
        return lines or number

    def _count_one_column(self, data: bytes) -> int:
        """Count the rows of a table of one column, in which a blank line is no row; return as ``_count_regular``."""
        if b'"' in data or self.sep in data:
            return 0
        values = data.translate(None, b"\r").split(b"\n")
        self._tally.samples += len(values) - values.count(b"")
        if not self._tally.unclassed:
            self._counts.update(values)
            if len(self._counts) > MAX_CLASSES:
                self.add_classes()
        return len(values) - 1

    def _count_classes(self, data: bytes, number: int) -> bool:
        """Count the classes of ``number`` rows, and return True; False, with nothing counted, if a row has no class.

        In ``data`` separators and newlines inside of quotes are masked.
        """
        if self._column == self._width - 1 and self._count_known_classes(data, number):
            return True
        # behind the last newline the split ends with an empty field of no row
        classes = Counter(data.replace(b"\n", self.sep).split(self.sep)[self._column : -1 : self._width])
        if not NO_CLASS.isdisjoint(classes):
            return False  # its row may be one of empty fields, which is none
        self._counts.update(classes)
        if len(self._counts) > MAX_CLASSES:
            self.add_classes()
        return True

    def _count_known_classes(self, data: bytes, number: int) -> bool:
        """Count ``number`` rows by classes of the last column that were met before, and return True.

        False, with nothing counted: a row has another class, or searching for so many classes would be slower.
        """
        known_classes = tuple(value for value in self._counts if self.sep not in value)
        if len(known_classes) > MAX_SEARCHED_FEW and is_faster(known_classes):
            classes = count_ends(data, self.sep, known_classes)
        elif len(known_classes) <= MAX_SEARCHED:
            classes = {value: data.count(self.sep + value + b"\n") for value in known_classes}
        else:
            return False
        if sum(classes.values()) != number:
            return False
        self._counts.update(classes)
        return True

    def count_slowly(self, data: bytes) -> int:
        """Count row by row; return the number of bytes of the whole rows."""
        used, first_line = 0, self.line
        for row, fault, length, number in whole_rows(data, self.head.separator):
            self._count_row(row, fault)
            used, self.line = length, first_line + number
        return used

    def _count_row(self, row: list[str], reader_fault: str) -> None:
        """Count one row, which Python's reader has split or found faulty."""
        fault = reader_fault or self.head.row_fault(row, self._width)
        if fault:
            self._tally.record_fault(self._source.line(self.line + 1), fault)
        elif fault is not None:
            self._tally.samples += 1
            if not self._tally.unclassed and row[self._column]:
                self._counts[row[self._column].replace('"', '""').encode("latin-1")] += 1

    def _field_value(self, value: bytes) -> str:
        """Return the value of a field from its bytes in the file, without quotes."""
        value = value.strip(b" \r")
        if value[:1] == value[-1:] == b'"' and len(value) > 1:
            value = value[1:-1]
        unmask = bytes.maketrans(MASKED, self.sep + b"\n")
        return value.replace(b'""', b'"').translate(unmask).decode("utf-8", "replace")


class Table(DatasetReader):
    """Reads tables (csv, tsv): a ``DatasetReader``, which describes the methods."""

    suffixes = SUFFIXES

    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> None:  # noqa: ARG002  # of the port
        """Count the rows of a file; the last one may have no newline yet."""
        if source.start:
            state = source.start.state
            head: TableHead | None = TableHead(str(state["first"]), str(state["separator"]))
            begin, line = source.begin, int(state["line"])
        elif (head := read_head(source.blocks(), source.name)) is not None:
            begin, line = head.length, head.number_of_lines
        if head is None:
            return
        rows = Rows(source, head, tally, line)
        offset, remainder = _count(source, rows, begin)
        if remainder is None:
            return
        source.leave(offset, tally, first=head.first, separator=head.separator, line=rows.line)
        if remainder:
            rows.count_rest(remainder)
            rows.add_classes()


def _count(source: FileBlocks, rows: Rows, begin: int) -> tuple[int, bytes | None]:
    """Count the whole rows from ``begin`` on; return the position of their end and the bytes behind it.

    None for the bytes: a row is longer than allowed.
    """
    offset, remainder, tried = begin, b"", 0
    for block in source.blocks(begin=begin):
        data = remainder + block if remainder else block
        used = rows.count(data[: record_end(data, len(data))])
        if not used and len(data) > max(2 * tried, len(block)):  # a quote inside of a field counts as a character
            tried = len(data)
            used = rows.count_slowly(data[: data.rfind(b"\n") + 1])
        if used:
            tried = 0
        offset, remainder = offset + used, data[used:]
        if len(remainder) > MAX_ROW_BYTES:
            rows.add_classes()
            rows.give_up(f"a row of over {MAX_ROW_BYTES >> 20} MiB: is a quote never closed? What follows is not read")
            return offset, None
    rows.add_classes()
    return offset, remainder
