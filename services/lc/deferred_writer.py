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
DISK_FULL_CODES = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
#: most deferred statements; above that a node accepts no more changes
MAX_DEFERRED = 10_000


class Statements:
    """The statements of one transaction, with a cursor's interface."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, tuple[Any, ...]]] = []

    def execute(self, sql: str, values: tuple[Any, ...] = ()) -> None:
        """Record a statement."""
        self.recorded.append((sql, values))


class DeferredWriter:
    """Writes transactions in order: on disk at the end of the block, or deferred while the disk is full.

    An LC that ends before there is space again has an older store: GM's next sync sends the difference, as after any
    other loss. So the node still runs workers, reports and deletes while its disk is full.

    ``repair`` is called with the damage if the store was damaged or removed; raises if even a new store cannot be
    written.
    """

    def __init__(self, repair: Callable[[str], None]) -> None:
        self.deferred: list[tuple[str, tuple[Any, ...]]] = []
        self._repair = repair
        self._removal: Callable[[], str] = str

    def open(self, db: sqlite3.Connection, removal: Callable[[], str]) -> None:
        """Use the store's connection; ``removal`` returns how the store's files were removed, empty if they exist."""
        self._db, self._removal = db, removal

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Statements]:
        """Collect statements, and write them when the block ends. Raises sqlite3.Error."""
        statements = Statements()
        yield statements
        try:
            if removal := self._removal():
                self._repair(removal)
            self._write(statements.recorded)
        except sqlite3.DatabaseError as error:
            if sqlite.is_corrupt(error):
                self._repair(str(error))
                self._write(statements.recorded)
                return
            if not is_disk_full(error) or len(self.deferred) + len(statements.recorded) > MAX_DEFERRED:
                raise
            if not self.deferred:
                log.critical("the store is full: changes are only in memory", error=str(error))
            self.deferred += statements.recorded

    def settle(self) -> None:
        """Write the deferred statements. Raises sqlite3.Error while the disk is full."""
        if self.deferred:
            self._write([])

    def _write(self, statements: list[tuple[str, tuple[Any, ...]]]) -> None:
        with self._db:
            for sql, values in [*self.deferred, *statements]:
                self._db.execute(sql, values)
        if self.deferred:
            log.info("store writable again", statements=len(self.deferred))
        self.deferred.clear()


def is_disk_full(error: sqlite3.Error) -> bool:
    """Whether free space on the disk would resolve an error."""
    return getattr(error, "sqlite_errorcode", 0) in DISK_FULL_CODES
