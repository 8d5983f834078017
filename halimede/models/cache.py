"""The content-addressed cache of a node: ``<root>/sha256/<digest>``, with locks, partial files and an index.

The folders in ``<root>``: ``sha256`` has the files; ``unpacked`` the unpacked folders of archives; ``parts`` the
partial downloads; ``index`` the records and the times of use; ``locks`` the lock files; ``guarded`` the grants (see
below).

A digest is a SHA-256 in 64 hexadecimal digits. A file appears under its digest only when it is complete, verified and
on disk, and never changes afterwards. The index stores its size and modification time. A file that differs from this
record is hashed again, and removed if its digest differs.

A requester (``source_types.Requester``) is a URL with the credentials for it, not a pod. A node's pods may belong to
several tenants. Content that was downloaded with credentials is guarded: its digest alone does not give access to it.
``<root>/guarded/<digest>`` is a folder with one empty file for each requester that has downloaded the content from an
origin.

When the cache exceeds its limit, it evicts the least recently used content first. It never evicts content in use: what
the caller names, what a process of the node has pinned (``pin``: a lock on the file itself, which ends with the
process), and what is being downloaded. An eviction needs no free disk space.
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
#: bytes that are read or written in one step
BLOCK = 1024 * 1024
#: seconds between two attempts for a lock that another process holds
LOCK_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file of the cache.

    Attributes:
        path: of the file, which must not be written to.
        digest: SHA-256 of its content in hexadecimal.
        size: in bytes.
        fresh: the content is that of the URL now, or of the given digest; False: the origin could not be asked.

    """

    path: Path
    digest: str
    size: int
    fresh: bool = True


class FileRecord(Struct):
    """Size in bytes and modification time (ns since 1970) of a cached file when it was verified."""

    size: int
    mtime_ns: int


class UrlRecord(Struct):
    """The content of a URL that was fetched without a digest.

    Attributes:
        digest: of the content when it was fetched.
        validator: the text by which the origin shows whether its content changed; empty: it gave none.

    """

    digest: str
    validator: str = field(name="mark")  # the name in index files


R = TypeVar("R", FileRecord, UrlRecord)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """Content in the cache.

    Attributes:
        digest: SHA-256 of the content in hexadecimal.
        size: bytes on disk, including the unpacked folder.
        used_ns: the time of its last use in ns since 1970; 0: not known.

    """

    digest: str
    size: int
    used_ns: int


def eviction_order(entries: Iterable[CacheEntry], in_use: Collection[str]) -> list[CacheEntry]:
    """Return the entries whose digest is not ``in_use``, the least recently used first."""
    evictable = (entry for entry in entries if entry.digest not in in_use)
    return sorted(evictable, key=lambda entry: (entry.used_ns, entry.digest))


