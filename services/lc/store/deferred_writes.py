"""Writes of the node's store on a disk without room: what cannot be written is owed, and the node goes on from memory.

An LC that ends before there is room again has an older store: GM's next sync brings the difference, as after any other
loss. So it may serve, report and forget meanwhile, which a node that refused all news could not.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import structlog

log = structlog.get_logger()

#: primary result codes of SQLite that room on the disk would mend
NO_ROOM = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
#: statements; with more than these a node takes no more news
MOST = 10_000


class Statements:
    """What one transaction is to do, in the words of a cursor."""

    def __init__(self) -> None:
        self.listed: list[tuple[str, tuple[Any, ...]]] = []

    def execute(self, sql: str, values: tuple[Any, ...] = ()) -> None:
        """Note a statement."""
        self.listed.append((sql, values))


class DeferredWriter:
    """Writes transactions in their order: each is on disk when its block ends, or owed for want of room."""

    def __init__(self) -> None:
        self.owed: list[tuple[str, tuple[Any, ...]]] = []

    def open(self, db: sqlite3.Connection) -> None:
        """Use the store's connection."""
        self._db = db

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Statements]:
        """Collect statements, and write them when the block ends. Raises sqlite3.Error."""
        wanted = Statements()
        yield wanted
        try:
            self._write(wanted.listed)
        except sqlite3.OperationalError as error:
            if not no_room(error) or len(self.owed) + len(wanted.listed) > MOST:
                raise
            if not self.owed:
                log.critical("the store has no room: what is new is kept in memory", error=str(error))
            self.owed += wanted.listed

    def settle(self) -> None:
        """Write what is owed. Raises sqlite3.Error while there is no room."""
        if self.owed:
            self._write([])

    def _write(self, more: list[tuple[str, tuple[Any, ...]]]) -> None:
        with self._db:
            for sql, values in [*self.owed, *more]:
                self._db.execute(sql, values)
        if self.owed:
            log.info("the store has room again", statements=len(self.owed))
        self.owed.clear()


def no_room(error: sqlite3.Error) -> bool:
    """Say whether room on the disk would mend an error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in NO_ROOM
