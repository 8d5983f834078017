"""The formats, the interface of their readers, and their input: a file in blocks.

A new format is one new file, and an entry of ``FORMATS``.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

import msgspec

from halimede.datasets.counts import DatasetCounts
from halimede.errors import HalimedeError
from halimede.sample_files.text_blocks import BLOCK, text_blocks

NOT_FOUND = "DatasetNotFound"
UNREADABLE = "DatasetUnreadable"
UNSUPPORTED = "UnsupportedFormat"
NOT_INSTALLED = "NotInstalled"
#: bytes before a position that must be unchanged, and of the file's begin
TAIL, HEAD = 64 * 1024, 4 * 1024
CountBytes = Callable[[int], None]


class DatasetReader(ABC):
    """Counts one file of its format."""

    #: suffixes (lower case) of the files that it reads in a folder
    suffixes: frozenset[str]
    #: whether two files with the same content have the same samples
    has_samples_in_files = True

    def root(self, folder: Path) -> Path:
        """Return the folder whose files to read, for a dataset that is a folder."""
        return folder

    def scope(self, path: Path, root: Path) -> str:  # noqa: ARG002  # of the port
        """Return what the samples of a file are compared within: equal ones of two scopes are different samples."""
        return ""

    @abstractmethod
    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> bool:
        """Add the file to the tally; return whether the counts hold as long as the file does not change.

        Raises DatasetError if the whole file is unreadable, OSError, and MemoryError.
        """


#: the reader of each format: its module and class
FORMATS = {
    "coco": "coco.Coco", "csv": "csv_.Table", "images": "images.Images", "jsonl": "lines.Lines",
    "parquet": "parquet.Parquet", "txt": "lines.Text", "voc": "voc.Voc",
}  # fmt: skip
ALIASES = {
    "coco-json": "coco", "cocojson": "coco", "tsv": "csv", "table": "csv", "image": "images", "imagefolder": "images",
    "image-folder": "images", "images-folder": "images", "ndjson": "jsonl", "json-lines": "jsonl",
    "apache-parquet": "parquet", "pq": "parquet", "text": "txt", "list": "txt", "xml": "voc", "pascal-voc": "voc",
    "pascalvoc": "voc", "voc-xml": "voc", "pascal-voc-xml": "voc",
}  # fmt: skip


def find(name: str) -> DatasetReader:
    """Return the reader of a format, in any spelling. Raises DatasetError.

    Only its module is imported: a process starts for each count, and the readers together take as long as its start.
    """
    spelling = "-".join(name.lower().replace("_", " ").replace("-", " ").split())
    path = FORMATS.get(ALIASES.get(spelling, spelling))
    if path is None:
        raise DatasetError(UNSUPPORTED, f"spec.format: {name!r} is not known: use one of {', '.join(sorted(FORMATS))}")
    module, _, reader = path.partition(".")
    read_format: type[DatasetReader] = getattr(import_module(f"halimede.datasets.{module}"), reader)
    return read_format()


class DatasetError(HalimedeError):
    """A whole dataset cannot be counted; a single bad entry is reported in the counts instead.

    ``reason`` is one word for conditions.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class Mark(msgspec.Struct, kw_only=True):
    """The position up to which a growing file was read, the counts until then, and the state of its reader."""

    offset: int
    digest: str
    tally: DatasetCounts
    state: dict[str, int | str | bool]


class FileBlocks:
    """An open file. ``name`` is for people; ``start`` is the begin of this read, and then of the next."""

    def __init__(
        self, path: Path, name: str, file: BinaryIO, size: int, *, came: CountBytes, start: Mark | None = None
    ) -> None:
        self.path = path
        self.name = name
        self.file = file
        self.size = size
        self.start = start if start is not None and start.digest == _digest(file, start.offset, size) else None
        self.came = came

    @property
    def begin(self) -> int:
        """The position where reading begins."""
        return self.start.offset if self.start else 0

    def blocks(self, block: int = BLOCK, *, begin: int | None = None) -> Iterator[bytes]:
        """Yield the blocks to read, independent of other readers of the file."""
        at = self.begin if begin is None else begin
        for data in text_blocks(self.file.fileno(), self.name, at, self.size, block):
            self.came(len(data))
            yield data

    def line(self, number: int) -> str:
        """Return the name of a line."""
        return f"{self.name}: line {number}"

    def digest(self) -> bytes:
        """Return eight bytes that show whether two files are copies: of their begin, end and size."""
        return hashlib.blake2b(
            f"{_digest(self.file, self.size, self.size)} {self.size}".encode(), digest_size=8
        ).digest()

    def leave(self, offset: int, tally: DatasetCounts, **state: int | str | bool) -> None:
        """Remember a position at which reading can continue after the file has grown."""
        digest = _digest(self.file, offset, self.size)
        self.start = Mark(offset=offset, digest=digest, tally=tally.copy(), state=state)


def _digest(file: BinaryIO, offset: int, size: int) -> str:
    """Return a digest of the content before a position, empty if there is none."""
    if not 0 < offset <= size:
        return ""
    number = file.fileno()
    digest = hashlib.blake2b(os.pread(number, min(HEAD, offset), 0), digest_size=16)
    digest.update(os.pread(number, min(TAIL, offset), max(0, offset - TAIL)))
    return digest.hexdigest()
