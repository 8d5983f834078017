"""Opens an SQLite file with a write-ahead log, checks its content, and moves a damaged file aside.

The stores of GM, of LC and of other programs are such files. A file may be removed or overwritten while it is open.
SQLite does not notice: it continues with the deleted file, or with the pages in its cache. ``files`` and ``damage``
detect both.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

#: error codes of a damaged file
CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
#: result of ``damage`` for files that are not the opened ones any more
REMOVED = "its files were removed or replaced while in use"
#: bytes that must be free on a store's disk: the pages of a transaction in its log
LEAST_FREE_BYTES = 64 * 1024
#: error code of a truncated file
TRUNCATED = sqlite3.SQLITE_IOERR_SHORT_READ


class NewerSchemaError(Exception):
    """A newer version of halimede has written the file. ``version``: the version of the file's schema."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(f"schema {version}")


def connect(
    path: Path, newest: int, *, timeout_s: float, isolation_level: Literal["DEFERRED"] | None
) -> sqlite3.Connection:
    """Open or create a file that only its user may read, and check all its content.

    Args:
        path: the file.
        newest: the highest version of the schema (``PRAGMA user_version``) that the caller can read.
        timeout_s: seconds for which a call waits for another connection's lock.
        isolation_level: "DEFERRED": writes begin a transaction, which the caller commits; None: each is one.

    Raises NewerSchemaError if the schema is newer, sqlite3.DatabaseError if the file cannot be opened or read:
    ``is_corrupt`` of the error returns whether the file is damaged.

    """
    connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=isolation_level)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        with contextlib.suppress(OSError):  # a file of another user, or one that was just removed
            path.chmod(0o600)
        if (report := _check(connection)) != "ok":
            raise corruption(report)
        if (version := user_version(connection)) > newest:
            raise NewerSchemaError(version)
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection) -> str:
    """Return ``ok``, or the first damage that SQLite finds in a file. Raises sqlite3.DatabaseError."""
    report: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    return report


def user_version(connection: sqlite3.Connection) -> int:
    """Return the version of the file's schema, 0 for a new file."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def check_columns(connection: sqlite3.Connection, columns: Mapping[str, str], owner: str) -> None:
    """Raise sqlite3.DatabaseError if a table lacks a column: another program made the file, or it is damaged.

    ``columns``: each table's columns, separated by commas. ``owner``: whose store it is, such as GM, for the message.
    """
    for table, names in columns.items():
        try:
            connection.execute(f"SELECT {names} FROM {table} LIMIT 0")  # noqa: S608 - constants
        except sqlite3.OperationalError as error:
            raise corruption(f"not a {owner}'s store: {error}") from error


def files(path: Path) -> dict[Path, tuple[int, int]]:
    """Return the existing files of a store (its file and its write-ahead log), each with (device, inode)."""
    identities = {}
    for file in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(OSError):
            identities[file] = file.stat().st_dev, file.stat().st_ino
    return identities


def disk_obstacle(path: Path) -> str:
    """Return why the disk of the store at ``path`` would refuse a write; empty if it would accept it. Writes nothing.

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

    ``opened``: the result of ``files`` when the store was opened. The check uses a separate connection, because the
    cache of the open one hides the content on disk.
    """
    if not opened.items() <= files(path).items():
        return REMOVED
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=1.0)) as connection:
            report = _check(connection)
    except sqlite3.DatabaseError as error:
        return str(error) if is_corrupt(error) else ""
    return "" if report == "ok" else report


def salvage(connection: sqlite3.Connection, columns: Mapping[str, str]) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of each table that can still be read. ``columns``: each table's columns, separated by commas."""
    rows = {}
    for table, names in columns.items():
        with contextlib.suppress(sqlite3.Error):
            rows[table] = connection.execute(f"SELECT {names} FROM {table}").fetchall()  # noqa: S608 - constants
    return rows


def insert(connection: sqlite3.Connection, rows: Mapping[str, list[tuple[Any, ...]]]) -> None:
    """Insert each table's rows, with all its columns, in the caller's transaction; rows that exist are left out.

    Raises sqlite3.Error.
    """
    for table, table_rows in rows.items():
        for row in table_rows:
            placeholders = ", ".join("?" * len(row))
            connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({placeholders})", row)  # noqa: S608 - constants


def quarantine(path: Path, reason: str) -> Path:
    """Move a damaged file and its log to ``<name>.corrupt-<number>``; return that path. Raises OSError.

    If the file was removed, a file with the reason is created there instead.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while (moved := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    if not path.exists():
        moved.write_text(f"{path}: {reason}\n")
    for suffix in ("", "-wal", "-shm"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.replace(moved.with_name(moved.name + suffix))
    return moved


def quarantine_notice(path: Path) -> str:
    """Return a message for users with the files that ``quarantine`` moved and that still exist; empty without any."""
    paths = sorted(path.parent.glob(f"{path.name}.corrupt-*[0-9]"))
    return f"its store was damaged, or removed while in use: see {', '.join(map(str, paths))}" if paths else ""


def corruption(text: str) -> sqlite3.DatabaseError:
    """Return a new error with this text, for which ``is_corrupt`` is true."""
    error = sqlite3.DatabaseError(text)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def is_corrupt(error: sqlite3.DatabaseError) -> bool:
    """Whether an error means that the file is damaged. A full disk or a missing permission does not."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code == TRUNCATED or code & 0xFF in CORRUPT
