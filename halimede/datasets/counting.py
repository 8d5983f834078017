"""Counts a dataset: goes through its files, reads those that have changed, adds up.

A file that only grew at its end is read from where the last count left off, if what stands before that place is as it
was. Devices and pipes are named, not read.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from halimede.datasets import coco, csv_, images, jsonl, parquet, txt, voc
from halimede.datasets.count_cache import CountCache, CountRecord, Print
from halimede.datasets.counts import DatasetCounts
from halimede.datasets.errors import NOT_FOUND, UNREADABLE, DatasetError
from halimede.datasets.file_blocks import FileBlocks
from halimede.datasets.registry import DatasetReader, find
from halimede.messages import DatasetFacts

#: each registers itself
READERS = (coco, csv_, images, jsonl, parquet, txt, voc)
#: places that are watched for changes, and how deep folders are gone into
MAX_WATCHED, MAX_DEPTH = 1000, 32

Told = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of a dataset, and the paths whose change invalidates them.

    ``whole``: those places show every change of it; without, files of a folder may be written over unnoticed.
    """

    facts: DatasetFacts
    watch: dict[str, Print] = field(default_factory=dict)
    whole: bool = True


def print_of(path: str | Path) -> Print | None:
    """Return by what a change of a place is seen, None if there is nothing."""
    try:
        found = os.stat(path)  # noqa: PTH116  # a third of the time
    except OSError:
        return None
    return _print(found)


def count(path: Path, form: str, ledger: Path | None = None, told: Told | None = None) -> Counted:
    """Count the dataset at a path. ``told`` hears files, bytes of them that were read, and samples.

    Raises DatasetError.
    """
    reader = find(form)
    try:
        with CountCache(ledger, f"{form} {path}") as kept:
            return _Count(path, reader, kept, told or (lambda _files, _bytes, _samples: None)).run()
    except FileNotFoundError:
        raise DatasetError(NOT_FOUND, f"{path} does not exist on this node") from None
    except OSError as error:
        raise DatasetError(UNREADABLE, f"{error.filename or path} cannot be read: {error.strerror}") from None
    except sqlite3.Error as error:
        raise DatasetError(UNREADABLE, f"{ledger}: what was counted cannot be kept: {error}") from None


class _Count:
    """One count of one dataset."""

    def __init__(self, path: Path, reader: DatasetReader, ledger: CountCache, told: Told) -> None:
        self._path = path
        self._reader = reader
        self._ledger = ledger
        self._told = told
        self._tally = self._current = DatasetCounts()
        self._files = self._bytes = self._size = 0
        self._watch: dict[str, Print] = {}
        self._whole = True

    def run(self) -> Counted:
        """Count."""
        found = self._path.stat()
        if stat.S_ISDIR(found.st_mode):
            root = self._reader.root(self._path)
            for path in self._walk(root):
                self._one(path, _shown(path.relative_to(root)), root)
            if not self._files:
                endings = ", ".join(sorted(self._reader.suffixes))
                raise DatasetError(UNREADABLE, f"{root} has no file that ends with {endings}")
            self._whole = False
        elif stat.S_ISREG(found.st_mode):
            self._note(self._path, found)
            tally, size = self._file(self._path, _shown(Path(self._path.name)), self._path.parent)
            self._tally.add(tally)
            self._size = size
        else:
            raise DatasetError(UNREADABLE, f"{self._path} is neither a file nor a folder")
        self._ledger.finish()
        return Counted(self._tally.facts(self._size), self._watch, self._whole)

    def _walk(self, folder: Path, depth: int = 0) -> Iterator[Path]:
        """Yield the files of a folder. Links to folders are not followed: they may lead round and round."""
        inner: list[Path] = []
        self._note(folder, folder.stat())
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    inner.append(folder / entry.name)
                elif os.path.splitext(entry.name)[1].lower() in self._reader.suffixes:  # noqa: PTH122  # many
                    yield folder / entry.name
        for each in sorted(inner) if depth < MAX_DEPTH else ():
            yield from self._walk(each, depth + 1)

    def _one(self, path: Path, name: str, root: Path) -> None:
        """Count one file of a folder; one that cannot be read costs no other."""
        self._files += 1
        try:
            tally, size = self._file(path, name, root)
        except DatasetError as error:
            if error.reason != UNREADABLE:
                raise
            self._tally.fault(name, str(error).removeprefix(f"{name}: "))
        except OSError as error:
            self._tally.fault(name, f"it cannot be read: {error.strerror}")
        else:
            self._tally.add(tally)
            self._size += size
        self._current = DatasetCounts()
        self._told(self._files, self._bytes, self._tally.samples)

    def _file(self, path: Path, name: str, root: Path) -> tuple[DatasetCounts, int]:
        known = self._ledger.get(name)
        if known is not None and known[0] == print_of(path):
            return known[1].tally, known[0].size
        # not blocking: a pipe in a dataset's place must not hold the count up
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(number, "rb", buffering=0) as file:
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode):
                raise DatasetError(UNREADABLE, f"{name}: it is no regular file")
            now = _print(found)
            mark = known[1].mark if known and known[0].inode == now.inode and known[0].size <= now.size else None
            source = FileBlocks(path, name, file, now.size, came=self._came, mark=mark)
            self._current = tally = source.mark.tally.copy() if source.mark else DatasetCounts()
            stands = self._reader.read(source, tally, root)
        if stands:
            self._ledger.put(name, now, CountRecord(tally=tally, mark=source.mark))
        return tally, now.size

    def _came(self, number: int) -> None:
        self._bytes += number
        self._told(self._files, self._bytes, self._tally.samples + self._current.samples)

    def _note(self, path: Path, found: os.stat_result) -> None:
        if len(self._watch) < MAX_WATCHED:
            self._watch[str(path)] = _print(found)
        else:
            self._whole = False


def _shown(path: Path) -> str:
    """Return a path as text that can be stored and told, whatever bytes are in it."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _print(found: os.stat_result) -> Print:
    return Print(found.st_size, found.st_mtime_ns, found.st_ino)
