"""Writes transactions of the node's store; on a full disk they are owed, and written when there is room."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import structlog

from halimede.system import sqlite

log = structlog.get_logger()
#: result codes of SQLite that room on the disk, or in the user's share of it, would mend: no others
NO_ROOM = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
#: statements; with more than these a node takes no more news
MAX_OWED = 10_000


class Statements:
    """What one transaction is to do, in the words of a cursor."""

    def __init__(self) -> None:
        self.listed: list[tuple[str, tuple[Any, ...]]] = []

    def execute(self, sql: str, values: tuple[Any, ...] = ()) -> None:
        """Note a statement."""
        self.listed.append((sql, values))


class DeferredWriter:
    """Writes transactions in their order: each is on disk when its block ends, or owed for want of room.

    An LC that ends before there is room again has an older store: GM's next sync brings the difference, as after any
    other loss. So it may serve, report and forget meanwhile, which a node that refused all news could not.

    ``repair`` is called with the damage of a store that was damaged or removed; what cannot be kept even then raises.
    """

    def __init__(self, repair: Callable[[str], None]) -> None:
        self.owed: list[tuple[str, tuple[Any, ...]]] = []
        self._repair = repair
        self._removed: Callable[[], str] = str

    def open(self, db: sqlite3.Connection, removed: Callable[[], str]) -> None:
        """Use the store's connection; ``removed`` returns how its files were removed, if they were."""
        self._db, self._removed = db, removed

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Statements]:
        """Collect statements, and write them when the block ends. Raises sqlite3.Error."""
        wanted = Statements()
        yield wanted
        try:
            if removed := self._removed():
                self._repair(removed)
            self._write(wanted.listed)
        except sqlite3.DatabaseError as error:
            if sqlite.is_corrupt(error):
                self._repair(str(error))
                self._write(wanted.listed)
                return
            if not is_disk_full(error) or len(self.owed) + len(wanted.listed) > MAX_OWED:
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
            log.info("store writable again", statements=len(self.owed))
        self.owed.clear()


def is_disk_full(error: sqlite3.Error) -> bool:
    """Whether room on the disk would mend an error."""
    return getattr(error, "sqlite_errorcode", 0) in NO_ROOM
