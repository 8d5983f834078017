"""Writes a cached model to a given path: atomically, readable by all, read-only.

It shares blocks with the cache where the file system can (a reflink), but never the file itself: a hard link would have
the cache's mode, and whoever may write to it would write to what every other worker of the node is given.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from halimede.models.errors import FetchError, FetchReason
from halimede.system.files import replacing

#: Linux: make a file share another's blocks
FICLONE = 0x40049409
READABLE, PASSABLE = 0o444, 0o755


def deliver(source: Path, target: Path) -> None:
    """Copy a file of the cache to its place. Raises FetchError."""
    make_parent(target)
    try:
        with replacing(target) as new:
            _copy(source, new)
    except OSError as error:
        raise _not_written(target, error) from error


def deliver_folder(source: Path, target: Path) -> None:
    """Copy a folder that was unpacked to its place; what was there goes. Raises FetchError."""
    new = target.with_name(f".{target.name}.new")
    make_parent(target)
    try:
        shutil.rmtree(new, ignore_errors=True)
        for folder, _, files in os.walk(source):
            place = new / Path(folder).relative_to(source)
            place.mkdir()
            place.chmod(PASSABLE)
            for name in files:
                _copy(Path(folder, name), place / name)
        shutil.rmtree(target, ignore_errors=True)
        new.replace(target)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        raise _not_written(target, error) from error


def make_parent(target: Path) -> None:
    """Make the folder that a file shall be in. Raises FetchError."""
    try:
        _make_folder(target.parent)
    except OSError as error:
        raise _not_written(target, error) from error


def _copy(source: Path, new: Path) -> None:
    with source.open("rb") as origin, new.open("xb") as copy:
        try:
            fcntl.ioctl(copy.fileno(), FICLONE, origin.fileno())
        except OSError:  # another file system, or one that cannot
            shutil.copyfileobj(origin, copy, 1024 * 1024)
        copy.flush()
        os.fsync(copy.fileno())
        os.fchmod(copy.fileno(), READABLE)


def _not_written(target: Path, error: OSError) -> FetchError:
    text = f"{target} cannot be written: {error.strerror or type(error).__name__}"
    return FetchError(FetchReason.NOT_WRITABLE, text, temporary=True)


def _make_folder(folder: Path) -> None:
    """Make a folder, and those above it, that others may pass whatever this process keeps to itself otherwise."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(PASSABLE)
