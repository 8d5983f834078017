"""txt: one sample for each line; lines with only white space are skipped."""

from __future__ import annotations

from pathlib import Path

from halimede.datasets.counts import DatasetCounts
from halimede.datasets.file_blocks import FileBlocks
from halimede.datasets.registry import register

#: white space other than the newline
BLANKS = b" \t\r\v\f"
#: lines that are looked at to find a byte that all have
SAMPLE = 200


@register("txt", "text", "list")
class Text:
    """Lines of text."""

    suffixes = frozenset({".txt"})

    def root(self, folder: Path) -> Path:
        """Any folder."""
        return folder

    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> bool:  # noqa: ARG002  # of the port
        """Count the lines; one that has no end yet counts, and may go on later."""
        open_ = bool(source.mark and source.mark.state["open"])
        witness: bytes | None = None
        offset = source.mark.offset if source.mark else 0
        for block in source.blocks():
            offset += len(block)
            if witness is None:
                witness = _all_but(_witness(block))
            number, open_ = _lines(block, open_, witness)
            tally.samples += number
        source.leave(offset, tally, open=open_)
        tally.samples += open_
        return True


def _lines(block: bytes, open_: bool, witness: bytes) -> tuple[int, bool]:  # noqa: FBT001
    """Return how many lines with something in them end in a block, and whether one has begun at its end."""
    first, last = block.find(b"\n"), block.rfind(b"\n")
    if first < 0:
        return 0, open_ or bool(block.strip())
    number = int(open_ or bool(block[:first].strip()))
    return number + _whole(block[first + 1 : last + 1], witness), bool(block[last + 1 :].strip())


def _whole(lines: bytes, witness: bytes) -> int:
    """Count lines with something in them.

    If every line has one certain byte, what is left without the other bytes shows it sooner than splitting does.
    """
    shape = lines.translate(None, witness)
    if shape[:1] != b"\n" and b"\n\n" not in shape:
        return shape.count(b"\n")
    return len(lines.translate(None, BLANKS).split())


def _witness(block: bytes) -> bytes:
    """Return the rarest byte that is in each of the first lines, or nothing."""
    lines = [set(line) for line in block.split(b"\n", SAMPLE)[:SAMPLE] if line.strip()]
    common = set.intersection(*lines) - set(BLANKS) if lines else set()
    return bytes([min(common, key=block.count)]) if common else b""


def _all_but(witness: bytes) -> bytes:
    return bytes(byte for byte in range(256) if byte not in witness + b"\n")