class Cache:
    """The cached content of one node, in the folder ``root``. Several processes may use the folder at the same time.

    The methods that are not ``async`` block, for a time that is short unless they say so. They raise OSError if the
    disk fails.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        """Return the path of the cached file of a digest, whether it exists or not."""
        return self.root / "sha256" / digest

    def unpacked_folder(self, digest: str) -> Path:
        """Return the path of the unpacked folder of an archive, whether it exists or not."""
        return self.root / "unpacked" / digest

    def unpacked_record(self, digest: str) -> Path:
        """Return the path of the record of an unpacked folder, whether it exists or not."""
        return self._index(f"unpacked-{digest}.json")

    def digest(self, path: Path) -> str:
        """Return the digest of the content to which a path of the cache belongs; empty for any other path."""
        with contextlib.suppress(ValueError):
            parts = path.relative_to(self.root).parts
            if len(parts) > 1 and parts[0] in {"sha256", "unpacked"}:
                return parts[1]
        return ""

    def is_unchanged(self, digest: str) -> bool:
        """Whether the file of a digest still has the size and time with which it was verified; nothing is read."""
        try:
            stat = self.path(digest).stat()
        except OSError:
            return False
        return self._read(self._file_record(digest), FileRecord) == FileRecord(stat.st_size, stat.st_mtime_ns)

    async def find(self, digest: str) -> Fetched | None:
        """Return the cached file of a digest, and record its use; None if it is not cached.

        A file that was changed is removed.
        """
        return await in_thread(self._find, digest)

    def digests(self) -> dict[str, int]:
        """Return the bytes on disk of each digest, including unpacked folders. Blocks long: call it in a thread."""
        names = dict.fromkeys((*_names(self.root / "sha256"), *_names(self.root / "unpacked")), 0)
        return {digest: _size(self.path(digest)) + _size(self.unpacked_folder(digest)) for digest in names}

    def touch(self, digest: str) -> None:
        """Record that a cached digest is used now; ``find`` and ``keep`` do so themselves.

        If the disk is full, nothing is recorded, and the digest is evicted earlier.
        """
        with contextlib.suppress(OSError):
            if self.path(digest).exists():
                use_file = self._use_file(digest)
                use_file.parent.mkdir(parents=True, exist_ok=True)
                use_file.touch()

    @contextlib.contextmanager
    def pin(self, digest: str) -> Iterator[None]:
        """Protect a digest from eviction by any process until the end of the block.

        Raises a temporary FetchError if the digest is not cached, or is being evicted.
        """
        evicted = FetchError(FetchReason.CACHE_FAILED, f"{digest} was removed from the cache", temporary=True)
        try:
            descriptor = os.open(self.path(digest), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise evicted from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:  # the process that evicts it holds the exclusive lock
                raise evicted from None
            if not os.fstat(descriptor).st_nlink:
                raise evicted
            yield
        finally:
            os.close(descriptor)

    def evict(self, in_use: Collection[str], max_bytes: int) -> list[str]:
        """Evict the least recently used digests until the cache has at most ``max_bytes``; return the evicted ones.

        Digests that are ``in_use``, pinned by any process (``pin``) or being downloaded stay. Partial downloads stay as
        well, and their bytes count. While another process evicts, nothing is done. Blocks long: call it in a thread.
        """
        folder = self.root / "sha256"
        if not folder.is_dir():
            return []
        try:
            with _exclusive_lock(folder):
                self._sweep()
                entries = [
                    CacheEntry(digest, size, self._last_use_ns(digest)) for digest, size in self.digests().items()
                ]
                excess = sum(entry.size for entry in entries) + _size(self.root / "parts") - max_bytes
                evicted = []
                for entry in eviction_order(entries, in_use):
                    if excess <= 0:
                        break
                    if self._remove(entry.digest):
                        evicted.append(entry.digest)
                        excess -= entry.size
                self._sweep()
                return evicted
        except BlockingIOError:
            return []

    def remove(self, digest: str) -> bool:
        """Remove one digest and its unpacked folder; return False if it is in use. Blocks long: call it in a thread."""
        removed = self._remove(digest)
        self._sweep()
        return removed

    def recall(self, key: str) -> UrlRecord | None:
        """Return the record of a URL that was fetched without a digest, or None. ``key``: ``Requester.key``."""
        return self._read(self._url_record(key), UrlRecord)

    def remember(self, key: str, record: UrlRecord) -> None:
        """Store the record of a URL. ``key``: ``Requester.key``, which may contain a secret and is stored as a hash."""
        self._write(self._url_record(key), record)

    def guard(self, digest: str) -> None:
        """Restrict a digest to the requesters that ``grant`` records, unless its content is cached already."""
        if not self.path(digest).exists():  # content that is cached without a guard needed no credentials
            folder = self._grants_folder(digest)
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)

    def grant(self, key: str, digest: str) -> None:
        """Record that a requester has received content from an origin, if it is guarded. ``key``: ``Requester.key``."""
        if self._grants_folder(digest).is_dir():
            (self._grants_folder(digest) / _key_hash(key)).touch()

    def may_have(self, key: str, digest: str) -> bool:
        """Whether a requester may have the content without a request to an origin. ``key``: ``Requester.key``."""
        folder = self._grants_folder(digest)
        return not folder.exists() or (folder / _key_hash(key)).exists()

    @contextlib.asynccontextmanager
    async def lock(self, name: str, timeout_s: float) -> AsyncIterator[None]:
        """Hold the lock ``name`` across tasks and processes until the end of the block.

        Waits at most ``timeout_s`` seconds, then raises a temporary FetchError.
        """
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
            await asyncio.sleep(LOCK_POLL_S)
        try:
            yield
        finally:
            lock.release()

    def keep(self, part: Path, digest: str) -> Fetched:
        """Move the file of a complete download, ``part``, to the path of its digest and record it; return it there."""
        target = self.path(digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        part.chmod(0o400)  # only the owner may read
        part.replace(target)
        sync_folder(target.parent)
        return self._record(target)

    def _find(self, digest: str) -> Fetched | None:
        """Do the work of ``find``. Blocks while a file without a matching record is hashed."""
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
        """Record that the file of a digest was verified and is used now; return it."""
        stat = path.stat()
        self._write(self._file_record(path.name), FileRecord(stat.st_size, stat.st_mtime_ns))
        self.touch(path.name)
        return Fetched(path, path.name, stat.st_size)

    def _remove(self, digest: str) -> bool:
        """Remove one digest, and mark its unpacked folder for ``_sweep``; return False if it is in use."""
        content, folder = self.path(digest), self.unpacked_folder(digest)
        with contextlib.ExitStack() as locks:
            try:
                locks.enter_context(self._idle(digest))  # no download of it is running
                if content.exists():
                    locks.enter_context(_exclusive_lock(content))
            except (Timeout, BlockingIOError):
                return False
            # the name first, so that a partly removed entry is never used
            content.unlink(missing_ok=True)
            if folder.exists():
                folder.replace(folder.with_name(f".{os.urandom(8).hex()}.gone"))
            for record in (self._file_record(digest), self.unpacked_record(digest), self._use_file(digest)):
                record.unlink(missing_ok=True)
        # the grants of guarded content stay: meanwhile it may be downloaded again
        return True

    @contextlib.contextmanager
    def _idle(self, name: str) -> Iterator[None]:
        """Hold the lock ``name`` until the end of the block, if its file exists. Raises Timeout if it is held."""
        path = self.root / "locks" / f"{name}.lock"
        if not path.exists():
            yield
            return
        with FileLock(path, timeout=0):
            yield

    def _sweep(self) -> None:
        """Remove evicted folders, and the half-unpacked folders that killed processes have left."""
        unpacked = self.root / "unpacked"
        for folder in unpacked.glob(".*.gone"):
            shutil.rmtree(folder, ignore_errors=True)
        for unfinished in unpacked.glob(".*.new"):
            with contextlib.suppress(Timeout), self._idle(f"unpack-{unfinished.name[1:-4]}"):
                shutil.rmtree(unfinished, ignore_errors=True)

    def _last_use_ns(self, digest: str) -> int:
        """Return when a digest was used last, in ns since 1970; 0 if it is not cached."""
        for path in (self._use_file(digest), self.path(digest)):
            with contextlib.suppress(OSError):
                return path.stat().st_mtime_ns
        return 0

    def _index(self, name: str) -> Path:
        """Return the path of a file of the index."""
        return self.root / "index" / name

    def _use_file(self, digest: str) -> Path:
        """Return the path of the empty file whose modification time is the last use of a digest."""
        return self._index(f"used-{digest}")

    def _file_record(self, digest: str) -> Path:
        """Return the path of the FileRecord of a digest."""
        return self._index(f"file-{digest}.json")

    def _url_record(self, key: str) -> Path:
        """Return the path of the UrlRecord of a requester. ``key``: ``Requester.key``."""
        return self._index(f"url-{_key_hash(key)}.json")

    def _grants_folder(self, digest: str) -> Path:
        """Return the path of the folder with the requesters of guarded content."""
        return self.root / "guarded" / digest

    def _read(self, path: Path, kind: type[R]) -> R | None:
        """Return the record in an index file; None if it is missing or damaged, which costs another download."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError):
            return None

    def _write(self, path: Path, record: FileRecord | UrlRecord) -> None:
        """Replace the record in an index file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, msgspec.json.encode(record), shared=True)


async def in_thread(function: Callable[..., T], *args: object, stop: threading.Event | None = None) -> T:
    """Return what ``function``, blocking work with files, returns or raises; it runs in a thread.

    When the caller is cancelled, this waits for the end of the work first, so that no file is closed while the work
    uses it. ``stop``: an event that is set then; work that takes long looks at it.
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


def _key_hash(key: str) -> str:
    """Return the name by which a requester's key is stored."""
    return hashlib.sha256(key.encode()).hexdigest()


@contextlib.contextmanager
def _exclusive_lock(path: Path) -> Iterator[None]:
    """Lock a file or folder until the end of the block. Raises BlockingIOError if another process has locked it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _names(folder: Path) -> list[str]:
    """Return the names in a folder that do not begin with a dot; none if it does not exist."""
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
