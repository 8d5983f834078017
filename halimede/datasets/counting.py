"""Counts a dataset: lists its files, reads changed ones, and adds up the counts. ``count`` does it.

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
from halimede.datasets.registry import (
    NOT_FOUND,
    UNREADABLE,
    DatasetError,
    DatasetReader,
    FileBlocks,
    ReadPosition,
    find,
)
from halimede.hidden_names import is_hidden
from halimede.messages import DatasetFacts
from halimede.sample_files.repeated_samples import RepeatedSamples
from halimede.sample_files.rules import SampleFileError

#: most paths that are watched for changes, and most levels of folders that are read
MAX_WATCHED_PATHS, MAX_DEPTH = 1000, 32
#: called with the numbers of files, bytes and samples so far
OnProgress = Callable[[int, int, int], None]
#: version of the stored counts: increased whenever earlier ones become invalid
VERSION = 3
#: files between two commits: the most that are lost if the count is ended
FILES_PER_COMMIT = 2000


@dataclass(frozen=True, slots=True)
class Counted:
    """The result of a count.

    Attributes:
        facts: what the status of the dataset shows.
        watch: the states of paths whose change makes the facts invalid.
        whole: the watched paths show every change; False for a folder, whose files may be overwritten unnoticed.
        repeated: which files list the same samples, and what to do; empty if none do.

    """

    facts: DatasetFacts
    watch: dict[str, FileState] = field(default_factory=dict)
    whole: bool = True
    repeated: str = ""


def state_of(path: str | Path) -> FileState | None:
    """Return the present state of a file or folder, None if it does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116  # a third of the time
    except OSError:
        return None
    return _file_state(status)


def count(
    path: Path, form: str, ledger: Path | None = None, on_progress: OnProgress | None = None, root: Path | None = None
) -> Counted:
    """Return the counts of the dataset at ``path``, a file or folder, in the format ``form``. Raises DatasetError.

    ``ledger``: the file with the counts of the last run, which is updated; None: count all. ``on_progress`` is called
    with the numbers of files, bytes and samples that were read. ``root``: a folder that no link may lead out of.
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
    """One count of one dataset, which ``run`` does. The parameters are those of ``count``.

    In its methods ``name`` is the path of a file below the dataset's folder, as printable text.
    """

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
        self._watch: dict[str, FileState] = {}
        self._watches_all = True
        #: files that are other views of samples: their rank, name, scope and counts
        self._views: list[tuple[int, str, str, DatasetCounts]] = []
        self._repeats = RepeatedSamples()

    def run(self) -> Counted:
        """Count the dataset. Raises DatasetError, SampleFileError, OSError and sqlite3.Error."""
        file_status = self._path.stat()
        self._check_inside(Path(os.path.realpath(self._path)), str(self._path))
        if stat.S_ISDIR(file_status.st_mode):
            root = self._reader.root(self._path)
            for path in self._walk(root):
                self._count_in_folder(path, _printable_path(path.relative_to(root)), root)
            if not self._files:
                endings = ", ".join(sorted(self._reader.suffixes))
                raise DatasetError(UNREADABLE, f"{root} has no file that ends with {endings}")
            self._watches_all = False
            for _, name, scope, tally in sorted(self._views, key=lambda view: view[:2]):
                self._add(name, scope, tally)
        elif stat.S_ISREG(file_status.st_mode):
            self._watch_path(self._path, file_status)
            tally, size = self._read_counts(self._path, _printable_path(Path(self._path.name)), self._path.parent)
            self._tally.add(tally)
            self._size = size
        else:
            raise DatasetError(UNREADABLE, f"{self._path} is neither a file nor a folder")
        self._ledger.finish()
        return Counted(self._tally.facts(self._size), self._watch, self._watches_all, self._repeats.message)

    def _walk(self, folder: Path, depth: int = 0) -> Iterator[Path]:
        """Yield the files below a folder that the reader reads, and watch each folder.

        Links to folders are not followed: they may loop. Folders below ``MAX_DEPTH`` levels are left out.
        """
        subfolders: list[Path] = []
        self._watch_path(folder, folder.stat())
        with os.scandir(folder) as entries:
            for entry in entries:
                self._count_bytes(0)  # a folder of many other files shows progress as well
                if is_hidden(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    subfolders.append(folder / entry.name)
                elif os.path.splitext(entry.name)[1].lower() in self._reader.suffixes:  # noqa: PTH122  # many
                    yield folder / entry.name
        for subfolder in sorted(subfolders) if depth < MAX_DEPTH else ():
            yield from self._walk(subfolder, depth + 1)

    def _count_in_folder(self, path: Path, name: str, root: Path) -> None:
        """Count one file of a dataset that is a folder; an unreadable file counts as an unusable entry.

        Raises DatasetError if no file of the format can be read here, such as without its library.
        """
        self._files += 1
        try:
            tally, size = self._read_counts(path, name, root)
        except (DatasetError, SampleFileError) as error:
            if isinstance(error, DatasetError) and error.reason != UNREADABLE:
                raise
            self._tally.record_fault(name, str(error).removeprefix(f"{name}: "))
        except OSError as error:
            self._tally.record_fault(name, f"it cannot be read: {error.strerror}")
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
        """Add the counts of a file, but not those of another view of samples that are counted already.

        ``scope``: of the samples, as of ``DatasetReader.scope``.
        """
        if self._repeats.add(name, scope, array("Q", tally.listed), is_view=tally.rank > 0):
            self._tally.add(tally)

    def _read_counts(self, path: Path, name: str, root: Path) -> tuple[DatasetCounts, int]:
        """Return the counts of a file and its size in bytes, from the cache if the file is unchanged.

        Else the file is read, and its new counts are put into the cache, unless they may change without it. Raises
        DatasetError for a file outside of the root and for no regular file, and what ``DatasetReader.read`` raises.
        """
        stored = self._ledger.get(name)
        if stored is not None and stored[0] == state_of(path):
            return stored[1].tally, stored[0].size
        # non-blocking: a pipe in place of a file must not block the count
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if self._root is not None:
                self._check_inside(Path(f"/proc/self/fd/{descriptor}").readlink(), name)
            if not stat.S_ISREG(status.st_mode):
                raise DatasetError(UNREADABLE, f"{name}: it is not a regular file")
            state = _file_state(status)
            has_grown = stored and stored[0].inode == state.inode and stored[0].size <= state.size
            start = stored[1].start if stored and has_grown else None
            source = FileBlocks(path, name, file, state.size, on_bytes=self._count_bytes, start=start)
            self._current = tally = source.start.tally.copy() if source.start else DatasetCounts()
            self._reader.read(source, tally, root)
            if not tally.listed and tally.samples and self._reader.has_samples_in_files:
                tally.listed = source.digest()
        if source.is_final:
            self._ledger.put(name, state, CountRecord(tally=tally, start=source.start))
        return tally, state.size

    def _check_inside(self, opened: Path, name: str) -> None:
        """Raise DatasetError if the real path of a file or folder is outside of the root."""
        if self._root is not None and not opened.is_relative_to(os.path.realpath(self._root)):
            text = f"{name}: a link leads out of the folders that are mounted: write the path that it leads to"
            raise DatasetError(UNREADABLE, text)

    def _count_bytes(self, number: int) -> None:
        """Add to the bytes that were read, and report the progress."""
        self._bytes += number
        self._on_progress(self._files, self._bytes, self._tally.samples + self._current.samples)

    def _watch_path(self, path: Path, status: os.stat_result) -> None:
        """Remember the state of a path, if there are not too many."""
        if len(self._watch) < MAX_WATCHED_PATHS:
            self._watch[str(path)] = _file_state(status)
        else:
            self._watches_all = False


def _printable_path(path: Path) -> str:
    """Return a path as printable text, whatever bytes it has."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _file_state(status: os.stat_result) -> FileState:
    """Return the state in a result of ``stat``."""
    return FileState(status.st_size, status.st_mtime_ns, status.st_ino)


