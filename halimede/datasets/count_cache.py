"""Counts of files, cached between two runs in an SQLite file next to the node's store.

It is worth nothing but time. One that is damaged, or of other settings, is begun anew.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from halimede.datasets.counts import DatasetCounts
from halimede.datasets.file_blocks import Mark

#: raised whenever counts of before mean something else
VERSION = 1
#: files between two commits: what is lost when the count is ended
COMMIT = 2000


class Print(msgspec.Struct, frozen=True, array_like=True):
    """By what a file that has changed is known."""

    size: int
    mtime_ns: int
    inode: int


class CountRecord(msgspec.Struct, kw_only=True):
    """What was counted of a file in that state; ``mark``: where a file that grows can be read on."""

    tally: DatasetCounts
    mark: Mark | None = None


_DECODER = msgspec.msgpack.Decoder(CountRecord)


class CountCache:
    """Records by file. ``None`` keeps them in memory, for one count."""

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._db.commit()
        self._db.close()

    def get(self, name: str) -> tuple[Print, CountRecord] | None:
        """Return what is known of a file, and remember that it is still there."""
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
        """Remember what was counted of a file."""
        values = (name, of.size, of.mtime_ns, of.inode, self._pass, msgspec.msgpack.encode(record))
        self._db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", values)
        self._step()

    def finish(self) -> None:
        """Forget files that are gone."""
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
