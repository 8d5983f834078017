"""Atomic file replacement: a reader sees the old content or the new one, never a part of either."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

#: errors of a disk, or of a user's quota, without free space
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextlib.contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Yield the path of a temporary file in the same folder; it replaces the file, or is removed after an error.

    ``shared``: other processes may replace the file at the same time. Raises OSError.
    """
    unique = f".{os.urandom(8).hex()}" if shared else ""  # processes of two containers may have the same pid
    new = path.with_name(f".{path.name}{unique}.new")
    try:
        new.unlink(missing_ok=True)  # left by a process that was killed
        yield new
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def write_atomic(
    path: Path, data: bytes | memoryview, *, mode: int | None = None, durable: bool = False, shared: bool = False
) -> None:
    """Replace a file. ``mode`` ignores the umask; ``durable``: the content is on disk before it replaces the old.

    ``shared``: other processes may replace the file at the same time. Raises OSError.
    """
    with replacing(path, shared=shared) as new:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(new, flags, 0o666 if mode is None else mode)
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                os.fchmod(handle, mode)
            file.write(data)
            if durable:
                file.flush()
                os.fsync(handle)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
