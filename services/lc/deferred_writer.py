"""Writes transactions of the node's SQLite store (``DeferredWriter``); on a full disk it defers them."""

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
    """The statements of one transaction, recorded to be executed later."""

    def __init__(self) -> None:
        #: SQL with its values, in order
        self.recorded: list[tuple[str, tuple[Any, ...]]] = []

    def execute(self, sql: str, values: tuple[Any, ...] = ()) -> None:
        """Record a statement; ``values``: for its question marks."""
        self.recorded.append((sql, values))


class DeferredWriter:
    """Writes transactions in order: on disk at the end of the block, or deferred while the disk is full.

    An LC that ends before there is space again has an older store: GM's next sync sends the difference, as after any
    other loss. So the node still runs workers, reports and deletes while its disk is full.

    ``repair`` is called with the damage if the store was damaged or removed, and raises sqlite3.Error if even a new
    store cannot be written. Call ``open`` before the first transaction.
    """

    def __init__(self, repair: Callable[[str], None]) -> None:
        #: statements that are not on disk yet, with their values
        self.deferred: list[tuple[str, tuple[Any, ...]]] = []
        self._repair = repair
        self._removal: Callable[[], str] = str  # before ``open``: returns an empty text

    def open(self, db: sqlite3.Connection, removal: Callable[[], str]) -> None:
        """Use the store's connection. ``removal``: returns how the store's files were removed; empty: they exist."""
        self._db, self._removal = db, removal

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Statements]:
        """Collect the statements of the block, and write or defer them when it ends without an error.

        A damaged or removed store is replaced first (``repair``). Raises sqlite3.Error if they cannot be written for
        another reason than a full disk, or if too many are deferred.
        """
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
        """Write all deferred statements, and then these, in one transaction. Raises sqlite3.Error."""
        with self._db:
            for sql, values in [*self.deferred, *statements]:
                self._db.execute(sql, values)
        if self.deferred:
            log.info("store writable again", statements=len(self.deferred))
        self.deferred.clear()


def is_disk_full(error: sqlite3.Error) -> bool:
    """Whether free space on the disk would resolve an error."""
    return getattr(error, "sqlite_errorcode", 0) in DISK_FULL_CODES
