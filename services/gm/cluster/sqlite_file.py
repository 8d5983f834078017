"""Opens GM's SQLite file: one GM at a time, a known schema, a higher epoch at each start, no corrupt content.

Refuses a file that another GM has open or that a newer version wrote (StoreError, with the remedy). A corrupt file is
moved aside, never deleted. The lock file has a copy of the epoch, and the epoch of a new store starts from the time, so
that the epoch never falls when a store is lost, quarantined or removed: nodes would ignore a lower one. It also has a
copy of the secret of the sessions: with another one, workers of a service that continues would have to restart.

Calls are synchronous and stay on the event loop. In WAL mode a write takes some tens of microseconds; only a user's
edit waits for the disk, and edits are rare. In return each method is atomic without a lock.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from halimede.bus.ordering import plausible_epoch
from halimede.errors import HalimedeError
from halimede.system import sqlite

log = structlog.get_logger()

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE resources (
    plural TEXT, namespace TEXT, name TEXT, body BLOB NOT NULL, status BLOB,
    PRIMARY KEY (plural, namespace, name)
) WITHOUT ROWID;
CREATE TABLE reports (
    uid TEXT, node TEXT, plural TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    live INTEGER NOT NULL, edge INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (uid, node)
) WITHOUT ROWID;
CREATE TABLE nodes (name TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, time TEXT NOT NULL, type TEXT NOT NULL, reason TEXT NOT NULL,
    about TEXT NOT NULL, message TEXT NOT NULL, count INTEGER NOT NULL
);
CREATE INDEX events_about ON events (about, sequence);
"""
#: tables that were added later; older versions ignore them
ADDED = (
    "CREATE TABLE IF NOT EXISTS tombstones (uid TEXT PRIMARY KEY, generation INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS drained (name TEXT PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)
#: the columns that each table must have
COLUMNS = {
    "meta": "key, value",
    "resources": "plural, namespace, name, body, status",
    "reports": "uid, node, plural, namespace, name, live, edge, body",
    "nodes": "name, body",
    "events": "sequence, time, type, reason, about, message, count",
    "tombstones": "uid, generation",
    "drained": "name",
    "secrets": "name, value",
}
EPOCH_WIDTH = 20
#: fits into SQLite's signed integers
IDENTITY_BITS = 62
#: the secret from which the session keys of services are derived
SESSIONS, SECRET_BYTES = "sessions", 32


class StoreError(HalimedeError):
    """The store cannot be used; the message has the remedy."""


class Database:
    """The open file.

    Attributes:
        epoch: of this run.
        identity: of this store, drawn at random when it was made.
        session_secret: of this store, drawn at random when it was made.
        lost: whether an earlier store may have been lost: then a resource that is missing here need not be deleted.
            True for each new store, because an emptied folder cannot be distinguished from an unused one.
        failures: number of writes that failed; ``trouble`` is the reason of the last failure, empty after a success.
        put_aside: where a damaged file was moved at this start, and why; empty if there was none.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.epoch = 0
        self.identity = ""
        self.session_secret = ""
        self.lost = False
        self.put_aside = ""
        self.failures = 0
        self.trouble = ""
        self._lock = -1
        self._connection: sqlite3.Connection | None = None
        self._files: dict[Path, tuple[int, int]] = {}
        #: why the file must be replaced, and the rows that could still be read from it
        self._reason = ""
        self._salvaged: dict[str, list[tuple[Any, ...]]] = {}

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self._acquire()
            try:
                self._open()
            except BaseException:
                self.__exit__(None, None, None)
                raise
        except OSError as error:
            raise StoreError(_not_opened(self.path, error.strerror)) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None
        os.close(self._lock)

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection. Raises StoreError while there is none."""
        if self._connection is None:
            raise StoreError(self.trouble or f"the store {self.path} is not open")
        return self._connection

    def read(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query. Raises StoreError."""
        try:
            return self.connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"the store {self.path} cannot be read: {error}") from error

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Commit all or nothing. ``durable`` waits for the disk: a confirmed edit must survive a power cut."""
        connection = self.connection
        try:
            # outside of a transaction the pragma takes effect at once and costs a microsecond
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            if durable and not self._files.items() <= sqlite.files(self.path).items():
                raise sqlite3.OperationalError(f"{sqlite.REMOVED}: try again")
            self.trouble = ""
        except sqlite3.Error as error:
            self.failures += 1
            self.trouble = _not_written(self.path, str(error))
            raise StoreError(self.trouble) from error

    def check(self) -> str:
        """Return why a write would fail now, empty if it would not.

        It writes only after a write that failed, to see whether that is mended: readiness probes and pages call it.
        """
        try:
            obstacle = sqlite.disk_obstacle(self.path) if self._connection else ""
        except sqlite3.OperationalError as error:
            obstacle = str(error)
        if obstacle:
            return _not_written(self.path, obstacle)
        if self.trouble:
            with suppress(StoreError), self.transaction() as connection:
                # a new value each time: SQLite skips a write that changes nothing
                connection.execute(
                    "INSERT INTO meta VALUES ('checks', 1) ON CONFLICT (key) DO UPDATE SET value = value + 1"
                )
        return self.trouble

    def damage(self) -> str:
        """Return how the store was damaged since it was opened, empty if it is intact. Blocks: call it in a thread."""
        return sqlite.damage(self.path, self._files) if self._connection else self._reason

    def renew(self, reason: str, fill: Callable[[], None]) -> None:
        """Move a damaged store aside, and begin a new one with the rows that can still be read.

        ``fill`` writes the data that is known from memory, in the same transaction. Raises StoreError: then there is no
        store until the next attempt.
        """
        self._reason = reason
        try:
            if self._connection:
                self._salvaged = sqlite.readable(self._connection, {t: COLUMNS[t] for t in COLUMNS if t != "resources"})
                self._connection.close()
                self._connection, self.put_aside = None, ""
            self.put_aside = self.put_aside or f"{sqlite.quarantine(self.path, reason)} ({reason})"
            if not Path(f"{self.path}.lock").exists():
                lock = self._acquire()
                os.close(self._lock)
                self._lock = lock
                self._keep_spare()
            self._connection = self._connect()
            self._files = {}
            with self.transaction(durable=True) as connection:
                sqlite.insert(connection, self._salvaged)
                fill()
            self._files = sqlite.files(self.path)
            self._salvaged = {}
        except (sqlite3.Error, OSError, StoreError) as error:
            if self._connection:
                self._connection.close()
                self._connection = None
            self.trouble = f"the store {self.path} was damaged ({reason}), and no new one can be created: {error}"
            raise StoreError(self.trouble) from error

    def _acquire(self) -> int:
        """Lock the store until this process ends; the kernel releases the lock in any case."""
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise StoreError(
                f"another global manager uses the store {self.path}: stop it, or give this one another folder"
                " with --store"
            ) from error
        return lock

    def _open(self) -> None:
        spare = self._spare_epoch()
        try:
            self._connection = self._connect()
        except sqlite3.DatabaseError as error:
            if not sqlite.is_corrupt(error):
                raise StoreError(_not_opened(self.path, error)) from error
            moved = sqlite.quarantine(self.path, str(error))
            log.critical("store quarantined", store=str(self.path), moved_to=str(moved), error=str(error))
            self.put_aside = f"{moved} ({error})"
            self._connection = self._connect()
        meta = dict(self._connection.execute("SELECT key, value FROM meta"))
        stored = meta.get("epoch", 0)
        self.lost = bool(meta.get("lost", 0)) or stored == 0
        self.epoch = max(stored if stored and plausible_epoch(stored) else _new_floor(), spare) + 1
        identity = meta.get("identity") or secrets.randbits(IDENTITY_BITS)
        self.identity = f"{identity:016x}"
        stored_secrets = dict(self._connection.execute("SELECT name, value FROM secrets"))
        spare_secret = self._spare_secret()
        self.session_secret = stored_secrets.get(SESSIONS) or spare_secret or secrets.token_hex(SECRET_BYTES)
        self._keep_spare()
        try:
            with self.transaction(durable=True):
                self.write_meta()
        except StoreError as error:
            if not stored:
                raise
            # the disk is full: the lock file has the epoch, and its space is allocated
            log.critical("store not writable", store=str(self.path), error=str(error))
        self._files = sqlite.files(self.path)

    def write_meta(self) -> None:
        """Write epoch, identity and secret; in the caller's transaction."""
        values = [("epoch", self.epoch), ("lost", int(self.lost)), ("identity", int(self.identity, 16))]
        self.connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values)
        self.connection.execute("INSERT OR REPLACE INTO secrets VALUES (?, ?)", (SESSIONS, self.session_secret))

    def raise_epoch(self, above: int) -> None:
        """Raise the epoch of this run above ``above``."""
        self.epoch = max(self.epoch, above) + 1
        with self.transaction(durable=True) as connection:
            connection.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (self.epoch,))
        self._keep_spare()

    def _keep_spare(self) -> None:
        # one write of fixed width: the file never has half a number
        os.pwrite(self._lock, f"{self.epoch:0{EPOCH_WIDTH}d}\n{self.session_secret}\n".encode(), 0)
        os.fsync(self._lock)

    def _spare_epoch(self) -> int:
        text = os.pread(self._lock, EPOCH_WIDTH, 0)
        return int(text) if text.isdigit() and plausible_epoch(int(text)) else 0

    def _spare_secret(self) -> str:
        text = os.pread(self._lock, 2 * SECRET_BYTES, EPOCH_WIDTH + 1).decode("ascii", errors="replace")
        return text if re.fullmatch(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}", text) else ""

    def _connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite.connect(self.path, SCHEMA_VERSION, timeout_s=1.0, isolation_level=None)
        except sqlite.NewerSchemaError as error:
            raise StoreError(
                f"the store {self.path} was written by a newer version (schema {error.found}; this one reads"
                f" {SCHEMA_VERSION}): start that version, or use another folder"
            ) from error
        try:
            tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()[0]
            if sqlite.user_version(connection) == 0 and tables == 0:
                connection.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
            for statement in ADDED:
                connection.execute(statement)
            sqlite.check_columns(connection, COLUMNS, "global manager")
        except BaseException:
            connection.close()
            raise
        return connection


def _not_written(path: Path, why: str) -> str:
    return f"the store {path} cannot be written: {why}: free space on its disk, or repair it"


def _not_opened(path: Path, why: object) -> str:
    return (
        f"the store {path} cannot be opened: {why}: {path.parent} must be a writable folder with free space"
        f", and {path.name} a file: correct it, or give another folder with --store"
    )


def _new_floor() -> int:
    """Return the first epoch of a new store: nodes may have followed a lost one, and ignore lower epochs forever.

    The time in seconds is above every epoch so far, because no GM starts more than once a second for long. Only new
    stores use it, so a clock that is set back later has no effect. If the clock was set back before, nodes report their
    higher epoch in a sync, and ``raise_epoch`` corrects it.
    """
    return int(time.time())
