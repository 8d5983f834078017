"""Opens an SQLite file with a write-ahead log, checks what is in it, and moves a damaged one out of the way."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class NewerSchemaError(Exception):
    """A newer version has written the file. ``found``: its schema."""

    def __init__(self, found: int) -> None:
        self.found = found
        super().__init__(f"schema {found}")


def connect(
    path: Path, known: int, *, timeout_s: float, isolation_level: Literal["DEFERRED"] | None
) -> sqlite3.Connection:
    """Open a file that may be new. Its schema's version is ``PRAGMA user_version``, ``known`` the highest known one.

    Raises NewerSchemaError; sqlite3.DatabaseError, for which ``is_corrupt`` says whether the file is damaged.
    """
    connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=isolation_level)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        if (found := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise corrupt(found)
        if (version := user_version(connection)) > known:
            raise NewerSchemaError(version)
    except BaseException:
        connection.close()
        raise
    return connection


def user_version(connection: sqlite3.Connection) -> int:
    """Return the version of the file's schema, 0 of a new one."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def check_columns(connection: sqlite3.Connection, columns: Mapping[str, str], owner: str) -> None:
    """Check that each table has its columns: others are another program's, or damage. Raises sqlite3.DatabaseError."""
    for table, names in columns.items():
        try:
            connection.execute(f"SELECT {names} FROM {table} LIMIT 0")  # noqa: S608 - constants
        except sqlite3.OperationalError as error:
            raise corrupt(f"not a {owner}'s store: {error}") from error


def quarantine(path: Path) -> Path:
    """Move a damaged file aside, with the log that belongs to it; return where it is now."""
    number = 1
    while (moved := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.replace(moved.with_name(moved.name + suffix))
    return moved


def corrupt(text: str) -> sqlite3.DatabaseError:
    """Return the error of a file whose content is damaged."""
    error = sqlite3.DatabaseError(text)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def is_corrupt(error: sqlite3.DatabaseError) -> bool:
    """Tell a damaged file from a full disk or a missing permission, which must not cost the user's data."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in CORRUPT
