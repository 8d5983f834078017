"""The content-addressed cache of a node: ``<root>/sha256/<digest>``, with locks, partial files and an index.

A file appears under its digest only when it is complete, verified and on disk, and never changes afterwards. The index
stores its size and modification time. A file that differs from its record is hashed again, and removed if its digest
differs.

A node's pods may belong to several tenants. Content that was downloaded with credentials is guarded
(``<root>/guarded/<digest>``, a folder with one empty file for each requester that has downloaded it from an origin):
its digest alone does not give access to it.

When the cache exceeds its limit, it evicts the least recently used model first. It never evicts a model in use: one
that the caller names, one that a process of the node holds (``using``: a lock on the file itself, which ends with the
process), or one that is being downloaded. An eviction needs no free disk space.
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
from msgspec import Struct, field

from halimede.models.errors import FetchError, FetchReason
from halimede.system.files import sync_folder, write_atomic

T = TypeVar("T")
BLOCK = 1024 * 1024
#: seconds between two attempts for a lock that another process holds
LOCK_POLL = 0.1


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file of the cache. ``fresh`` is False if the origin could not be asked whether the content has changed."""

    path: Path
    digest: str
    size: int
    fresh: bool = True


class FileRecord(Struct):
    """The properties of a cached file when it was verified."""

    size: int
    mtime_ns: int


class UrlRecord(Struct):
    """The digest of a URL's content, and the validator that shows whether it changed: of a server, or of a file."""

    digest: str
    validator: str = field(name="mark")


