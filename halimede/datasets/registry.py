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

#: reasons of errors, one word each for conditions
NOT_FOUND = "DatasetNotFound"
UNREADABLE = "DatasetUnreadable"
UNSUPPORTED = "UnsupportedFormat"
NOT_INSTALLED = "NotInstalled"
#: bytes before a position, and bytes of the file's begin, that are compared before reading continues at the position
TAIL_BYTES, HEAD_BYTES = 64 * 1024, 4 * 1024
#: called with the number of bytes that were read
CountBytes = Callable[[int], None]


class DatasetReader(ABC):
    """Counts the files of one format: the base of all readers."""

    #: suffixes (lower case) of the files that it reads in a folder
    suffixes: frozenset[str]
    #: whether two files with the same content have the same samples
    has_samples_in_files = True

    def root(self, folder: Path) -> Path:
        """Return the folder whose files to read, for a dataset that is a folder."""
        return folder

    def scope(self, path: Path, root: Path) -> str:  # noqa: ARG002  # of the port
        """Return a text for the scope of a file's samples: equal samples are repeated ones only within one scope."""
        return ""

    @abstractmethod
    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> None:
        """Add the samples of a file to the tally. ``root``: the folder of the dataset.

        It sets ``source.is_final`` to False if the counts may change while the file does not. Raises DatasetError if
        the whole file is unreadable, OSError, and MemoryError.
        """


#: the reader of each format: its module and class
FORMATS = {
    "coco": "coco.Coco", "csv": "csv_.Table", "images": "images.Images", "jsonl": "lines.JsonLines",
    "parquet": "parquet.Parquet", "txt": "lines.TextLines", "voc": "voc.Voc",
}  # fmt: skip
#: other spellings of the formats
ALIASES = {
    "coco-json": "coco", "cocojson": "coco", "tsv": "csv", "table": "csv", "image": "images", "imagefolder": "images",
    "image-folder": "images", "images-folder": "images", "ndjson": "jsonl", "json-lines": "jsonl",
    "apache-parquet": "parquet", "pq": "parquet", "text": "txt", "list": "txt", "xml": "voc", "pascal-voc": "voc",
    "pascalvoc": "voc", "voc-xml": "voc", "pascal-voc-xml": "voc",
}  # fmt: skip


def find(name: str) -> DatasetReader:
    """Return the reader of a format, in any spelling. Raises DatasetError for an unknown one.

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
    """A whole dataset cannot be counted. ``reason``: one word for conditions.

    A single bad entry is no error: it is reported in the counts.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class ReadPosition(msgspec.Struct, kw_only=True):
    """Where reading of a growing file continues.

    ``offset``: bytes that were read; ``digest``: of the content before the position; ``tally``: the counts up to it;
    ``state``: what its reader needs to continue.
    """

    offset: int
    digest: str
    tally: DatasetCounts
    state: dict[str, int | str | bool]


class FileBlocks:
    """An open file of ``size`` bytes, to read from ``start`` on. ``name``: the file's name in errors.

    ``on_bytes`` is called with the bytes of each block. ``start`` is used if the content before it is unchanged.

    Attributes:
        start: where reading begins, None for the begin of the file; a reader sets it for the next read (``leave``).
        is_final: whether the counts hold until the file changes.

    """

    def __init__(
        self,
        path: Path,
        name: str,
        file: BinaryIO,
        size: int,
        *,
        on_bytes: CountBytes,
        start: ReadPosition | None = None,
    ) -> None:
        self.path = path
        self.name = name
        self.file = file
        self.size = size
        self.start = start if start is not None and start.digest == _digest(file, start.offset, size) else None
        self.on_bytes = on_bytes
        self.is_final = True

    @property
    def begin(self) -> int:
        """The position in bytes where reading begins, 0 for a new file."""
        return self.start.offset if self.start else 0

    def blocks(self, block: int = BLOCK, *, begin: int | None = None) -> Iterator[bytes]:
        """Yield blocks of at most ``block`` bytes from ``begin`` on (default: where reading begins)."""
        offset = self.begin if begin is None else begin
        for data in text_blocks(self.file.fileno(), self.name, offset, self.size, block):
            self.on_bytes(len(data))
            yield data

    def line(self, number: int) -> str:
        """Return the name of a line in reports, by its number from 1 on."""
        return f"{self.name}: line {number}"

    def digest(self) -> bytes:
        """Return eight bytes of begin, end and size, which are equal for copies of a file."""
        content = f"{_digest(self.file, self.size, self.size)} {self.size}"
        return hashlib.blake2b(content.encode(), digest_size=8).digest()

    def leave(self, offset: int, tally: DatasetCounts, **state: int | str | bool) -> None:
        """Record where reading can continue after the file has grown, with the counts and the state up to there."""
        digest = _digest(self.file, offset, self.size)
        self.start = ReadPosition(offset=offset, digest=digest, tally=tally.copy(), state=state)


def _digest(file: BinaryIO, offset: int, size: int) -> str:
    """Return a digest of the content before a position, empty for a position outside of the file."""
    if not 0 < offset <= size:
        return ""
    descriptor = file.fileno()
    digest = hashlib.blake2b(os.pread(descriptor, min(HEAD_BYTES, offset), 0), digest_size=16)
    digest.update(os.pread(descriptor, min(TAIL_BYTES, offset), max(0, offset - TAIL_BYTES)))
    return digest.hexdigest()
