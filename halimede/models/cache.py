"""The content-addressed cache of a node: ``<root>/sha256/<digest>``, with locks, partial files and an index.

A file appears under its digest only when it is complete, verified and on disk. It never changes afterwards: the index
keeps its size and modification time, and a file that disagrees is hashed anew and thrown away if it is another.

A node's pods are of several tenants. What was opened with credentials is guarded (``<root>/guarded/<digest>``, a folder
with one empty file for each who has had it from an origin): to know its digest is not enough to be given it.

When it exceeds its limit, the model that was used the longest ago is evicted first. What somebody uses is not: neither
what the caller names, nor what any process of the node holds (``using``: a lock on the file itself, which ends with
its process), nor what is being fetched at this moment. Nothing here needs room to make room.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from filelock import FileLock, Timeout
from msgspec import Struct

from halimede.models.errors import FetchError, FetchReason
from halimede.system.files import sync_folder, write_atomic

T = TypeVar("T")
BLOCK = 1024 * 1024
#: seconds between two looks at a lock that another process holds
LOCK_POLL = 0.1


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file of the cache. ``fresh`` is False when its origin could not be asked whether it has changed."""

    path: Path
    digest: str
    size: int
    fresh: bool = True


class FileRecord(Struct):
    """What a cached file looked like when it was verified."""

    size: int
    mtime_ns: int


class UrlRecord(Struct):
    """The digest of a URL, and the mark (ETag, or size and time of a file) that shows whether it still holds."""

    digest: str
    mark: str


