"""Eviction from the model cache: chooses the models to remove when it exceeds its limit, and removes them.

The one that was used the longest ago goes first. What somebody uses does not go: neither what the caller names, nor
what any process of the node holds (``using``: a lock on the file itself, which ends with its process), nor what is
being fetched at this moment. Nothing here needs room to make room. Everything blocks: call it in a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from halimede.models.errors import FetchError, FetchReason


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A model of the cache: bytes on disk, with what was unpacked of it, and when it was used last."""

    digest: str
    size: int
    used_ns: int


def order(entries: Iterable[CacheEntry], in_use: Collection[str]) -> list[CacheEntry]:
    """Return what may go, the longest unused first."""
    return sorted((e for e in entries if e.digest not in in_use), key=lambda e: (e.used_ns, e.digest))


def digests(root: Path) -> dict[str, int]:
    """Return the bytes on disk of each digest."""
    found = dict.fromkeys((*_names(root / "sha256"), *_names(root / "unpacked")), 0)
    return {digest: _size(_content(root, digest)) + _size(_unpacked(root, digest)) for digest in found}


def touch(root: Path, digest: str) -> None:
    """Note that a digest is used now. On a full disk it is not noted, and goes earlier: no more."""
    with contextlib.suppress(OSError):
        if _content(root, digest).exists():
            mark = _mark(root, digest)
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


@contextlib.contextmanager
def using(root: Path, digest: str) -> Iterator[None]:
    """Keep a digest from being evicted by any process, for the length of the block. Raises FetchError: it is gone."""
    gone = FetchError(FetchReason.CACHE_FAILED, f"{digest} has just been taken out of the cache", temporary=True)
    try:
        fd = os.open(_content(root, digest), os.O_RDONLY | os.O_CLOEXEC)
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


def forget(root: Path, digest: str) -> bool:
    """Take one digest away with what was unpacked of it; return False if somebody holds it just now."""
    taken = _take_away(root, digest)
    _sweep(root)
    return taken


def evict(root: Path, in_use: Collection[str], max_bytes: int) -> list[str]:
    """Take away what may go until the cache has no more than ``max_bytes``; return the digests that went.

    Unfinished downloads count, and stay. While another process makes room nothing is done.
    """
    folder = root / "sha256"
    if not folder.is_dir():
        return []
    try:
        with _alone(folder):
            _sweep(root)
            entries = [CacheEntry(digest, size, _used(root, digest)) for digest, size in digests(root).items()]
            over = sum(entry.size for entry in entries) + _size(root / "parts") - max_bytes
            went = []
            for entry in order(entries, in_use):
                if over <= 0:
                    break
                if _take_away(root, entry.digest):
                    went.append(entry.digest)
                    over -= entry.size
            _sweep(root)
            return went
    except BlockingIOError:
        return []


def _take_away(root: Path, digest: str) -> bool:
    content, unpacked = _content(root, digest), _unpacked(root, digest)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(_idle(root, digest))  # no fetch of it
            if content.exists():
                held.enter_context(_alone(content))
        except (Timeout, BlockingIOError):
            return False
        # the name goes first: what is half removed is never taken for whole
        content.unlink(missing_ok=True)
        if unpacked.exists():
            unpacked.replace(unpacked.with_name(f".{os.urandom(8).hex()}.gone"))
        for record in (f"file-{digest}.json", f"unpacked-{digest}.json", f"used-{digest}"):
            (root / "index" / record).unlink(missing_ok=True)
    # Who may have guarded content stays written: between here and there it may be fetched again
    return True


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def _idle(root: Path, name: str) -> Iterator[None]:
    """Hold a lock of the cache's that somebody has had before; raise Timeout if he has it now."""
    path = root / "locks" / f"{name}.lock"
    if not path.exists():
        yield
        return
    with FileLock(path, timeout=0):
        yield


def _sweep(root: Path) -> None:
    """Remove what was taken away, and what processes that were killed have left."""
    for gone in (root / "unpacked").glob(".*.gone"):
        shutil.rmtree(gone, ignore_errors=True)
    for unfinished in (root / "unpacked").glob(".*.new"):
        with contextlib.suppress(Timeout), _idle(root, f"unpack-{unfinished.name[1:-4]}"):
            shutil.rmtree(unfinished, ignore_errors=True)


def _content(root: Path, digest: str) -> Path:
    return root / "sha256" / digest


def _unpacked(root: Path, digest: str) -> Path:
    return root / "unpacked" / digest


def _mark(root: Path, digest: str) -> Path:
    return root / "index" / f"used-{digest}"


def _used(root: Path, digest: str) -> int:
    for path in (_mark(root, digest), _content(root, digest)):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime_ns
    return 0


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
