"""Writes transactions of the node's store; on a full disk it defers them until there is space."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import structlog

from halimede.system import sqlite

log = structlog.get_logger()
#: result codes of SQLite that free space on the disk, or in the user's quota, resolves
NO_ROOM = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
#: most deferred statements; above that a node accepts no more changes
MAX_OWED = 10_000


class Statements:
    """The statements of one transaction, with a cursor's interface."""

    def __init__(self) -> None:
        self.listed: list[tuple[str, tuple[Any, ...]]] = []

    def execute(self, sql: str, values: tuple[Any, ...] = ()) -> None:
        """Record a statement."""
        self.listed.append((sql, values))


class DeferredWriter:
    """Writes transactions in order: on disk at the end of the block, or deferred while the disk is full.

    An LC that ends before there is space again has an older store: GM's next sync sends the difference, as after any
    other loss. So the node can still run workers, report and delete, which it could not if it refused all changes.

    ``repair`` is called with the damage if the store was damaged or removed; raises if even a new store cannot be
    written.
    """

    def __init__(self, repair: Callable[[str], None]) -> None:
        self.owed: list[tuple[str, tuple[Any, ...]]] = []
        self._repair = repair
        self._removed: Callable[[], str] = str

    def open(self, db: sqlite3.Connection, removed: Callable[[], str]) -> None:
        """Use the store's connection; ``removed`` returns how its files were removed, empty if they were not."""
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
                log.critical("the store is full: changes are only in memory", error=str(error))
            self.owed += wanted.listed

    def settle(self) -> None:
        """Write the deferred statements. Raises sqlite3.Error while the disk is full."""
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
    """Whether free space on the disk would resolve an error."""
    return getattr(error, "sqlite_errorcode", 0) in NO_ROOM
