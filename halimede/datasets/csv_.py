"""csv: a header, then one sample per row; quoted fields may contain separators, newlines (RFC 4180).

Python's own reader takes a microsecond for each row. Most blocks do not need it: removing the bytes of their fields
shows at once that all rows have the columns of the header. Only if that fails, the block is halved, and its irregular
part is read row by row.
"""

from __future__ import annotations

import csv
import io
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from halimede.datasets.counts import MAX_CLASSES, DatasetCounts, class_column
from halimede.datasets.registry import UNREADABLE, DatasetError, DatasetReader, FileBlocks, register
from halimede.system.child_process import end_with_parent

#: most bytes of one row
MAX_ROW = 4 * 1024 * 1024
#: bytes from which blocks are not halved any more
SMALL = 4 * 1024
#: most classes for which searching each is faster than splitting the rows
FEW = 5
#: replacements for separators and newlines inside of quotes while a block is split
MASKED = b"\x1f\x1e"


def record_end(data: bytes, limit: int) -> int:
    """Return a position of at most ``limit`` after a newline outside of quotes, 0 if there is none."""
    end = data.rfind(b"\n", 0, limit) + 1
    while end and data.count(b'"', 0, end) % 2:
        end = data.rfind(b"\n", 0, data.rfind(b'"', 0, end)) + 1
    return end


