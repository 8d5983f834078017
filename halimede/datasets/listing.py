"""The list of a dataset's files with their digests (a listing): what other nodes copy.

LC writes it with ``write_listing``; the node that copies reads it with ``read_listing``. The list itself is a file, and
its digest changes only with the names or the content of the files. An index on the node has the state of each file, so
that an unchanged file is not read again.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from halimede.datasets.counting import MAX_DEPTH, FileState, state_of
from halimede.datasets.registry import UNREADABLE, DatasetError
from halimede.hidden_names import is_hidden
from halimede.system.files import write_atomic

#: most files of a list, most bytes of it, and most bytes of a name in it
MAX_FILES, MAX_BYTES, MAX_NAME = 100_000, 32 * 1024 * 1024, 2000
#: most bytes of a name between two slashes: the limit of Linux' file systems
MAX_PART = 255
#: bytes that are read in one step
BLOCK = 1024 * 1024
#: reason of a dataset that cannot be copied
NOT_LISTED = "DatasetNotListed"
#: the correction of too many files
PACK_ADVICE = "pack the files into archives, or name a smaller folder in spec.url"
#: called with the numbers of files, bytes and samples so far; here no sample is counted
OnProgress = Callable[[int, int, int], None]


class ListedFile(Struct, frozen=True, array_like=True):
    """A file of a listing: its path below the dataset's folder, its size in bytes, and its SHA-256 in hexadecimal."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
    size: Annotated[int, Meta(ge=0)]
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Listing(Struct, kw_only=True):
    """The files of a dataset, sorted by name. ``single``: the dataset is that one file, and not its folder.

    ``v``: version of the form.
    """

    v: Literal[1] = 1
    single: bool = False
    files: Annotated[list[ListedFile], Meta(max_length=MAX_FILES)]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)


class FileIndex(Struct, kw_only=True):
    """The files of a listing on this node: for each path in ``folder`` its state and the digest of that state.

    ``listing``: the digest of the listing.
    """

    listing: str = ""
    folder: str = ""
    files: dict[str, tuple[FileState, str]] = {}


def read_listing(data: bytes) -> Listing:
    """Return the listing that another node has written.

    Raises DatasetError if it is not readable, or if its names are not safe or exclude each other.
    """
    try:
        listing = msgspec.json.decode(data, type=Listing)
    except msgspec.DecodeError as error:
        raise DatasetError(NOT_LISTED, f"the list of files is not readable: {error}") from None
    names = {file.name for file in listing.files}
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    for name in names:
        parts = name.split("/")
        if "\0" in name or any(part in {"", ".", ".."} or len(part.encode()) > MAX_PART for part in parts):
            raise DatasetError(NOT_LISTED, f"the list of files has the name {name!r}: only paths below a folder are")
    if len(names) < len(listing.files) or names & folders or (listing.single and len(names) != 1):
        raise DatasetError(NOT_LISTED, "the list of files has a name twice, or a file with the name of a folder")
    return listing


def index_of(listing: Path) -> Path:
    """Return the path of the index that belongs to a listing."""
    return listing.with_suffix(".index")


def read_index(path: Path) -> FileIndex:
    """Return the index at a path, an empty one if it is missing or damaged: then all files are read again."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=FileIndex)
    except (OSError, msgspec.DecodeError):
        return FileIndex()


def write_listing(path: Path, file: Path, report: OnProgress) -> str:
    """Write the listing of the dataset at ``path`` into ``file``, and the index next to it; return its digest.

    ``report`` is called with the numbers of files and of bytes that were read. Raises OSError, and DatasetError if the
    dataset cannot be copied.
    """
    index = index_of(file)
    old_index = read_index(index)
    is_single = not path.is_dir()
    folder = path.parent if is_single else path
    indexed: dict[str, tuple[FileState, str]] = {}
    bytes_read = 0
    for name in [path.name] if is_single else _names(folder):
        _check_name(name, len(indexed))
        stored = old_index.files.get(name)
        if stored is None or stored[0] != state_of(folder / name):
            stored = _hash(folder, name, partial(_progress, report, len(indexed), bytes_read))
            bytes_read += stored[0].size
        indexed[name] = stored
        report(len(indexed), bytes_read, 0)
    files = [ListedFile(name, state.size, digest) for name, (state, digest) in sorted(indexed.items())]
    data = msgspec.json.encode(Listing(single=is_single, files=files))
    if len(data) > MAX_BYTES:
        raise DatasetError(NOT_LISTED, f"{path}: the list of its files has over {MAX_BYTES >> 20} MB: {PACK_ADVICE}")
    digest = hashlib.sha256(data).hexdigest()
    write_atomic(file, data)
    write_atomic(index, msgspec.msgpack.encode(FileIndex(listing=digest, folder=str(folder), files=indexed)))
    return digest


def _names(folder: Path, prefix: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the paths of files in a folder that are not hidden. Links to folders are not followed: they may loop.

    ``prefix``: the path of this folder below the dataset's, with a slash at its end; ``depth``: its level, from 0 on.
    """
    with os.scandir(folder) as entries:
        visible = sorted((entry for entry in entries if not is_hidden(entry.name)), key=lambda entry: entry.name)
    for entry in visible:
        if not entry.is_dir(follow_symlinks=False):
            yield prefix + entry.name
        elif depth < MAX_DEPTH:
            yield from _names(folder / entry.name, f"{prefix}{entry.name}/", depth + 1)


def _progress(report: OnProgress, files: int, read_before: int, read_of_file: int) -> None:
    """Report the progress within one file."""
    report(files, read_before + read_of_file, 0)


def _check_name(name: str, count: int) -> None:
    """Refuse a name that other nodes cannot use, and too many files; ``count``: of files before it.

    Raises DatasetError.
    """
    if count >= MAX_FILES:
        raise DatasetError(NOT_LISTED, f"it has over {MAX_FILES:,} files: {PACK_ADVICE}")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        shown = os.fsencode(name).decode("utf-8", "backslashreplace")
        raise DatasetError(NOT_LISTED, f"{shown}: the name is not UTF-8: rename it") from None
    if length > MAX_NAME:
        raise DatasetError(NOT_LISTED, f"{name[:100]}...: the path has over {MAX_NAME} bytes: shorten it")


def _hash(folder: Path, name: str, on_bytes: Callable[[int], None]) -> tuple[FileState, str]:
    """Return state and digest of a file of the folder. Raises DatasetError if it is none, or a link out of the folder.

    ``on_bytes`` is called with the bytes that were read so far. Raises OSError, too.
    """
    # non-blocking: a pipe in place of a file must not block
    descriptor = os.open(folder / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(os.path.realpath(folder)):
            raise DatasetError(NOT_LISTED, f"{name}: the link leads out of the folder: replace it with the file")
        if not stat.S_ISREG(status.st_mode):
            raise DatasetError(UNREADABLE, f"{name}: it is not a regular file")
        sha256, bytes_read = hashlib.sha256(), 0
        while block := file.read(BLOCK):
            sha256.update(block)
            bytes_read += len(block)
            on_bytes(bytes_read)
    return FileState(status.st_size, status.st_mtime_ns, status.st_ino), sha256.hexdigest()
