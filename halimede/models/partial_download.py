"""A partial download on disk: it persists when its process ends, and the next process resumes it.

A record next to the file has the origin of the bytes. The record is not trusted: the bytes are hashed again. They are
resumed in two cases: a known digest will verify the result; or the origin still has the content of the recorded strong
validator, and the machine was not rebooted since (a page that never reached the disk reads as zeros). A validator is a
text, such as an ETag, that changes with the content; a strong one changes with every byte.
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
HASH_STEP_BYTES = 64 * BLOCK
#: seconds without a write after which a partial download is removed
ABANDONED_S = 3 * 86_400.0
#: what is appended to the name of a partial download for its record
RECORD_SUFFIX = ".json"
#: the kernel's file with a text that is new after each reboot
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class PartRecord(Struct, kw_only=True):
    """The origin of a partial download.

    Attributes:
        origin: a hash of ``Requester.key``: of the URL and who requests it.
        validator: the strong validator of the content; empty: the origin gave none.
        boot: the boot id of the machine when the download began.

    """

    origin: str
    validator: str = field(name="mark")
    boot: str


class PartialDownload:
    """A file that is being written and hashed within an ``async with`` block, whose end removes it unless resumable.

    The beginning of the block reads and hashes what an earlier process has left. The caller holds the cache's lock
    ``name``, then calls ``begin``, ``write`` for each block, and ``commit``. All of them raise OSError.

    ``name``: of the file. ``origin``: ``Requester.key``. ``has_digest``: the digest of the whole content is known
    beforehand.

    Attributes:
        cache: where the complete file goes.
        path: of the file.
        size: bytes that are written, those of earlier processes included.
        validator: the strong validator of the written content, if ``origin`` gave it; else empty.

    """

    def __init__(self, cache: Cache, name: str, origin: str, *, has_digest: bool) -> None:
        self.cache = cache
        self.path = cache.root / "parts" / name
        self.size = 0
        self.validator = ""
        self._record_path = self.path.with_name(name + RECORD_SUFFIX)
        self._origin = hashlib.sha256(origin.encode()).hexdigest()
        self._has_digest = has_digest
        self._hash = hashlib.sha256()
        self._descriptor = -1
        self._is_resumable = False

    async def __aenter__(self) -> Self:
        try:
            record = await in_thread(self._open)
            if record:
                while await in_thread(self._hash_step):
                    pass
                os.lseek(self._descriptor, self.size, os.SEEK_SET)
                self.validator = record.validator if record.origin == self._origin else ""
        except BaseException:
            if self._descriptor >= 0:
                self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and error.errno in FULL:
            self.discard()  # on a full disk the space is needed
        self._close()

    @property
    def digest(self) -> str:
        """SHA-256 of the written bytes in hexadecimal."""
        return self._hash.hexdigest()

    async def begin(self, validator: str, offset: int) -> None:
        """Continue with content of this validator at ``offset``: the present size, or 0 to write it from its begin."""
        if offset != self.size:
            await in_thread(self._clear)
        self.validator = validator if is_strong(validator) else ""
        self._is_resumable = self._has_digest or bool(self.validator)
        if self._is_resumable:
            record = PartRecord(origin=self._origin, validator=self.validator, boot=_boot_id())
            await in_thread(partial(write_atomic, self._record_path, msgspec.json.encode(record), shared=True))

    async def write(self, block: bytes) -> None:
        """Append a block, and hash it."""
        await in_thread(self._write, block)

    async def commit(self) -> Fetched:
        """Sync the file to disk, move it into the cache under its digest, and return it there."""
        return await in_thread(self._commit)

    def discard(self) -> None:
        """Let the end of the ``async with`` block remove the file, because its content is wrong or not needed."""
        self._is_resumable = False

    def _open(self) -> PartRecord | None:
        """Open the file, emptied unless its bytes can be resumed; return their record, None if there are none."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(self.path.parent)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        record = self._read_record()
        if record is None:
            os.ftruncate(self._descriptor, 0)
        self._is_resumable = record is not None
        return record

    def _read_record(self) -> PartRecord | None:
        """Return the record of the present bytes if they can be resumed."""
        try:
            record = msgspec.json.decode(self._record_path.read_bytes(), type=PartRecord)
        except (OSError, msgspec.DecodeError):
            return None
        is_same_content = record.origin == self._origin and is_strong(record.validator) and record.boot == _boot_id()
        return record if self._has_digest or is_same_content else None

    def _hash_step(self) -> int:
        """Hash the next bytes of the file; return their number, 0 at its end."""
        begin = self.size
        while self.size < begin + HASH_STEP_BYTES and (block := os.pread(self._descriptor, BLOCK, self.size)):
            self._hash.update(block)
            self.size += len(block)
        return self.size - begin

    def _clear(self) -> None:
        """Remove the written bytes."""
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        self._hash, self.size = hashlib.sha256(), 0

    def _write(self, block: bytes) -> None:
        """Write a block completely, and hash it."""
        remaining = memoryview(block)
        while remaining:
            written = os.write(self._descriptor, remaining)
            self._hash.update(remaining[:written])  # together with the size: a later write may fail
            self.size += written
            remaining = remaining[written:]

    def _commit(self) -> Fetched:
        """Do the work of ``commit``."""
        os.fsync(self._descriptor)
        fetched = self.cache.keep(self.path, self.digest)
        self._is_resumable = False
        return fetched

    def _close(self) -> None:
        """Close the file, and remove it unless the next process can resume it."""
        must_stay = self._is_resumable and os.fstat(self._descriptor).st_size
        os.close(self._descriptor)
        if not must_stay:
            self.path.unlink(missing_ok=True)  # a committed file was moved
            self._record_path.unlink(missing_ok=True)


def is_strong(validator: str) -> bool:
    """Whether a validator is strong: equal ones mean equal bytes. Weak ETags and an empty text are not strong."""
    return bool(validator) and not validator.startswith("W/")


def _sweep(folder: Path) -> None:
    """Remove partial downloads that were not written for ``ABANDONED_S``; a process that resumes one starts again."""
    oldest = time.time() - ABANDONED_S
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            if entry.stat(follow_symlinks=False).st_mtime < oldest:
                os.unlink(entry)  # noqa: PTH108


def _boot_id() -> str:
    """Return the machine's boot id."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return os.urandom(16).hex()  # unique: if the boot id is unknown, nothing is resumed
