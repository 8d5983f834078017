"""A partial download on disk: it persists when its process ends, and the next process resumes it.

A record next to it has the origin of the bytes. The record is not trusted: the bytes are hashed again, and they are
resumed only if a known digest will verify the result, or if the origin still has content of that strong validator and
the machine was not rebooted since (a page that never reached the disk reads as zeros).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Struct, field

from halimede.models.cache import BLOCK, Cache, Fetched, in_thread
from halimede.system.files import FULL, write_atomic

#: bytes that are hashed in one step: a cancellation waits that long
STRETCH = 64 * BLOCK
#: seconds after which a partial download is removed
ABANDONED_S = 3 * 86_400.0
SIDE = ".json"
BOOT = Path("/proc/sys/kernel/random/boot_id")


class PartRecord(Struct, kw_only=True):
    """The origin of a partial download: a hash of requester and URL, the origin's validator, the machine's boot id."""

    origin: str
    validator: str = field(name="mark")
    boot: str


class PartialDownload:
    """A file that is being written and hashed. The end of the block keeps it if it can be resumed, else removes it.

    ``origin`` is ``Requester.key``. ``decided``: its digest is known beforehand. The caller must hold the lock of its
    name.
    """

    def __init__(self, cache: Cache, name: str, origin: str, *, decided: bool) -> None:
        self.cache = cache
        self.path = cache.root / "parts" / name
        self.size = 0
        #: the strong validator of the written content, if this origin gave it
        self.validator = ""
        self._side = self.path.with_name(name + SIDE)
        self._origin = hashlib.sha256(origin.encode()).hexdigest()
        self._decided = decided
        self._hash = hashlib.sha256()
        self._fd = -1
        self._recorded = False

    async def __aenter__(self) -> Self:
        try:
            record = await in_thread(self._open)
            if record:
                while await in_thread(self._hash_on):
                    pass
                self.validator = record.validator if record.origin == self._origin else ""
        except BaseException:
            if self._fd >= 0:
                self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and error.errno in FULL:
            self.discard()  # on a full disk the space is needed
        self._leave()

    @property
    def digest(self) -> str:
        """SHA-256 of the written bytes."""
        return self._hash.hexdigest()

    async def begin(self, validator: str, offset: int) -> None:
        """Continue at ``offset`` with content of this validator: at the part's size, or from 0."""
        if offset != self.size:
            await in_thread(self._clear)
        self.validator = validator if strong(validator) else ""
        self._recorded = self._decided or bool(self.validator)
        if self._recorded:
            record = PartRecord(origin=self._origin, validator=self.validator, boot=_boot())
            await in_thread(partial(write_atomic, self._side, msgspec.json.encode(record), shared=True))

    async def write(self, block: bytes) -> None:
        """Append a block."""
        await in_thread(self._write, block)

    async def commit(self) -> Fetched:
        """Sync the file to disk and move it into the cache."""
        return await in_thread(self._commit)

    def discard(self) -> None:
        """Do not keep the file: its content is wrong or not needed."""
        self._recorded = False

    def _open(self) -> PartRecord | None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(self.path.parent)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        record = self._read_record()
        if record is None:
            os.ftruncate(self._fd, 0)
        self._recorded = record is not None
        return record

    def _read_record(self) -> PartRecord | None:
        try:
            record = msgspec.json.decode(self._side.read_bytes(), type=PartRecord)
        except (OSError, msgspec.DecodeError):
            return None
        same = record.origin == self._origin and strong(record.validator) and record.boot == _boot()
        return record if self._decided or same else None

    def _hash_on(self) -> bool:
        end = self.size + STRETCH
        while self.size < end:
            block = os.pread(self._fd, BLOCK, self.size)
            if not block:
                os.lseek(self._fd, self.size, os.SEEK_SET)
                return False
            self._hash.update(block)
            self.size += len(block)
        return True

    def _clear(self) -> None:
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        self._hash, self.size = hashlib.sha256(), 0

    def _write(self, block: bytes) -> None:
        remaining = memoryview(block)
        while remaining:
            done = os.write(self._fd, remaining)
            self._hash.update(remaining[:done])  # together with the size: bytes of a write that fails later still count
            self.size += done
            remaining = remaining[done:]

    def _commit(self) -> Fetched:
        os.fsync(self._fd)
        fetched = self.cache.keep(self.path, self.digest)
        self._recorded = False
        return fetched

    def _leave(self) -> None:
        resumable = self._recorded and os.fstat(self._fd).st_size
        os.close(self._fd)
        if not resumable:
            self.path.unlink(missing_ok=True)  # a committed file was moved
            self._side.unlink(missing_ok=True)


def strong(validator: str) -> bool:
    """Whether equal validators mean equal bytes. Weak ETags do not."""
    return bool(validator) and not validator.startswith("W/")


def _sweep(folder: Path) -> None:
    """Remove abandoned partial downloads. One that is still being written would only start again."""
    oldest = time.time() - ABANDONED_S
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            if entry.stat(follow_symlinks=False).st_mtime < oldest:
                os.unlink(entry)  # noqa: PTH108


def _boot() -> str:
    try:
        return BOOT.read_text().strip()
    except OSError:
        return os.urandom(16).hex()  # unique: if the boot id is unknown, nothing is resumed
