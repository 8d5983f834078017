"""The list of a dataset's files with their digests: what other nodes copy.

The list itself is a file, and its digest changes only with the names or the content of the files. An index on the node
has the state of each file, so that an unchanged file is not read again.
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

from halimede.datasets.counting import MAX_DEPTH, Print, print_of
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
PACK = "pack the files into archives, or name a smaller folder in spec.url"
OnProgress = Callable[[int, int, int], None]


class ListedFile(Struct, frozen=True, array_like=True):
    """A file: its path below the dataset's folder, its bytes, and its SHA-256 in hexadecimal."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
    size: Annotated[int, Meta(ge=0)]
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Listing(Struct, kw_only=True):
    """The files of a dataset, sorted by name. ``single``: the dataset is that one file, and not its folder."""

    v: Literal[1] = 1
    single: bool = False
    files: Annotated[list[ListedFile], Meta(max_length=MAX_FILES)]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)


class FileIndex(Struct, kw_only=True):
    """The files of a listing on this node: the path of each, and its state when it had that digest."""

    listing: str = ""
    folder: str = ""
    files: dict[str, tuple[Print, str]] = {}


def read_listing(data: bytes) -> Listing:
    """Decode a listing of another node. Raises DatasetError for one whose names are not safe or do not fit together."""
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
    """Return the file of the index of a listing."""
    return listing.with_suffix(".index")


def read_index(path: Path) -> FileIndex:
    """Return the index of a node, an empty one if there is none or if it is damaged: then all files are read again."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=FileIndex)
    except (OSError, msgspec.DecodeError):
        return FileIndex()


def write_listing(path: Path, file: Path, report: OnProgress) -> str:
    """Write the listing of the dataset at ``path`` into ``file``, and the index next to it; return its digest.

    ``report`` is called with files and bytes read. Raises OSError, and DatasetError if the dataset cannot be copied.
    """
    index = index_of(file)
    old_index = read_index(index)
    single = not path.is_dir()
    folder = path.parent if single else path
    indexed: dict[str, tuple[Print, str]] = {}
    read = 0
    for name in [path.name] if single else _names(folder):
        _check_name(name, len(indexed))
        before = old_index.files.get(name)
        now = print_of(folder / name)
        if before is None or before[0] != now:
            now, digest = _hash(folder, name, partial(_progress, report, len(indexed), read))
            read += now.size
        else:
            now, digest = before
        indexed[name] = (now, digest)
        report(len(indexed), read, 0)
    files = [ListedFile(name, at.size, digest) for name, (at, digest) in sorted(indexed.items())]
    data = msgspec.json.encode(Listing(single=single, files=files))
    if len(data) > MAX_BYTES:
        raise DatasetError(NOT_LISTED, f"{path}: the list of its files has over {MAX_BYTES >> 20} MB: {PACK}")
    digest = hashlib.sha256(data).hexdigest()
    write_atomic(file, data)
    write_atomic(index, msgspec.msgpack.encode(FileIndex(listing=digest, folder=str(folder), files=indexed)))
    return digest


def _names(folder: Path, prefix: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the files below a folder, without hidden ones. Links to folders are not followed: they may form a loop."""
    with os.scandir(folder) as entries:
        visible = sorted((entry for entry in entries if not is_hidden(entry.name)), key=lambda entry: entry.name)
    for entry in visible:
        if not entry.is_dir(follow_symlinks=False):
            yield prefix + entry.name
        elif depth < MAX_DEPTH:
            yield from _names(folder / entry.name, f"{prefix}{entry.name}/", depth + 1)


def _progress(report: OnProgress, files: int, before: int, count: int) -> None:
    report(files, before + count, 0)


def _check_name(name: str, count: int) -> None:
    if count >= MAX_FILES:
        raise DatasetError(NOT_LISTED, f"it has over {MAX_FILES:,} files: {PACK}")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        shown = os.fsencode(name).decode("utf-8", "backslashreplace")
        raise DatasetError(NOT_LISTED, f"{shown}: the name is not UTF-8: rename it") from None
    if length > MAX_NAME:
        raise DatasetError(NOT_LISTED, f"{name[:100]}...: the path has over {MAX_NAME} bytes: shorten it")


def _hash(folder: Path, name: str, came: Callable[[int], None]) -> tuple[Print, str]:
    """Return state and digest of a file. It must be in the folder, by its real path: a link could show any file."""
    # non-blocking: a pipe in place of a file must not block
    number = os.open(folder / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(number, "rb", buffering=0) as file:
        status = os.fstat(number)
        if not Path(f"/proc/self/fd/{number}").readlink().is_relative_to(os.path.realpath(folder)):
            raise DatasetError(NOT_LISTED, f"{name}: the link leads out of the folder: replace it with the file")
        if not stat.S_ISREG(status.st_mode):
            raise DatasetError(UNREADABLE, f"{name}: it is not a regular file")
        sha256, count = hashlib.sha256(), 0
        while block := file.read(BLOCK):
            sha256.update(block)
            count += len(block)
            came(count)
    return Print(status.st_size, status.st_mtime_ns, status.st_ino), sha256.hexdigest()
