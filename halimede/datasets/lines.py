"""jsonl and txt: each line is a sample. The class of a JSON value is in a field ``label``, ``class``, ``category``, ...

Lines of txt with only white space are skipped.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from halimede.datasets.counts import MAX_CLASSES, DatasetCounts
from halimede.datasets.registry import DatasetReader, FileBlocks

#: most bytes of one line
MAX_LINE = 8 * 1024 * 1024
#: white space other than the newline
BLANKS = b" \t\r\v\f"
#: lines that are searched for a common byte
SAMPLE = 200


class _Line(msgspec.Struct):
    """The fields that may hold the class, undecoded; the others are skipped."""

    label: msgspec.Raw = msgspec.Raw()
    class_: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="class")
    category: msgspec.Raw = msgspec.Raw()
    target: msgspec.Raw = msgspec.Raw()


_DECODER = msgspec.json.Decoder(_Line)


class Lines(DatasetReader):
    """Lines of JSON."""

    suffixes = frozenset({".jsonl", ".ndjson"})

    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> bool:  # noqa: ARG002  # of the port
        """Count the lines; the last one may have no newline yet."""
        offset = source.start.offset if source.start else 0
        line = int(source.start.state["line"]) if source.start else 0
        remainder, counts, skipping = b"", Counter[bytes](), False
        for block in source.blocks():
            data = remainder + block if remainder else block
            end = data.rfind(b"\n") + 1
            lines, remainder = data[:end].split(b"\n")[:-1], data[end:]
            if skipping and lines:
                del lines[0]
                line, skipping = line + 1, False
            if len(remainder) > MAX_LINE:
                if not skipping:
                    tally.fault(source.line(line + len(lines) + 1), f"longer than {MAX_LINE >> 20} MiB")
                remainder, skipping = b"", True
            for number, text in enumerate(lines, line + 1):
                _take(text, number, source, tally, counts)
            line, offset = line + len(lines), offset + len(data) - len(remainder)
            if len(counts) > MAX_CLASSES:
                _fold(counts, tally)
        _fold(counts, tally)
        if not skipping:
            source.leave(offset, tally, line=line)
            _take(remainder, line + 1, source, tally, counts)
            _fold(counts, tally)
        return True


def _take(text: bytes, number: int, source: FileBlocks, tally: DatasetCounts, counts: Counter[bytes]) -> None:
    """Count one line."""
    if not text.strip():
        return
    try:
        fields = _DECODER.decode(text.removeprefix(b"\xef\xbb\xbf") if number == 1 else text)
    except msgspec.ValidationError:
        fields = None  # JSON, but not an object: a sample without a class
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        tally.fault(source.line(number), f"no JSON: {error}")
        return
    tally.samples += 1
    if fields is not None and not tally.unclassed:
        value = bytes(fields.label or fields.class_ or fields.category or fields.target)
        if value[:1] not in b"[{" and value != b"null":
            counts[value] += 1


def _fold(counts: Counter[bytes], tally: DatasetCounts) -> None:
    """Add the counts by class to the tally."""
    named: Counter[str] = Counter()
    for value, number in counts.items():
        text = msgspec.json.decode(value)
        named[text if isinstance(text, str) else value.decode()] += number
    counts.clear()
    tally.sort(named)


class Text(DatasetReader):
    """Lines of text."""

    suffixes = frozenset({".txt"})

    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> bool:  # noqa: ARG002  # of the port
        """Count the lines; one without a newline yet counts, and may continue later."""
        open_ = bool(source.start and source.start.state["open"])
        witness: bytes | None = None
        offset, block = source.begin, b""
        for block in source.blocks():
            offset += len(block)
            if witness is None:
                witness = _all_but(_witness(block))
            number, open_ = _lines(block, open_, witness)
            tally.samples += number
        source.leave(offset - block.endswith(b"\r"), tally, open=open_)  # whether that CR ends a line is open, too
        tally.samples += open_
        return True


def _lines(block: bytes, open_: bool, witness: bytes) -> tuple[int, bool]:  # noqa: FBT001
    """Return how many non-blank lines end in a block, and whether one has begun at its end."""
    first, last = block.find(b"\n"), block.rfind(b"\n")
    if first < 0:
        return 0, open_ or bool(block.strip())
    number = int(open_ or bool(block[:first].strip()))
    return number + _whole(block[first + 1 : last + 1], witness), bool(block[last + 1 :].strip())


def _whole(lines: bytes, witness: bytes) -> int:
    """Count non-blank lines.

    If every line has one common byte, removing all other bytes counts them faster than splitting.
    """
    shape = lines.translate(None, witness)
    if shape[:1] != b"\n" and b"\n\n" not in shape:
        return shape.count(b"\n")
    return len(lines.translate(None, BLANKS).split())


def _witness(block: bytes) -> bytes:
    """Return the rarest byte that each of the first lines has, or none."""
    lines = [set(line) for line in block.split(b"\n", SAMPLE)[:SAMPLE] if line.strip()]
    common = set.intersection(*lines) - set(BLANKS) if lines else set()
    return bytes([min(common, key=block.count)]) if common else b""


def _all_but(witness: bytes) -> bytes:
    return bytes(byte for byte in range(256) if byte not in witness + b"\n")