R = TypeVar("R", FileRecord, UrlRecord)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A model in the cache: its bytes on disk, including the unpacked folder, and the time of its last use."""

    digest: str
    size: int
    used_ns: int


def order(entries: Iterable[CacheEntry], in_use: Collection[str]) -> list[CacheEntry]:
    """Return the entries that may be evicted, the least recently used first."""
    return sorted((e for e in entries if e.digest not in in_use), key=lambda e: (e.used_ns, e.digest))


class Cache:
    """The models of one node. Several processes may use one folder at the same time."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        """Return the path of the file of a digest, whether it exists or not."""
        return self.root / "sha256" / digest

    def unpacked(self, digest: str) -> Path:
        """Return the path of the unpacked folder of an archive, whether it exists or not."""
        return self.root / "unpacked" / digest

    def unpacked_record(self, digest: str) -> Path:
        """Return the path of the record of an unpacked folder."""
        return self._index(f"unpacked-{digest}.json")

    def digest(self, path: Path) -> str:
        """Return the digest of the cached content of a path, empty if it is not in the cache."""
        with contextlib.suppress(ValueError):
            parts = path.relative_to(self.root).parts
            if len(parts) > 1 and parts[0] in {"sha256", "unpacked"}:
                return parts[1]
        return ""

    def is_unchanged(self, digest: str) -> bool:
        """Whether the file of a digest has the size and time with which it was verified; its content is not read."""
        try:
            stat = self.path(digest).stat()
        except OSError:
            return False
        return self._read(self._file_record(digest), FileRecord) == FileRecord(stat.st_size, stat.st_mtime_ns)

    async def find(self, digest: str) -> Fetched | None:
        """Return the cached file of a digest, or None. A file that was changed is removed."""
        return await in_thread(self._find, digest)

    def digests(self) -> dict[str, int]:
        """Return the bytes on disk of each digest, including unpacked folders. Blocks: call it in a thread."""
        names = dict.fromkeys((*_names(self.root / "sha256"), *_names(self.root / "unpacked")), 0)
        return {digest: _size(self.path(digest)) + _size(self.unpacked(digest)) for digest in names}

    def touch(self, digest: str) -> None:
        """Record that a digest is used now. Not needed after ``find``, ``fetch`` or ``unpack``.

        On a full disk the use is not recorded; then the digest is only evicted earlier.
        """
        with contextlib.suppress(OSError):
            if self.path(digest).exists():
                use_file = self._use_file(digest)
                use_file.parent.mkdir(parents=True, exist_ok=True)
                use_file.touch()

    @contextlib.contextmanager
    def using(self, digest: str) -> Iterator[None]:
        """Protect a digest from eviction by any process inside the block. Raises FetchError if it was evicted."""
        evicted = FetchError(FetchReason.CACHE_FAILED, f"{digest} was removed from the cache", temporary=True)
        try:
            fd = os.open(self.path(digest), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise evicted from None
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:  # the process that evicts it holds the exclusive lock
                raise evicted from None
            if not os.fstat(fd).st_nlink:
                raise evicted
            yield
        finally:
            os.close(fd)

    def evict(self, in_use: Collection[str], max_bytes: int) -> list[str]:
        """Evict the least recently used digests until the cache has at most ``max_bytes``; return the evicted ones.

        Digests that are ``in_use``, held by any process (``using``) or being downloaded stay. Partial downloads stay as
        well, and count. While another process evicts, nothing is done. Blocks: call it in a thread.
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
        """Remove one digest and its unpacked folder; False: it is in use. Blocks: call it in a thread."""
        removed = self._take_away(digest)
        self._sweep()
        return removed

    def recall(self, key: str) -> UrlRecord | None:
        """Return the record of a requester's URL without a digest. ``key`` is ``Requester.key``."""
        return self._read(self._url_record(key), UrlRecord)

    def remember(self, key: str, record: UrlRecord) -> None:
        """Store the record of a requester's URL. The key, which may contain a secret, is stored as a hash."""
        self._write(self._url_record(key), record)

    def guard(self, digest: str) -> None:
        """Guard content that is not cached yet: only granted requesters receive it. Blocks: call it in a thread."""
        if not self.path(digest).exists():  # cached content came from an origin without credentials
            folder = self._guarded(digest)
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)

    def grant(self, key: str, digest: str) -> None:
        """Record that a requester has received the content from its origin."""
        if self._guarded(digest).is_dir():
            (self._guarded(digest) / _hashed(key)).touch()

    def may_have(self, key: str, digest: str) -> bool:
        """Whether a requester may receive the content without a request to its origin."""
        folder = self._guarded(digest)
        return not folder.exists() or (folder / _hashed(key)).exists()

    @contextlib.asynccontextmanager
    async def lock(self, name: str, timeout_s: float) -> AsyncIterator[None]:
        """Hold the lock of one download across tasks and processes. Raises FetchError at the deadline."""
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
        """Move a complete download to its final path. Blocks: call it in a thread."""
        target = self.path(digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        part.chmod(0o400)  # only the owner may read
        part.replace(target)
        sync_folder(target.parent)
        return self._record(target)

    def _find(self, digest: str) -> Fetched | None:
        path = self.path(digest)
        try:
            if self.is_unchanged(digest):
                self.touch(digest)
                return Fetched(path, digest, path.stat().st_size)
            with path.open("rb") as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return None
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
        content, unpacked = self.path(digest), self.unpacked(digest)
        with contextlib.ExitStack() as locks:
            try:
                locks.enter_context(self._idle(digest))  # no download of it is running
                if content.exists():
                    locks.enter_context(_alone(content))
            except (Timeout, BlockingIOError):
                return False
            # the name first, so that a partly removed entry is never used
            content.unlink(missing_ok=True)
            if unpacked.exists():
                unpacked.replace(unpacked.with_name(f".{os.urandom(8).hex()}.gone"))
            for record in (self._file_record(digest), self.unpacked_record(digest), self._use_file(digest)):
                record.unlink(missing_ok=True)
        # the grants of guarded content stay: meanwhile it may be downloaded again
        return True

    @contextlib.contextmanager
    def _idle(self, name: str) -> Iterator[None]:
        """Hold a lock of the cache if its file exists; raise Timeout if another process holds it."""
        path = self.root / "locks" / f"{name}.lock"
        if not path.exists():
            yield
            return
        with FileLock(path, timeout=0):
            yield

    def _sweep(self) -> None:
        """Remove evicted folders, and files of processes that were killed."""
        unpacked = self.root / "unpacked"
        for folder in unpacked.glob(".*.gone"):
            shutil.rmtree(folder, ignore_errors=True)
        for unfinished in unpacked.glob(".*.new"):
            with contextlib.suppress(Timeout), self._idle(f"unpack-{unfinished.name[1:-4]}"):
                shutil.rmtree(unfinished, ignore_errors=True)

    def _used(self, digest: str) -> int:
        for path in (self._use_file(digest), self.path(digest)):
            with contextlib.suppress(OSError):
                return path.stat().st_mtime_ns
        return 0

    def _index(self, name: str) -> Path:
        return self.root / "index" / name

    def _use_file(self, digest: str) -> Path:
        return self._index(f"used-{digest}")

    def _file_record(self, digest: str) -> Path:
        return self._index(f"file-{digest}.json")

    def _url_record(self, key: str) -> Path:
        return self._index(f"url-{_hashed(key)}.json")

    def _guarded(self, digest: str) -> Path:
        return self.root / "guarded" / digest

    def _read(self, path: Path, kind: type[R]) -> R | None:
        """Return an index file, None if it is missing or damaged: the only result is another download."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError):
            return None

    def _write(self, path: Path, record: FileRecord | UrlRecord) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, msgspec.json.encode(record), shared=True)


async def in_thread(function: Callable[..., T], *args: object, stop: threading.Event | None = None) -> T:
    """Run blocking file work in a thread. When cancelled, wait for it first, so that no file is closed during its use.

    Cancellation sets ``stop``; work that takes long checks it.
    """
    work = asyncio.get_running_loop().run_in_executor(None, function, *args)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if stop:
            stop.set()
        await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # nobody awaits it any more: otherwise asyncio logs the exception as never retrieved
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
    """Return the bytes of a file, or of all files below a folder; 0 if it does not exist."""
    try:
        if not path.is_dir():
            return path.stat().st_size
        return sum(_size(below) for below in path.iterdir())
    except OSError:  # removed at this moment
        return 0