class Rows:
    """Counts rows from the begin of a row on. ``line`` is the number of lines already read."""

    def __init__(self, source: FileBlocks, header: str, sep: str, tally: DatasetCounts, line: int) -> None:
        names = next(csv.reader(io.StringIO(header, newline="\n"), delimiter=sep), [""])
        self.header = header
        self.sep = sep.encode()
        self.line = line
        self._source = source
        self._tally = tally
        self._width = len(names)
        self._column, self._guessed = class_column(names)
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
        if self._regular(data):
            self.line += data.count(b"\n")
            return len(data)
        half = record_end(data, len(data) // 2) if len(data) > SMALL else 0
        if not half:
            return self._slowly(data)
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

    def add(self, tally: DatasetCounts, line: int) -> None:
        """Add the counts of later rows."""
        self._tally.add(tally)
        self.line = line

    def fold(self) -> None:
        """Add the counts by class to the tally."""
        counts: Counter[str] = Counter()
        for value, number in self._counts.items():
            counts[self._plain(value)] += number
        counts.pop("", None)
        self._counts.clear()
        self._tally.sort(counts, guessed=self._guessed)

    def _regular(self, data: bytes) -> bool:
        """Count data whose rows are all regular; return whether they are."""
        if self._width == 1:
            return self._single(data)
        if b'"' in data:
            parts = data.split(b'"')
            outside = b'"'.join(parts[::2])
            shape = outside.translate(self._shape, b"\r")
            if len(parts) % 2 == 0 or b'x"' in shape or b'"x' in shape:
                return False
            parts[1::2] = b'"'.join(parts[1::2]).translate(self._mask).split(b'"')
            data = b'"'.join(parts)
        else:
            outside = data
        skeleton = outside.translate(None, self._fields)
        number = skeleton.count(b"\n")
        if skeleton != self._unit * number:
            return False
        self._tally.samples += number
        if not self._tally.unclassed:
            self._sort(data, number)
        return True

    def _single(self, data: bytes) -> bool:
        """Count rows of one column, where a blank line would look like a row with one empty field."""
        if b'"' in data or self.sep in data:
            return False
        values = data.translate(None, b"\r").split(b"\n")
        self._tally.samples += len(values) - values.count(b"")
        if not self._tally.unclassed:
            self._counts.update(values)
            if len(self._counts) > MAX_CLASSES:
                self.fold()
        return True

    def _sort(self, data: bytes, number: int) -> None:
        """Count the classes of rows without a separator or newline inside of a field."""
        if self._column == self._width - 1 and 0 < len(self._counts) <= FEW and self._search(data, number):
            return
        self._counts.update(data.replace(b"\n", self.sep).split(self.sep)[self._column :: self._width])
        if len(self._counts) > MAX_CLASSES:
            self.fold()

    def _search(self, data: bytes, number: int) -> bool:
        """Count rows by the known classes in the last column; return whether all have one of them."""
        found = {value: data.count(self.sep + value + b"\n") for value in self._counts}
        if sum(found.values()) != number:
            return False
        self._counts.update(found)
        return True

    def _slowly(self, data: bytes) -> int:
        """Count row by row; return the bytes of whole rows."""
        text = io.StringIO(data.decode("latin-1"), newline="\n")
        lines = _Lines(text)
        csv.field_size_limit(2 * MAX_ROW)
        reader = csv.reader(lines, delimiter=self.sep.decode())
        used, begun = 0, self.line
        while True:
            try:
                row = next(reader, None)
            except csv.Error as error:
                row, reason = [], str(error)
            else:
                reason = ""
            if row is None or lines.ended:
                return used
            self._row(row, reason)
            used, self.line = lines.bytes, begun + lines.number

    def _row(self, row: list[str], reason: str) -> None:
        if not reason and not "".join(row).strip() and len(row) < 2:
            return
        if reason or len(row) != self._width:
            reason = reason or f"{len(row)} columns where the header has {self._width}"
            self._tally.fault(self._source.line(self.line + 1), reason)
            return
        self._tally.samples += 1
        if not self._tally.unclassed:
            self._counts[row[self._column].replace('"', '""').encode("latin-1")] += 1

    def _plain(self, value: bytes) -> str:
        """Return the value of a field from its text in the file."""
        value = value.strip(b" \r")
        if value[:1] == value[-1:] == b'"' and len(value) > 1:
            value = value[1:-1]
        return (
            value.replace(b'""', b'"').translate(bytes.maketrans(MASKED, self.sep + b"\n")).decode("utf-8", "replace")
        )


class _Lines:
    """Lines for Python's reader, and its position. ``ended``: it requested more lines than there are."""

    def __init__(self, text: io.StringIO) -> None:
        self._text = text
        self.bytes = 0
        self.number = 0
        self.ended = False

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._text.readline()
        if not line:
            self.ended = True
            raise StopIteration
        self.bytes += len(line)
        self.number += 1
        return line


SEPARATORS = ",;\t|"
#: bytes from which a file is counted by two processes
LARGE = 16 * 1024 * 1024


@register("csv", "tsv", "table")
class Table(DatasetReader):
    """Rows of a table."""

    suffixes = frozenset({".csv", ".tsv"})

    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> bool:  # noqa: ARG002  # of the port
        """Count the rows; the last one may have no newline yet."""
        if source.mark:
            known = source.mark.state
            rows = Rows(source, str(known["header"]), str(known["sep"]), tally, int(known["line"]))
            begin = source.begin
        else:
            found, begin = _header(source, tally)
            if found is None:
                return True
            rows = found
        offset, rest = _count(source, rows, begin)
        if rest is None:
            return True
        source.leave(offset, tally, header=rows.header, sep=rows.sep.decode(), line=rows.line)
        if rest:
            rows.end(rest)
            rows.fold()
        return True


class _Part(msgspec.Struct, array_like=True):
    """The result for a part of a file: the end of its last whole row, and the rest; None: it was given up."""

    tally: DatasetCounts
    line: int
    offset: int
    rest: bytes | None


def _count(source: FileBlocks, rows: Rows, begin: int) -> tuple[int, bytes | None]:
    """Count the rows from a position on; the second half of a large file in parallel to the first."""
    middle, line = _middle(source, begin) if source.size - begin >= LARGE else (0, 0)
    other = ForkedTask.start(lambda: _second(source, rows, middle, line)) if middle else None
    if other is None:
        return _range(source, rows, begin, source.size)
    offset, rest = _range(source, rows, begin, middle)
    if offset != middle:  # no row ends there: the file has irregular quotes
        other.cancel()
        return (offset, None) if rest is None else _range(source, rows, offset, source.size)
    said = other.result()
    if said is None:
        return _range(source, rows, offset, source.size)
    part = msgspec.msgpack.decode(said, type=_Part)
    rows.add(part.tally, part.line)
    return part.offset, part.rest


def _second(source: FileBlocks, rows: Rows, middle: int, line: int) -> bytes:
    tally = DatasetCounts()
    mine = Rows(source, rows.header, rows.sep.decode(), tally, line)
    offset, rest = _range(source, mine, middle, source.size)
    return msgspec.msgpack.encode(_Part(tally, mine.line, offset, rest))


def _range(source: FileBlocks, rows: Rows, begin: int, end: int) -> tuple[int, bytes | None]:
    """Count whole rows; return their end, and the rest before ``end``."""
    offset, rest = begin, b""
    for block in source.blocks(begin=begin, end=end):
        data = rest + block if rest else block
        used = rows.take(data[: record_end(data, len(data))])
        offset, rest = offset + used, data[used:]
        if len(rest) > MAX_ROW:
            rows.fold()
            rows.give_up(f"a row of over {MAX_ROW >> 20} MiB: is a quote never closed? What follows is not read")
            return offset, None
    rows.fold()
    return offset, rest


def _middle(source: FileBlocks, begin: int) -> tuple[int, int]:
    """Return the begin of a row near the middle, if quotes are regular, and its line."""
    half, quotes, line = (begin + source.size) // 2, 0, 0
    for block in source.blocks(begin=0, end=half):
        quotes += block.count(b'"')
        line += block.count(b"\n")
    for block in source.blocks(MAX_ROW, begin=half, end=min(source.size, half + MAX_ROW)):
        at = 0
        while (end := block.find(b"\n", at)) >= 0:
            quotes += block.count(b'"', at, end)
            line, at = line + 1, end + 1
            if quotes % 2 == 0:
                return half + at, line
    return 0, 0


def _header(source: FileBlocks, tally: DatasetCounts) -> tuple[Rows | None, int]:
    """Read the header. Return the row counter, and the begin of the rows; None without a header."""
    data = b""
    for block in source.blocks():
        data += block
        rows, used = _begin(data, tally, source)
        if rows is not None:
            return rows, used
    return None, 0


def _begin(data: bytes, tally: DatasetCounts, source: FileBlocks) -> tuple[Rows | None, int]:
    """Read the header. Return the row counter, and the header's length; None while it is incomplete."""
    start = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    while data[start : start + 1] in {b"\n", b"\r"}:
        start += 1
    first = data.find(b"\n", start)
    if first < 0:
        if len(data) > MAX_ROW:
            raise DatasetError(UNREADABLE, f"{source.name}: its header is over {MAX_ROW >> 20} MiB: is it a csv file?")
        return None, 0
    head = data[start:first].decode("latin-1")
    sep = max(SEPARATORS, key=head.count)
    for end in _newlines(data, first):
        header = data[start : end + 1].decode("latin-1")
        if header.count('"') % 2 == 0:
            return Rows(source, header, sep, tally, data.count(b"\n", 0, end + 1)), end + 1
    return None, 0


def _newlines(data: bytes, first: int) -> list[int]:
    """Return the possible ends of the header, in the first lines."""
    found = [first]
    while len(found) < 100 and (end := data.find(b"\n", found[-1] + 1)) >= 0:
        found.append(end)
    return found


class ForkedTask:
    """Work in a forked copy of this process, which returns its result and exits.

    For a counting process without other threads; in a program with more threads ``start`` returns None.
    """

    def __init__(self, process: int, pipe: int) -> None:
        self._process = process
        self._pipe = pipe

    @classmethod
    def start(cls, work: Callable[[], bytes]) -> ForkedTask | None:
        """Start it, if there is a processor for it."""
        if len(os.sched_getaffinity(0)) < 2 or threading.active_count() > 1:
            return None
        parent = os.getpid()
        mine, its = os.pipe()
        try:
            process = os.fork()
        except OSError:
            os.close(mine)
            os.close(its)
            return None
        if process:
            os.close(its)
            return cls(process, mine)
        code = 1
        try:
            if end_with_parent(parent):
                os.close(mine)
                with os.fdopen(its, "wb") as pipe:
                    pipe.write(work())
                code = 0
        except BaseException as error:  # noqa: BLE001  # no other code of the forked program may run
            print(f"counting beside broke: {type(error).__name__}", file=sys.stderr)
        finally:
            os._exit(code)  # open files belong to the parent, so exit without closing them

    def result(self) -> bytes | None:
        """Wait for the result, None if the work failed."""
        with os.fdopen(self._pipe, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(self._process, 0)
        return said if status == 0 else None

    def cancel(self) -> None:
        """Kill the process."""
        os.kill(self._process, signal.SIGKILL)
        os.close(self._pipe)
        os.waitpid(self._process, 0)
