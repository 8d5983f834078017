"""Counts a dataset: lists its files, reads changed ones, and adds up the counts.

A file that only grew at its end is read from the end of the last count, if the content before is unchanged. Devices and
pipes are reported, not read.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from halimede.datasets.counts import DatasetCounts
from halimede.datasets.registry import NOT_FOUND, UNREADABLE, DatasetError, DatasetReader, FileBlocks, Mark, find
from halimede.hidden_names import is_hidden
from halimede.messages import DatasetFacts
from halimede.sample_files.repeated_samples import RepeatedSamples
from halimede.sample_files.rules import SampleFileError

#: most paths that are watched for changes, and most levels of folders that are read
MAX_WATCHED, MAX_DEPTH = 1000, 32
OnProgress = Callable[[int, int, int], None]
#: increased whenever earlier counts become invalid
VERSION = 3
#: files between two commits: the most that are lost if the count is ended
COMMIT = 2000


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of a dataset, and the paths whose change invalidates them.

    ``whole``: the paths show every change; otherwise files of a folder may be overwritten unnoticed. ``repeated``:
    which files list the same samples, and what to do.
    """

    facts: DatasetFacts
    watch: dict[str, Print] = field(default_factory=dict)
    whole: bool = True
    repeated: str = ""


def print_of(path: str | Path) -> Print | None:
    """Return the identity of a path's state, None if it does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116  # a third of the time
    except OSError:
        return None
    return _print(status)


def count(
    path: Path, form: str, ledger: Path | None = None, on_progress: OnProgress | None = None, root: Path | None = None
) -> Counted:
    """Count the dataset at a path. ``on_progress`` is called with files, bytes that were read, and samples.

    With ``root``, no link may lead out of that folder. Raises DatasetError.
    """
    reader = find(form)
    try:
        with CountCache(ledger, f"{form} {path}") as cache:
            return _Count(path, reader, cache, on_progress or (lambda _files, _bytes, _samples: None), root).run()
    except FileNotFoundError:
        text = f"{path} does not exist on this node: put it there, or correct spec.url"
        raise DatasetError(NOT_FOUND, text) from None
    except SampleFileError as error:
        raise DatasetError(UNREADABLE, str(error)) from None
    except OSError as error:
        raise DatasetError(UNREADABLE, f"{error.filename or path} cannot be read: {error.strerror}") from None
    except sqlite3.Error as error:
        raise DatasetError(UNREADABLE, f"{ledger}: what was counted cannot be kept: {error}") from None


class _Count:
    """One count of one dataset."""

    def __init__(
        self, path: Path, reader: DatasetReader, ledger: CountCache, on_progress: OnProgress, root: Path | None = None
    ) -> None:
        self._path = path
        self._root = root
        self._reader = reader
        self._ledger = ledger
        self._on_progress = on_progress
        self._tally = self._current = DatasetCounts()
        self._files = self._bytes = self._size = 0
        self._watch: dict[str, Print] = {}
        self._whole = True
        #: files that are other views of samples: their rank, name, scope and counts
        self._views: list[tuple[int, str, str, DatasetCounts]] = []
        self._repeats = RepeatedSamples()

    def run(self) -> Counted:
        """Count."""
        status = self._path.stat()
        self._check_inside(Path(os.path.realpath(self._path)), str(self._path))
        if stat.S_ISDIR(status.st_mode):
            root = self._reader.root(self._path)
            for path in self._walk(root):
                self._one(path, _printable(path.relative_to(root)), root)
            if not self._files:
                endings = ", ".join(sorted(self._reader.suffixes))
                raise DatasetError(UNREADABLE, f"{root} has no file that ends with {endings}")
            self._whole = False
            for _, name, scope, tally in sorted(self._views, key=lambda view: view[:2]):
                self._add(name, scope, tally)
        elif stat.S_ISREG(status.st_mode):
            self._note(self._path, status)
            tally, size = self._file(self._path, _printable(Path(self._path.name)), self._path.parent)
            self._tally.add(tally)
            self._size = size
        else:
            raise DatasetError(UNREADABLE, f"{self._path} is neither a file nor a folder")
        self._ledger.finish()
        return Counted(self._tally.facts(self._size), self._watch, self._whole, self._repeats.message)

    def _walk(self, folder: Path, depth: int = 0) -> Iterator[Path]:
        """Yield the files of a folder. Links to folders are not followed: they may form a loop."""
        subfolders: list[Path] = []
        self._note(folder, folder.stat())
        with os.scandir(folder) as entries:
            for entry in entries:
                self._came(0)  # a folder of many other files shows progress as well
                if is_hidden(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    subfolders.append(folder / entry.name)
                elif os.path.splitext(entry.name)[1].lower() in self._reader.suffixes:  # noqa: PTH122  # many
                    yield folder / entry.name
        for subfolder in sorted(subfolders) if depth < MAX_DEPTH else ():
            yield from self._walk(subfolder, depth + 1)

    def _one(self, path: Path, name: str, root: Path) -> None:
        """Count one file of a folder; an unreadable file does not affect the others."""
        self._files += 1
        try:
            tally, size = self._file(path, name, root)
        except (DatasetError, SampleFileError) as error:
            if isinstance(error, DatasetError) and error.reason != UNREADABLE:
                raise
            self._tally.fault(name, str(error).removeprefix(f"{name}: "))
        except OSError as error:
            self._tally.fault(name, f"it cannot be read: {error.strerror}")
        else:
            self._size += size
            scope = self._reader.scope(path, root)
            if tally.rank:
                self._views.append((tally.rank, name, scope, tally))
            else:
                self._add(name, scope, tally)
        self._current = DatasetCounts()
        self._on_progress(self._files, self._bytes, self._tally.samples)

    def _add(self, name: str, scope: str, tally: DatasetCounts) -> None:
        """Add the counts of a file, but not those of another view of samples that are counted already."""
        if self._repeats.add(name, scope, array("Q", tally.listed), is_view=tally.rank > 0):
            self._tally.add(tally)

    def _file(self, path: Path, name: str, root: Path) -> tuple[DatasetCounts, int]:
        stored = self._ledger.get(name)
        if stored is not None and stored[0] == print_of(path):
            return stored[1].tally, stored[0].size
        # non-blocking: a pipe in place of a file must not block the count
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(number, "rb", buffering=0) as file:
            status = os.fstat(number)
            if self._root is not None:
                self._check_inside(Path(f"/proc/self/fd/{number}").readlink(), name)
            if not stat.S_ISREG(status.st_mode):
                raise DatasetError(UNREADABLE, f"{name}: it is not a regular file")
            now = _print(status)
            start = stored[1].start if stored and stored[0].inode == now.inode and stored[0].size <= now.size else None
            source = FileBlocks(path, name, file, now.size, came=self._came, start=start)
            self._current = tally = source.start.tally.copy() if source.start else DatasetCounts()
            is_final = self._reader.read(source, tally, root)
            if not tally.listed and tally.samples and self._reader.has_samples_in_files:
                tally.listed = source.digest()
        if is_final:
            self._ledger.put(name, now, CountRecord(tally=tally, start=source.start))
        return tally, now.size

    def _check_inside(self, opened: Path, name: str) -> None:
        """Raise DatasetError if the real path of a file or folder is outside of the root."""
        if self._root is not None and not opened.is_relative_to(os.path.realpath(self._root)):
            text = f"{name}: a link leads out of the folders that are mounted: write the path that it leads to"
            raise DatasetError(UNREADABLE, text)

    def _came(self, number: int) -> None:
        self._bytes += number
        self._on_progress(self._files, self._bytes, self._tally.samples + self._current.samples)

    def _note(self, path: Path, status: os.stat_result) -> None:
        if len(self._watch) < MAX_WATCHED:
            self._watch[str(path)] = _print(status)
        else:
            self._whole = False


def _printable(path: Path) -> str:
    """Return a path as printable text, whatever bytes it has."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _print(status: os.stat_result) -> Print:
    return Print(status.st_size, status.st_mtime_ns, status.st_ino)