class FileState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a file or folder: its size in bytes, the time of its last change (``mtime_ns``), and its inode.

    Each change of its content changes one of them.
    """

    size: int
    mtime_ns: int
    inode: int


class CountRecord(msgspec.Struct, kw_only=True):
    """The stored counts of a file, and the position at which reading continues if the file has grown.

    ``start``: None if it must be read from its first byte.
    """

    tally: DatasetCounts
    start: ReadPosition | None = msgspec.field(default=None, name="mark")


_DECODER = msgspec.msgpack.Decoder(CountRecord)


class CountCache:
    """Stores counts of files between two runs in an SQLite file; with the path ``None`` in memory, for one count.

    A context manager, which raises sqlite3.Error. It only saves time: a damaged file, or one with another ``purpose``
    (format and path of a dataset), is replaced.
    """

    def __init__(self, path: Path | None, purpose: str) -> None:
        self._path = path
        self._purpose = f"{VERSION} {purpose}"
        self._db: sqlite3.Connection
        #: the number of this count, which is stored with each file that it meets
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

    def get(self, name: str) -> tuple[FileState, CountRecord] | None:
        """Return the stored state and counts of a file, None without any; record that the file exists.

        ``name``: its path below the dataset.
        """
        row = self._db.execute("SELECT size, mtime, inode, record FROM files WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        with contextlib.suppress(msgspec.DecodeError):
            record = _DECODER.decode(row[3])
            self._db.execute("UPDATE files SET pass = ? WHERE name = ?", (self._pass, name))
            self._step()
            return FileState(*row[:3]), record
        return None

    def put(self, name: str, state: FileState, record: CountRecord) -> None:
        """Store the counts of a file, which hold for this state of it."""
        values = (name, state.size, state.mtime_ns, state.inode, self._pass, msgspec.msgpack.encode(record))
        self._db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", values)
        self._step()

    def finish(self) -> None:
        """Remove the counts of files that no longer exist: those that were neither got nor put."""
        self._db.execute("DELETE FROM files WHERE pass != ?", (self._pass,))
        self._db.commit()

    def _step(self) -> None:
        """Count a change; commit from time to time."""
        self._written += 1
        if self._written % FILES_PER_COMMIT == 0:
            self._db.commit()

    def _open(self) -> None:
        """Open the file, make its tables, and empty it for another purpose."""
        self._db = db = sqlite3.connect(self._path or ":memory:", timeout=10)
        with contextlib.ExitStack() as on_error:
            on_error.callback(db.close)
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
            on_error.pop_all()
