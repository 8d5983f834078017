"""One file as the readers of formats see it: blocks up to the size that it had, and the place where they left off."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from halimede.datasets.counts import DatasetCounts
from halimede.datasets.errors import UNREADABLE, DatasetError

#: bytes that are looked at together: what is made of them stays in the processor's cache, and in the allocator's hands
BLOCK = 64 * 1024
#: bytes before the mark that must be as they were, and of the file's beginning
TAIL, HEAD = 64 * 1024, 4 * 1024


class Mark(msgspec.Struct, kw_only=True):
    """Where a file that grows at its end was read to, what was counted by then, and what its reader has to know."""

    offset: int
    digest: str
    tally: DatasetCounts
    state: dict[str, int | str | bool]


class FileBlocks:
    """An open file. ``name`` is for people; ``mark`` is where reading begins, and then where the next time shall."""

    def __init__(
        self, path: Path, name: str, file: BinaryIO, size: int, *, came: Callable[[int], None], mark: Mark | None = None
    ) -> None:
        self.path = path
        self.name = name
        self.file = file
        self.size = size
        self.mark = mark if mark is not None and mark.digest == _digest(file, mark.offset, size) else None
        self._came = came

    @property
    def begin(self) -> int:
        """Where reading begins."""
        return self.mark.offset if self.mark else 0

    def blocks(self, block: int = BLOCK, *, begin: int | None = None, end: int | None = None) -> Iterator[bytes]:
        """Yield what is to be read; it is of no matter who else reads the file."""
        offset, end = self.begin if begin is None else begin, self.size if end is None else end
        while offset < end and (data := os.pread(self.file.fileno(), min(block, end - offset), offset)):
            if offset == 0 and data[:2] in {b"\xff\xfe", b"\xfe\xff"}:
                raise DatasetError(UNREADABLE, f"{self.name} is UTF-16: write it as UTF-8")
            offset += len(data)
            self._came(len(data))
            yield data

    def line(self, number: int) -> str:
        """Return the name of a line."""
        return f"{self.name}: line {number}"

    def leave(self, offset: int, tally: DatasetCounts, **state: int | str | bool) -> None:
        """Remember a place from where this can go on once the file has grown."""
        digest = _digest(self.file, offset, self.size)
        self.mark = Mark(offset=offset, digest=digest, tally=tally.copy(), state=state)


def _digest(file: BinaryIO, offset: int, size: int) -> str:
    """Return what the content before a place is known by, empty where there is none."""
    if not 0 < offset <= size:
        return ""
    number = file.fileno()
    made = hashlib.blake2b(os.pread(number, min(HEAD, offset), 0), digest_size=16)
    made.update(os.pread(number, min(TAIL, offset), max(0, offset - TAIL)))
    return made.hexdigest()
