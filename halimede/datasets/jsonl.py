"""jsonl: one JSON value a line, and each a sample; its class is in a field ``label``, ``class``, ``category``, ..."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from halimede.datasets.counts import MAX_CLASSES, DatasetCounts
from halimede.datasets.file_blocks import FileBlocks
from halimede.datasets.registry import register

#: bytes of one line
MAX_LINE = 8 * 1024 * 1024


class _Line(msgspec.Struct):
    """The fields that may hold the class, undecoded; the others are skipped."""

    label: msgspec.Raw = msgspec.Raw()
    class_: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="class")
    category: msgspec.Raw = msgspec.Raw()
    target: msgspec.Raw = msgspec.Raw()


_DECODER = msgspec.json.Decoder(_Line)


@register("jsonl", "ndjson", "json-lines")
class Lines:
    """Lines of JSON."""

    suffixes = frozenset({".jsonl", ".ndjson"})

    def root(self, folder: Path) -> Path:
        """Any folder."""
        return folder

    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> bool:  # noqa: ARG002  # of the port
        """Count the lines; the last one need not have an end yet."""
        offset = source.mark.offset if source.mark else 0
        line = int(source.mark.state["line"]) if source.mark else 0
        rest, counts, skipping = b"", Counter[bytes](), False
        for block in source.blocks():
            data = rest + block if rest else block
            end = data.rfind(b"\n") + 1
            lines, rest = data[:end].split(b"\n")[:-1], data[end:]
            if skipping and lines:
                del lines[0]
                line, skipping = line + 1, False
            if len(rest) > MAX_LINE:
                if not skipping:
                    tally.fault(source.line(line + len(lines) + 1), f"longer than {MAX_LINE >> 20} MiB")
                rest, skipping = b"", True
            for number, text in enumerate(lines, line + 1):
                _take(text, number, source, tally, counts)
            line, offset = line + len(lines), offset + len(data) - len(rest)
            if len(counts) > MAX_CLASSES:
                _fold(counts, tally)
        _fold(counts, tally)
        if not skipping:
            source.leave(offset, tally, line=line)
            _take(rest, line + 1, source, tally, counts)
            _fold(counts, tally)
        return True


def _take(text: bytes, number: int, source: FileBlocks, tally: DatasetCounts, counts: Counter[bytes]) -> None:
    """Count one line."""
    if not text.strip():
        return
    try:
        fields = _DECODER.decode(text.removeprefix(b"\xef\xbb\xbf") if number == 1 else text)
    except msgspec.ValidationError:
        fields = None  # JSON, but no object: a sample without a class
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        tally.fault(source.line(number), f"no JSON: {error}")
        return
    tally.samples += 1
    if fields is not None and not tally.unclassed:
        value = bytes(fields.label or fields.class_ or fields.category or fields.target)
        if value[:1] not in b"[{" and value != b"null":
            counts[value] += 1


def _fold(counts: Counter[bytes], tally: DatasetCounts) -> None:
    """Put what was counted by class into the tally."""
    named: Counter[str] = Counter()
    for value, number in counts.items():
        text = msgspec.json.decode(value)
        named[text if isinstance(text, str) else value.decode()] += number
    counts.clear()
    tally.sort(named)
