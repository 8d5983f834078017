"""Writes a cached model to a given path: readable by all, its files read-only. A file is replaced atomically.

The copy shares disk blocks with the cache if the file system can do that (a reflink), but never the file itself: a hard
link would have the cache's mode, and a process that may write to it would change the file of all workers of the node.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from halimede.errors import cause_of
from halimede.models.errors import FetchError, FetchReason
from halimede.system.files import replacement_file

#: Linux ioctl: makes a file share another file's blocks
FICLONE = 0x40049409
#: modes of delivered files and folders: every user may read them
FILE_MODE, FOLDER_MODE = 0o444, 0o755


def install_file(source: Path, target: Path) -> None:
    """Copy a file of the cache to a path, and replace what is there. Blocks. Raises FetchError."""
    make_parent(target)
    try:
        with replacement_file(target) as new:
            _copy(source, new)
    except OSError as error:
        raise _write_error(target, error) from error


def install_folder(source: Path, target: Path) -> None:
    """Copy an unpacked folder to a path. Blocks. Raises FetchError.

    An existing folder is removed when the copy is complete; for a moment there is none.
    """
    new_folder = target.with_name(f".{target.name}.new")
    make_parent(target)
    try:
        shutil.rmtree(new_folder, ignore_errors=True)
        for folder, _, files in os.walk(source):
            copied_folder = new_folder / Path(folder).relative_to(source)
            copied_folder.mkdir()
            copied_folder.chmod(FOLDER_MODE)
            for name in files:
                _copy(Path(folder, name), copied_folder / name)
        shutil.rmtree(target, ignore_errors=True)
        new_folder.replace(target)
    except OSError as error:
        shutil.rmtree(new_folder, ignore_errors=True)
        raise _write_error(target, error) from error


def make_parent(target: Path) -> None:
    """Make the folder of a file, and the folders above it, such that all users may enter them. Raises FetchError."""
    try:
        _make_folder(target.parent)
    except OSError as error:
        raise _write_error(target, error) from error


def _copy(source: Path, new: Path) -> None:
    """Copy a file to a new one, read-only and on disk, sharing its blocks if possible. Raises OSError."""
    with source.open("rb") as opened, new.open("xb") as copy:
        try:
            fcntl.ioctl(copy.fileno(), FICLONE, opened.fileno())
        except OSError:  # another file system, or one without reflinks
            shutil.copyfileobj(opened, copy, 1024 * 1024)
        copy.flush()
        os.fsync(copy.fileno())
        os.fchmod(copy.fileno(), FILE_MODE)


def _write_error(target: Path, error: OSError) -> FetchError:
    """Return the error that a path cannot be written; it is temporary."""
    return FetchError(FetchReason.NOT_WRITABLE, f"{target} cannot be written: {cause_of(error)}", temporary=True)


def _make_folder(folder: Path) -> None:
    """Make a folder and its parents such that other users may traverse them, whatever the umask of this process."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(FOLDER_MODE)
