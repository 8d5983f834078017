"""Which formats there are, and what a reader of one has to offer. A new format is one new file with ``@register``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from halimede.datasets.counts import DatasetCounts
from halimede.datasets.errors import UNSUPPORTED, DatasetError
from halimede.datasets.file_blocks import FileBlocks


class DatasetReader(ABC):
    """Counts what is in one file of its format."""

    #: endings (lower case) of the files of a folder that it reads
    suffixes: frozenset[str]

    def root(self, folder: Path) -> Path:
        """Return the folder whose files are to be read, where a whole folder is given."""
        return folder

    @abstractmethod
    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> bool:
        """Add the file to the tally; return whether that stands as long as the file does not change.

        Raises DatasetError if nothing of it can be read, OSError, and MemoryError.
        """


FORMATS: dict[str, type[DatasetReader]] = {}
_ALIASES: dict[str, str] = {}


def register(name: str, *aliases: str) -> Callable[[type[DatasetReader]], type[DatasetReader]]:
    """Register a class without arguments as the reader of a format."""

    def add(reader: type[DatasetReader]) -> type[DatasetReader]:
        if taken := {name, *aliases} & _ALIASES.keys():
            raise ValueError(f"two readers of {', '.join(sorted(taken))}")
        FORMATS[name] = reader
        _ALIASES.update(dict.fromkeys((name, *aliases), name))
        return reader

    return add


def find(name: str) -> DatasetReader:
    """Return the reader of a format, however it is spelt. Raises DatasetError."""
    known = _ALIASES.get("-".join(name.lower().replace("_", " ").replace("-", " ").split()))
    if known is None:
        raise DatasetError(UNSUPPORTED, f"spec.format: {name!r} is not known: use one of {', '.join(sorted(FORMATS))}")
    return FORMATS[known]()
