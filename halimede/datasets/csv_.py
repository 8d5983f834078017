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
from halimede.sample_files.tables import MAX_ROW, SUFFIXES, TableHead, read_head, whole_rows

#: bytes from which blocks are not halved any more
SMALL = 4 * 1024
#: most classes for which searching each is faster than counting the ends of rows, and than splitting the rows
FEW, SEVERAL = 3, 5
#: how a field of a row without a class is written
NO_CLASS = frozenset({b"", b"\r", b'""', b'""\r'})
#: replacements for separators and newlines inside of quotes while a block is split
MASKED = b"\x1f\x1e"


def record_end(data: bytes, limit: int) -> int:
    """Return a position of at most ``limit`` after a newline outside of quotes, 0 if there is none."""
    end = data.rfind(b"\n", 0, limit) + 1
    has_quotes = b'"' in data  # searching takes a twentieth of counting
    while has_quotes and end and data.count(b'"', 0, end) % 2:
        end = data.rfind(b"\n", 0, data.rfind(b'"', 0, end)) + 1
    return end


class Rows:
    """Counts rows from the begin of a row on. ``line`` is the number of lines already read."""

    def __init__(self, source: FileBlocks, head: TableHead, tally: DatasetCounts, line: int) -> None:
        self.head = head
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

    def take(self, data: bytes) -> int:
        """Count the rows of data that ends with a newline; return how many of its bytes were whole rows."""
        if not data:
            return 0
        if lines := self._regular(data):
            self.line += lines
            return len(data)
        half = record_end(data, len(data) // 2) if len(data) > SMALL else 0
        if not half:
            return self.slowly(data)
        used = self.take(data[:half])
        return used + self.take(data[half:]) if used == half else used

    def end(self, data: bytes) -> None:
        """Count the rest at the end of the file."""
        used = self.take(data + b"\n")
        if used < len(data):
            self.give_up("a quote is opened and never closed: what follows is not read")

    def give_up(self, reason: str) -> None:
        """Record the next row as unreadable."""
        self._tally.fault(self._source.line(self.line + 1), reason)

    def fold(self) -> None:
        """Add the counts by class to the tally."""
        counts: Counter[str] = Counter()
        for value, number in self._counts.items():
            counts[self._plain(value)] += number
        counts.pop("", None)
        self._counts.clear()
        self._tally.sort(counts, guessed=self._guessed)

    def _regular(self, data: bytes) -> int:
        """Count data whose rows are all regular; return the number of its lines, 0 if a row is irregular."""
        if self._width == 1:
            return self._single(data)
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
        elif not self._sort(data, number):
            return 0
        self._tally.samples += number
        return lines or number

    def _single(self, data: bytes) -> int:
        """Count rows of one column, where a blank line would look like a row with one empty field."""
        if b'"' in data or self.sep in data:
            return 0
        values = data.translate(None, b"\r").split(b"\n")
        self._tally.samples += len(values) - values.count(b"")
        if not self._tally.unclassed:
            self._counts.update(values)
            if len(self._counts) > MAX_CLASSES:
                self.fold()
        return len(values) - 1

    def _sort(self, data: bytes, number: int) -> bool:
        """Count the classes of rows without a separator or newline inside of a field; return whether all have one."""
        if self._column == self._width - 1 and self._search(data, number):
            return True
        # behind the last newline the split ends with an empty field of no row
        classes = Counter(data.replace(b"\n", self.sep).split(self.sep)[self._column : -1 : self._width])
        if not NO_CLASS.isdisjoint(classes):
            return False  # its row may be one of empty fields, which is none
        self._counts.update(classes)
        if len(self._counts) > MAX_CLASSES:
            self.fold()
        return True

    def _search(self, data: bytes, number: int) -> bool:
        """Count rows by the known classes in the last column; return whether all have one of them."""
        known_classes = tuple(value for value in self._counts if self.sep not in value)
        if len(known_classes) > FEW and is_faster(known_classes):
            classes = count_ends(data, self.sep, known_classes)
        elif len(known_classes) <= SEVERAL:
            classes = {value: data.count(self.sep + value + b"\n") for value in known_classes}
        else:
            return False
        if sum(classes.values()) != number:
            return False
        self._counts.update(classes)
        return True

    def slowly(self, data: bytes) -> int:
        """Count row by row; return the bytes of whole rows."""
        used, begun = 0, self.line
        for row, reason, length, number in whole_rows(data, self.head.separator):
            self._row(row, reason)
            used, self.line = length, begun + number
        return used

    def _row(self, row: list[str], reason: str) -> None:
        fault = reason or self.head.row_fault(row, self._width)
        if fault:
            self._tally.fault(self._source.line(self.line + 1), fault)
        elif fault is not None:
            self._tally.samples += 1
            if not self._tally.unclassed and row[self._column]:
                self._counts[row[self._column].replace('"', '""').encode("latin-1")] += 1

    def _plain(self, value: bytes) -> str:
        """Return the value of a field from its text in the file."""
        value = value.strip(b" \r")
        if value[:1] == value[-1:] == b'"' and len(value) > 1:
            value = value[1:-1]
        return (
            value.replace(b'""', b'"').translate(bytes.maketrans(MASKED, self.sep + b"\n")).decode("utf-8", "replace")
        )


class Table(DatasetReader):
    """Rows of a table."""

    suffixes = SUFFIXES

    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> bool:  # noqa: ARG002  # of the port
        """Count the rows; the last one may have no newline yet."""
        if source.start:
            state = source.start.state
            head: TableHead | None = TableHead(str(state["first"]), str(state["separator"]))
            begin, line = source.begin, int(state["line"])
        elif (head := read_head(source.blocks(), source.name)) is not None:
            begin, line = head.length, head.number_of_lines
        if head is None:
            return True
        rows = Rows(source, head, tally, line)
        offset, remainder = _count(source, rows, begin)
        if remainder is None:
            return True
        source.leave(offset, tally, first=head.first, separator=head.separator, line=rows.line)
        if remainder:
            rows.end(remainder)
            rows.fold()
        return True


def _count(source: FileBlocks, rows: Rows, begin: int) -> tuple[int, bytes | None]:
    """Count whole rows; return their end, and what follows; None: a row has no end within the bound."""
    offset, remainder, tried = begin, b"", 0
    for block in source.blocks(begin=begin):
        data = remainder + block if remainder else block
        used = rows.take(data[: record_end(data, len(data))])
        if not used and len(data) > max(2 * tried, len(block)):  # a quote inside of a field counts as a character
            tried = len(data)
            used = rows.slowly(data[: data.rfind(b"\n") + 1])
        if used:
            tried = 0
        offset, remainder = offset + used, data[used:]
        if len(remainder) > MAX_ROW:
            rows.fold()
            rows.give_up(f"a row of over {MAX_ROW >> 20} MiB: is a quote never closed? What follows is not read")
            return offset, None
    rows.fold()
    return offset, remainder
