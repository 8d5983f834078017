"""The tables of a node's store, whether a file has them, and where one goes that is damaged."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from services.lc.pods import store
from services.lc.store import message_order

#: what the file has to hold: other columns are another program's, or damage
COLUMNS = {
    "resources": "key, uid, generation, body",
    "tombstones": "number, uid, generation",
    "farewells": "key",
    "processes": "worker, record",
    "numbers": "name, value",
    **message_order.COLUMNS,
    **store.COLUMNS,
}
SCHEMA = """
CREATE TABLE IF NOT EXISTS resources (key TEXT PRIMARY KEY, uid TEXT, generation INTEGER, body BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tombstones
    (number INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT UNIQUE, generation INTEGER);
CREATE TABLE IF NOT EXISTS farewells (key TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS processes (worker TEXT PRIMARY KEY, record BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS numbers (name TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;
"""


def make(db: sqlite3.Connection) -> None:
    """Make the tables that are missing; raise sqlite3.DatabaseError when those that are there are not ours."""
    db.executescript(SCHEMA + message_order.SCHEMA + store.SCHEMA)
    for table, columns in COLUMNS.items():
        try:
            db.execute(f"SELECT {columns} FROM {table} LIMIT 0")  # noqa: S608 - constants
        except sqlite3.OperationalError as error:
            raise sqlite3.DatabaseError(f"not a node's store: {error}") from error


def quarantine(path: Path) -> Path:
    """Move a damaged file and what belongs to it aside; return where it is now."""
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.replace(aside.with_name(aside.name + suffix))
    return aside