R = TypeVar("R", FileRecord, UrlRecord)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A model of the cache: bytes on disk, with what was unpacked of it, and when it was used last."""

    digest: str
    size: int
    used_ns: int


def order(entries: Iterable[CacheEntry], in_use: Collection[str]) -> list[CacheEntry]:
    """Return what may go, the longest unused first."""
    return sorted((e for e in entries if e.digest not in in_use), key=lambda e: (e.used_ns, e.digest))


class Cache:
    """The models of one node. Several processes may use one folder at the same time."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        """Return where the file of a digest is or would be."""
        return self.root / "sha256" / digest

    async def find(self, digest: str) -> Fetched | None:
        """Return the cached file of a digest, or None. One that has been tampered with is removed."""
        return await in_thread(self._find, digest)

    def digests(self) -> dict[str, int]:
        """Return the bytes on disk of each digest, with what was unpacked of it. Blocks: call it in a thread."""
        found = dict.fromkeys((*_names(self.root / "sha256"), *_names(self.root / "unpacked")), 0)
        return {digest: _size(self.path(digest)) + _size(self._unpacked(digest)) for digest in found}

    def touch(self, digest: str) -> None:
        """Note that a digest is used now. It needs no call after ``find``, ``fetch`` or ``unpack``.

        On a full disk it is not noted, and goes earlier: no more.
        """
        with contextlib.suppress(OSError):
            if self.path(digest).exists():
                mark = self._mark(digest)
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.touch()

    @contextlib.contextmanager
    def using(self, digest: str) -> Iterator[None]:
        """Keep a digest from being evicted by any process, for the length of a block. Raises FetchError: it is gone."""
        gone = FetchError(FetchReason.CACHE_FAILED, f"{digest} has just been taken out of the cache", temporary=True)
        try:
            fd = os.open(self.path(digest), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise gone from None
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:  # it is held alone by whoever takes it away
                raise gone from None
            if not os.fstat(fd).st_nlink:
                raise gone
            yield
        finally:
            os.close(fd)

    def evict(self, in_use: Collection[str], max_bytes: int) -> list[str]:
        """Take away what was used the longest ago until the cache has no more than ``max_bytes``; return what went.

        What is ``in_use``, held by any process (``using``) or being fetched stays; so do unfinished downloads, which
        count. While another process makes room nothing is done. Blocks: call it in a thread.
        """
        folder = self.root / "sha256"
        if not folder.is_dir():
            return []
        try:
            with _alone(folder):
                self._sweep()
                entries = [CacheEntry(digest, size, self._used(digest)) for digest, size in self.digests().items()]
                over = sum(entry.size for entry in entries) + _size(self.root / "parts") - max_bytes
                went = []
                for entry in order(entries, in_use):
                    if over <= 0:
                        break
                    if self._take_away(entry.digest):
                        went.append(entry.digest)
                        over -= entry.size
                self._sweep()
                return went
        except BlockingIOError:
            return []

    def forget(self, digest: str) -> bool:
        """Take one digest away with what was unpacked of it; False: somebody holds it. Blocks: call it in a thread."""
        taken = self._take_away(digest)
        self._sweep()
        return taken

    def recall(self, key: str) -> UrlRecord | None:
        """Return what an asker's URL, which names no digest, led to. ``key`` is ``Asker.key``."""
        return self._read(self._url_record(key), UrlRecord)

    def remember(self, key: str, record: UrlRecord) -> None:
        """Keep what an asker's URL led to. The key itself, which may hold a secret, is not written."""
        self._write(self._url_record(key), record)

    def guard(self, digest: str) -> None:
        """Give content that is not here yet only to those who are granted it. Blocks: call it in a thread."""
        if not self.path(digest).exists():  # else it came from where it is open to all
            folder = self._guarded(digest)
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)

    def grant(self, key: str, digest: str) -> None:
        """Note that an asker has had content from its origin."""
        if self._guarded(digest).is_dir():
            (self._guarded(digest) / _hashed(key)).touch()

    def may_have(self, key: str, digest: str) -> bool:
        """Say whether an asker is given content without its origin being asked."""
        folder = self._guarded(digest)
        return not folder.exists() or (folder / _hashed(key)).exists()

    @contextlib.asynccontextmanager
    async def lock(self, name: str, timeout_s: float) -> AsyncIterator[None]:
        """Hold the lock of one download, against other tasks and other processes. Raises FetchError at the deadline."""
        path = self.root / "locks" / f"{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, thread_local=False)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            try:
                lock.acquire(blocking=False)
                break
            except Timeout:
                if loop.time() >= deadline:
                    text = f"another download of the same model has not ended within {timeout_s:g} s"
                    raise FetchError(FetchReason.TIMEOUT, text, temporary=True) from None
            await asyncio.sleep(LOCK_POLL)
        try:
            yield
        finally:
            lock.release()

    def keep(self, part: Path, digest: str) -> Fetched:
        """Move a finished part to its place. Blocks: call it in a thread."""
        target = self.path(digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        part.chmod(0o400)  # what only its owner could read stays that way
        part.replace(target)
        sync_folder(target.parent)
        return self._record(target)

    def _find(self, digest: str) -> Fetched | None:
        path = self.path(digest)
        try:
            stat = path.stat()
        except FileNotFoundError:
            return None
        seen = self._read(self._file_record(digest), FileRecord)
        if seen and (seen.size, seen.mtime_ns) == (stat.st_size, stat.st_mtime_ns):
            self.touch(digest)
            return Fetched(path, digest, stat.st_size)
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        if actual == digest:
            return self._record(path)
        path.unlink(missing_ok=True)
        return None

    def _record(self, path: Path) -> Fetched:
        stat = path.stat()
        self._write(self._file_record(path.name), FileRecord(stat.st_size, stat.st_mtime_ns))
        self.touch(path.name)
        return Fetched(path, path.name, stat.st_size)

    def _take_away(self, digest: str) -> bool:
        content, unpacked = self.path(digest), self._unpacked(digest)
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self._idle(digest))  # no fetch of it
                if content.exists():
                    held.enter_context(_alone(content))
            except (Timeout, BlockingIOError):
                return False
            # the name goes first: what is half removed is never taken for whole
            content.unlink(missing_ok=True)
            if unpacked.exists():
                unpacked.replace(unpacked.with_name(f".{os.urandom(8).hex()}.gone"))
            for record in (self._file_record(digest), self._index(f"unpacked-{digest}.json"), self._mark(digest)):
                record.unlink(missing_ok=True)
        # Who may have guarded content stays written: between here and there it may be fetched again
        return True

    @contextlib.contextmanager
    def _idle(self, name: str) -> Iterator[None]:
        """Hold a lock of the cache's that somebody has had before; raise Timeout if he has it now."""
        path = self.root / "locks" / f"{name}.lock"
        if not path.exists():
            yield
            return
        with FileLock(path, timeout=0):
            yield

    def _sweep(self) -> None:
        """Remove what was taken away, and what processes that were killed have left."""
        unpacked = self.root / "unpacked"
        for gone in unpacked.glob(".*.gone"):
            shutil.rmtree(gone, ignore_errors=True)
        for unfinished in unpacked.glob(".*.new"):
            with contextlib.suppress(Timeout), self._idle(f"unpack-{unfinished.name[1:-4]}"):
                shutil.rmtree(unfinished, ignore_errors=True)

    def _used(self, digest: str) -> int:
        for path in (self._mark(digest), self.path(digest)):
            with contextlib.suppress(OSError):
                return path.stat().st_mtime_ns
        return 0

    def _unpacked(self, digest: str) -> Path:
        return self.root / "unpacked" / digest

    def _index(self, name: str) -> Path:
        return self.root / "index" / name

    def _mark(self, digest: str) -> Path:
        return self._index(f"used-{digest}")

    def _file_record(self, digest: str) -> Path:
        return self._index(f"file-{digest}.json")

    def _url_record(self, key: str) -> Path:
        return self._index(f"url-{_hashed(key)}.json")

    def _guarded(self, digest: str) -> Path:
        return self.root / "guarded" / digest

    def _read(self, path: Path, kind: type[R]) -> R | None:
        """An index file that is missing or damaged says nothing: the worst that follows is another download."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError):
            return None

    def _write(self, path: Path, record: FileRecord | UrlRecord) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, msgspec.json.encode(record), shared=True)


async def in_thread(function: Callable[..., T], *args: object, stop: threading.Event | None = None) -> T:
    """Run blocking file work in a thread; when cancelled, wait for it first, so that no file is closed beneath it.

    Work that is long looks at ``stop``, which is set then.
    """
    work = asyncio.get_running_loop().run_in_executor(None, function, *args)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if stop:
            stop.set()
        await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # nobody waits for it any more: else it is logged as one that was lost
        raise


def _hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    except FileNotFoundError:
        return []


def _size(path: Path) -> int:
    """Bytes of a file or of all files below a folder; 0 where there is nothing."""
    try:
        if not path.is_dir():
            return path.stat().st_size
        return sum(_size(below) for below in path.iterdir())
    except OSError:  # it goes at this moment
        return 0
