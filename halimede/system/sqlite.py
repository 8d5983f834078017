"""Opens an SQLite file with a write-ahead log, checks its content, and moves a damaged one aside.

A file may be removed or overwritten while it is open. SQLite does not notice: it continues with the deleted file, or
with the pages in its cache. ``files`` and ``damage`` detect both.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
REMOVED = "its files were removed or replaced while in use"
#: bytes that must be free on a store's disk: the pages of a transaction in its log
LEAST_FREE_BYTES = 64 * 1024
#: the file was truncated
CUT_OFF = sqlite3.SQLITE_IOERR_SHORT_READ


class NewerSchemaError(Exception):
    """A newer version has written the file. ``found``: its schema version."""

    def __init__(self, found: int) -> None:
        self.found = found
        super().__init__(f"schema {found}")


def connect(
    path: Path, known: int, *, timeout_s: float, isolation_level: Literal["DEFERRED"] | None
) -> sqlite3.Connection:
    """Open a file that may be new; only its user may read it. Its schema's version is ``PRAGMA user_version``.

    ``known`` is the highest known version.

    Raises NewerSchemaError; sqlite3.DatabaseError: ``is_corrupt`` then returns whether the file is damaged.
    """
    connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=isolation_level)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        with contextlib.suppress(OSError):  # a file of another user, or one that was just removed
            path.chmod(0o600)
        if (found := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise corrupt(found)
        if (version := user_version(connection)) > known:
            raise NewerSchemaError(version)
    except BaseException:
        connection.close()
        raise
    return connection


def user_version(connection: sqlite3.Connection) -> int:
    """Return the version of the file's schema, 0 for a new file."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def check_columns(connection: sqlite3.Connection, columns: Mapping[str, str], owner: str) -> None:
    """Check that each table has its columns; others mean another program or damage. Raises sqlite3.DatabaseError."""
    for table, names in columns.items():
        try:
            connection.execute(f"SELECT {names} FROM {table} LIMIT 0")  # noqa: S608 - constants
        except sqlite3.OperationalError as error:
            raise corrupt(f"not a {owner}'s store: {error}") from error


def files(path: Path) -> dict[Path, tuple[int, int]]:
    """Return the files of an open store, including its log, each with device and inode."""
    found = {}
    for part in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(OSError):
            found[part] = part.stat().st_dev, part.stat().st_ino
    return found


def disk_obstacle(path: Path) -> str:
    """Return why the disk of an open store would refuse a write, empty if it would not. Writes nothing.

    A file system without a size, such as a tmpfs without a limit, is never full. Raises sqlite3.OperationalError if the
    folder cannot be read.
    """
    try:
        disk = os.statvfs(path.parent)
    except OSError as error:
        raise sqlite3.OperationalError(f"{path.parent}: {error.strerror}") from error
    free_blocks = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
    if disk.f_flag & os.ST_RDONLY:
        return "its file system is read-only"
    return "database or disk is full" if disk.f_blocks and free_blocks * disk.f_frsize < LEAST_FREE_BYTES else ""


def damage(path: Path, opened: Mapping[Path, tuple[int, int]]) -> str:
    """Return how a store was damaged since it was opened; empty if it is intact. Reads the whole file.

    ``opened``: its ``files`` at that time. It uses a separate connection, because a cache hides the content on disk.
    """
    if not opened.items() <= files(path).items():
        return REMOVED
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)
        ) as connection:
            found: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        return str(error) if is_corrupt(error) else ""
    return "" if found == "ok" else found


def readable(connection: sqlite3.Connection, columns: Mapping[str, str]) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of these tables that can still be read."""
    rows = {}
    for table, names in columns.items():
        with contextlib.suppress(sqlite3.Error):
            rows[table] = connection.execute(f"SELECT {names} FROM {table}").fetchall()  # noqa: S608 - constants
    return rows


def insert(connection: sqlite3.Connection, rows: Mapping[str, list[tuple[Any, ...]]]) -> None:
    """Insert rows into the tables of a new file, in the caller's transaction."""
    for table, found in rows.items():
        for row in found:
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)  # noqa: S608 - constants


def quarantine(path: Path, reason: str) -> Path:
    """Move a damaged file and its log aside; return the new path. Raises OSError.

    If the file was removed, a file with the reason is created instead.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while (moved := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    if not path.exists():
        moved.write_text(f"{path}: {reason}\n")
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.replace(moved.with_name(moved.name + suffix))
    return moved


def quarantined(path: Path) -> str:
    """Return a message that names files which were moved aside and still exist; empty if there are none."""
    found = sorted(path.parent.glob(f"{path.name}.corrupt-*[0-9]"))
    return f"its store was damaged, or removed while in use: see {', '.join(map(str, found))}" if found else ""


def corrupt(text: str) -> sqlite3.DatabaseError:
    """Return the error of a file whose content is damaged."""
    error = sqlite3.DatabaseError(text)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def is_corrupt(error: sqlite3.DatabaseError) -> bool:
    """Whether a file is damaged; a full disk or a missing permission must not cost the user's data."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code == CUT_OFF or code & 0xFF in CORRUPT
