"""What a source has to give: files by their digest, read piece by piece, each opened once for many pieces.

Nobody names a path here. A file that is open is read to its end even if it is evicted meanwhile.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from halimede.messages.blobs import MAX_CHUNK
from halimede.models import Cache
from halimede.models.cache import in_thread

#: open files, and seconds that one stays open after its last piece
MOST_OPEN, IDLE_S = 16, 10.0
#: the cache's word for who asks over the bus: nobody who has been to an origin with credentials
BUS = "bus"

Find = Callable[[str], Awaitable[Path | None]]


@dataclass(slots=True)
class _Open:
    fd: int
    size: int
    used: float
    busy: int = 0


class FileProvider:
    """Files that any client on the bus may get. ``find`` returns the path of a digest's file, or None."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._open: dict[str, _Open] = {}
        self._buffer = bytearray(MAX_CHUNK)

    async def size(self, digest: str) -> int | None:
        """Return the size of a file, None if it is not here. Raises OSError."""
        held = self._open.get(digest) or await self._opened(digest)
        return held.size if held else None

    async def read(self, digest: str, offset: int, length: int) -> tuple[int, memoryview] | None:
        """Return a file's size and a piece of it, empty behind its end; None if it is not here. Raises OSError.

        The piece may be shorter than asked for. It holds until the next call.
        """
        held = self._open.get(digest) or await self._opened(digest)
        if held is None:
            return None
        held.used = asyncio.get_running_loop().time()
        held.busy += 1
        try:
            return held.size, await self._piece(held, offset, min(length, held.size - offset))
        finally:
            held.busy -= 1

    async def _piece(self, held: _Open, offset: int, length: int) -> memoryview:
        if length <= 0:
            return memoryview(b"")
        piece = memoryview(self._buffer)[:length]
        try:
            # from memory if it is there: a thread for each piece costs more than the piece
            return piece[: os.preadv(held.fd, [piece], offset, os.RWF_NOWAIT)]
        except OSError:  # the disk has to be asked, or the file system cannot tell
            return memoryview(await in_thread(os.pread, held.fd, length, offset))

    def tidy(self) -> None:
        """Close what nobody has asked for in a while."""
        now = asyncio.get_running_loop().time()
        for digest, held in list(self._open.items()):
            if not held.busy and now - held.used > IDLE_S:
                self._close(digest)

    def close(self) -> None:
        """Close all."""
        for digest in list(self._open):
            self._close(digest)

    async def _opened(self, digest: str) -> _Open | None:
        path = await self._find(digest)
        if path is None:
            return None
        fd = await in_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
        if digest in self._open:  # another was faster
            os.close(fd)
            return self._open[digest]
        if len(self._open) >= MOST_OPEN:
            idle = [each for each, held in self._open.items() if not held.busy]
            if idle:
                self._close(min(idle, key=lambda each: self._open[each].used))
        held = _Open(fd, os.fstat(fd).st_size, asyncio.get_running_loop().time())
        self._open[digest] = held
        return held

    def _close(self, digest: str) -> None:
        os.close(self._open.pop(digest).fd)


def of_cache(cache: Cache) -> Find:
    """Return what finds files of a cache, but none that was opened with credentials: those are not for everybody."""

    async def find(digest: str) -> Path | None:
        if not await in_thread(cache.may_have, BUS, digest):
            return None
        found = await cache.find(digest)
        return found.path if found else None

    return find
