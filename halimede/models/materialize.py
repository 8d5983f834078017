"""Writes a cached model to a given path: atomically, readable by all, read-only.

It shares blocks with the cache if the file system can (a reflink), but never the file itself: a hard link would have
the cache's mode, and a process that may write to it would change the file of every other worker of the node.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from halimede.errors import cause_of
from halimede.models.errors import FetchError, FetchReason
from halimede.system.files import replacing

#: Linux ioctl: makes a file share another file's blocks
FICLONE = 0x40049409
READABLE, PASSABLE = 0o444, 0o755


def deliver(source: Path, target: Path) -> None:
    """Copy a file of the cache to a path. Raises FetchError."""
    make_parent(target)
    try:
        with replacing(target) as new:
            _copy(source, new)
    except OSError as error:
        raise _not_written(target, error) from error


def deliver_folder(source: Path, target: Path) -> None:
    """Copy an unpacked folder to a path; an existing folder is replaced. Raises FetchError."""
    new = target.with_name(f".{target.name}.new")
    make_parent(target)
    try:
        shutil.rmtree(new, ignore_errors=True)
        for folder, _, files in os.walk(source):
            copy = new / Path(folder).relative_to(source)
            copy.mkdir()
            copy.chmod(PASSABLE)
            for name in files:
                _copy(Path(folder, name), copy / name)
        shutil.rmtree(target, ignore_errors=True)
        new.replace(target)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        raise _not_written(target, error) from error


def make_parent(target: Path) -> None:
    """Make the parent folder of a file. Raises FetchError."""
    try:
        _make_folder(target.parent)
    except OSError as error:
        raise _not_written(target, error) from error


def _copy(source: Path, new: Path) -> None:
    with source.open("rb") as origin, new.open("xb") as copy:
        try:
            fcntl.ioctl(copy.fileno(), FICLONE, origin.fileno())
        except OSError:  # another file system, or one without reflinks
            shutil.copyfileobj(origin, copy, 1024 * 1024)
        copy.flush()
        os.fsync(copy.fileno())
        os.fchmod(copy.fileno(), READABLE)


def _not_written(target: Path, error: OSError) -> FetchError:
    text = f"{target} cannot be written: {cause_of(error)}"
    return FetchError(FetchReason.NOT_WRITABLE, text, temporary=True)


def _make_folder(folder: Path) -> None:
    """Make a folder and its parents such that other users may traverse them, whatever the umask of this process."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(PASSABLE)
