"""Readers of jsonl and txt: each line that is not blank is a sample.

A JSON object of a jsonl file may name its class in ``label``, ``class``, ``category`` or ``target``; other values have
no class.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from halimede.datasets.counts import MAX_CLASSES, DatasetCounts
from halimede.datasets.registry import DatasetReader, FileBlocks

#: most bytes of one line of JSON
MAX_LINE = 8 * 1024 * 1024
#: white space other than the newline
BLANKS = b" \t\r\v\f"
#: lines at the begin of a block that are searched for a common byte
SEARCHED_LINES = 200


class _Line(msgspec.Struct):
    """The fields of a line that may hold the class, undecoded; others are skipped."""

    label: msgspec.Raw = msgspec.Raw()
    class_: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="class")
    category: msgspec.Raw = msgspec.Raw()
    target: msgspec.Raw = msgspec.Raw()


_DECODER = msgspec.json.Decoder(_Line)


class JsonLines(DatasetReader):
    """Reads lines of JSON: a ``DatasetReader``, which describes the methods."""

    suffixes = frozenset({".jsonl", ".ndjson"})

    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> None:  # noqa: ARG002  # of the port
        """Add the samples of a file to the tally, and lines that are no JSON as its faults.

        A last line without a newline counts, and is read again when the file has grown.
        """
        offset = source.begin
        line = int(source.start.state["line"]) if source.start else 0
        remainder, counts, is_skipping = b"", Counter[bytes](), False
        for block in source.blocks():
            data = remainder + block if remainder else block
            end = data.rfind(b"\n") + 1
            lines, remainder = data[:end].split(b"\n")[:-1], data[end:]
            if is_skipping and lines:
                del lines[0]
                line, is_skipping = line + 1, False
            if len(remainder) > MAX_LINE:
                if not is_skipping:
                    tally.record_fault(source.line(line + len(lines) + 1), f"longer than {MAX_LINE >> 20} MiB")
                remainder, is_skipping = b"", True
            for number, text in enumerate(lines, line + 1):
                _count_line(text, number, source, tally, counts)
            line, offset = line + len(lines), offset + len(data) - len(remainder)
            if len(counts) > MAX_CLASSES:
                _add_classes(counts, tally)
        _add_classes(counts, tally)
        if not is_skipping:
            source.leave(offset, tally, line=line)
            _count_line(remainder, line + 1, source, tally, counts)
            _add_classes(counts, tally)


def _count_line(line: bytes, number: int, source: FileBlocks, tally: DatasetCounts, counts: Counter[bytes]) -> None:
    """Add a line of JSON to the tally, and its class to ``counts``. ``number``: of the line, from 1 on."""
    if not line.strip():
        return
    try:
        fields = _DECODER.decode(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
    except msgspec.ValidationError:
        fields = None  # JSON, but not an object: a sample without a class
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        tally.record_fault(source.line(number), f"no JSON: {error}")
        return
    tally.samples += 1
    if fields is not None and not tally.unclassed:
        value = bytes(fields.label or fields.class_ or fields.category or fields.target)
        if value[:1] not in b"[{" and value != b"null":
            counts[value] += 1


def _add_classes(counts: Counter[bytes], tally: DatasetCounts) -> None:
    """Add the samples of each class to the tally, and empty ``counts``, whose keys are the JSON text of classes."""
    counts_by_name: Counter[str] = Counter()
    for value, number in counts.items():
        text = msgspec.json.decode(value)
        counts_by_name[text if isinstance(text, str) else value.decode()] += number
    counts.clear()
    tally.add_classes(counts_by_name)


class TextLines(DatasetReader):
    """Reads lines of text: a ``DatasetReader``, which describes the methods."""

    suffixes = frozenset({".txt"})

    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> None:  # noqa: ARG002  # of the port
        """Add the number of non-blank lines of a file to the tally.

        A last one without a newline counts, and may continue when the file grows.
        """
        is_open = bool(source.start and source.start.state["open"])
        other_bytes: bytes | None = None
        offset, block = source.begin, b""
        for block in source.blocks():
            offset += len(block)
            if other_bytes is None:
                kept_bytes = _common_byte(block) + b"\n"
                other_bytes = bytes(byte for byte in range(256) if byte not in kept_bytes)
            ended, is_open = _count_in_block(block, is_open, other_bytes)
            tally.samples += ended
        source.leave(offset - block.endswith(b"\r"), tally, open=is_open)  # whether that CR ends a line is open, too
        tally.samples += is_open


def _count_in_block(block: bytes, is_open: bool, other_bytes: bytes) -> tuple[int, bool]:  # noqa: FBT001
    """Return how many non-blank lines end in a block, and whether another one has begun at its end.

    ``is_open``: a non-blank line has begun before the block. ``other_bytes``: as of ``_count_lines``.
    """
    first, last = block.find(b"\n"), block.rfind(b"\n")
    if first < 0:
        return 0, is_open or bool(block.strip())
    ended = int(is_open or bool(block[:first].strip()))
    return ended + _count_lines(block[first + 1 : last + 1], other_bytes), bool(block[last + 1 :].strip())


def _count_lines(lines: bytes, other_bytes: bytes) -> int:
    """Return the number of non-blank lines; each ends with a newline.

    ``other_bytes``: all bytes but the newline and one other. They are removed: if no line is then empty, each line has
    the other byte, so all are non-blank, and only newlines are counted. Else the lines are split, which is slower.
    """
    reduced = lines.translate(None, other_bytes)
    if reduced[:1] != b"\n" and b"\n\n" not in reduced:
        return reduced.count(b"\n")
    return len(lines.translate(None, BLANKS).split())


def _common_byte(block: bytes) -> bytes:
    """Return the rarest of the bytes that the first lines of a block have in common, empty if there is none."""
    lines = [set(line) for line in block.split(b"\n", SEARCHED_LINES)[:SEARCHED_LINES] if line.strip()]
    candidates = set.intersection(*lines) - set(BLANKS) if lines else set()
    return bytes([min(candidates, key=block.count)]) if candidates else b""
