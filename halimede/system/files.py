"""Replaces files atomically: a reader sees the old content or the new one, never a part of either.

``sync_folder`` makes names of files durable.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

#: error numbers of a disk or a user's quota without free space
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextlib.contextmanager
def replacement_file(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Yield the path of a new file in the folder of ``path``, for the block to write.

    After the block the new file replaces the one at ``path``; after an error it is removed. ``shared``: other processes
    may replace the same file at the same time. Raises OSError.
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
    """Replace the content of a file, or create it; its folder exists. Raises OSError.

    Args:
        path: the file.
        data: its new content.
        mode: its permissions, such as 0o600; None: those that the umask leaves.
        durable: the content is synced to disk before it replaces the old one.
        shared: other processes may replace the same file at the same time.

    """
    with replacement_file(path, shared=shared) as new:
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
    """Sync the entries of a folder (names of new, replaced and removed files) to disk. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
