"""csv: a header, then one sample a row; quoted fields may hold separators and newlines (RFC 4180).

Python's own reader decides what a row is, and takes a microsecond for each. Most blocks do not need it: what is left
of one without the bytes of its fields shows at once that all its rows have the columns of the header. Only where that
fails is a block halved, and what is odd about it read row by row.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from halimede.datasets.counts import DatasetCounts
from halimede.datasets.errors import UNREADABLE, DatasetError
from halimede.datasets.file_blocks import FileBlocks
from halimede.datasets.forked_task import ForkedTask
from halimede.datasets.registry import register
from halimede.datasets.rows import MAX_ROW, Rows, record_end

SEPARATORS = ",;\t|"
#: bytes from which on a file is worth a second process
LARGE = 16 * 1024 * 1024


@register("csv", "tsv", "table")
class Table:
    """Rows of a table."""

    suffixes = frozenset({".csv", ".tsv"})

    def root(self, folder: Path) -> Path:
        """Any folder."""
        return folder

    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> bool:  # noqa: ARG002  # of the port
        """Count the rows; the last one need not have an end yet."""
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
    """What came of a part of a file: where its last whole row ends, and what is left; None: it was given up."""

    tally: DatasetCounts
    line: int
    offset: int
    rest: bytes | None


def _count(source: FileBlocks, rows: Rows, begin: int) -> tuple[int, bytes | None]:
    """Count the rows from a place on, of a large file its second half beside the first."""
    middle, line = _middle(source, begin) if source.size - begin >= LARGE else (0, 0)
    other = ForkedTask.start(lambda: _second(source, rows, middle, line)) if middle else None
    if other is None:
        return _range(source, rows, begin, source.size)
    offset, rest = _range(source, rows, begin, middle)
    if offset != middle:  # no row ends there: there are quotes that are none
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
    """Count whole rows; return where they end, and what is left before ``end``."""
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
    """Return a place near the middle where a row begins, if quotes are used as they should be, and its line."""
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
    """Read the header. Return how rows are read, and where they begin; nothing if there is none."""
    data = b""
    for block in source.blocks():
        data += block
        rows, used = _begin(data, tally, source)
        if rows is not None:
            return rows, used
    return None, 0


def _begin(data: bytes, tally: DatasetCounts, source: FileBlocks) -> tuple[Rows | None, int]:
    """Read the header. Return how rows are read, and how long it is; nothing while it has no end yet."""
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
    """Return where the header may end: in the first lines."""
    found = [first]
    while len(found) < 100 and (end := data.find(b"\n", found[-1] + 1)) >= 0:
        found.append(end)
    return found