class Print(msgspec.Struct, frozen=True, array_like=True):
    """The identity of a file's state, which shows a change."""

    size: int
    mtime_ns: int
    inode: int


class CountRecord(msgspec.Struct, kw_only=True):
    """The counts of a file in that state; ``start``: the position to continue at if the file grows."""

    tally: DatasetCounts
    start: Mark | None = msgspec.field(default=None, name="mark")


_DECODER = msgspec.msgpack.Decoder(CountRecord)


class CountCache:
    """Stores counts of files between two runs in an SQLite file; with ``None`` in memory, for one count.

    It only saves time. A damaged one, or one with other settings, is replaced.
    """

    def __init__(self, path: Path | None, purpose: str) -> None:
        self._path = path
        self._purpose = f"{VERSION} {purpose}"
        self._db: sqlite3.Connection
        self._pass = 0
        self._written = 0

    def __enter__(self) -> Self:
        try:
            self._open()
        except sqlite3.DatabaseError:
            assert self._path is not None  # noqa: S101  # memory is never damaged
            for suffix in ("", "-journal"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            self._open()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._db.commit()
        self._db.close()

    def get(self, name: str) -> tuple[Print, CountRecord] | None:
        """Return the stored counts of a file, and record that the file exists."""
        row = self._db.execute("SELECT size, mtime, inode, record FROM files WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        with contextlib.suppress(msgspec.DecodeError):
            record = _DECODER.decode(row[3])
            self._db.execute("UPDATE files SET pass = ? WHERE name = ?", (self._pass, name))
            self._step()
            return Print(*row[:3]), record
        return None

    def put(self, name: str, of: Print, record: CountRecord) -> None:
        """Store the counts of a file."""
        values = (name, of.size, of.mtime_ns, of.inode, self._pass, msgspec.msgpack.encode(record))
        self._db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", values)
        self._step()

    def finish(self) -> None:
        """Remove files that no longer exist."""
        self._db.execute("DELETE FROM files WHERE pass != ?", (self._pass,))
        self._db.commit()

    def _step(self) -> None:
        self._written += 1
        if self._written % COMMIT == 0:
            self._db.commit()

    def _open(self) -> None:
        self._db = db = sqlite3.connect(self._path or ":memory:", timeout=10)
        with _closed_on_error(db):
            db.execute("PRAGMA synchronous = OFF")
            db.execute("PRAGMA cache_size = -2000")
            db.execute("CREATE TABLE IF NOT EXISTS about (purpose TEXT, pass INTEGER)")
            db.execute(
                "CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY, size INTEGER, mtime INTEGER, inode INTEGER,"
                " pass INTEGER, record BLOB) WITHOUT ROWID"
            )
            row = db.execute("SELECT purpose, pass FROM about").fetchone()
            if row is None or row[0] != self._purpose:
                db.execute("DELETE FROM files")
                row = (self._purpose, 0)
            self._pass = row[1] + 1
            db.execute("DELETE FROM about")
            db.execute("INSERT INTO about VALUES (?, ?)", (self._purpose, self._pass))
            db.commit()


@contextlib.contextmanager
def _closed_on_error(db: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        db.close()
        raise
