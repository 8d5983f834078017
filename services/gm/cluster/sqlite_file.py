"""GM's SQLite file (``Database``): one GM at a time, a known schema, a higher epoch at each start, no corrupt content.

A file that another GM has open, or that a newer version wrote, is refused (StoreError, with the remedy). A corrupt file
is moved aside, never deleted. The epoch is the number of GM's life: nodes ignore a GM with a lower epoch than before.
So it must not fall when a file is lost: the lock file has a copy, and the epoch of a new file begins at the clock's
seconds. The lock file also has a copy of the secret of MQTT sessions: if it changed, all workers with a session would
have to restart.

Calls are synchronous, and made on the event loop. In WAL mode a write takes some tens of microseconds; only a user's
edit waits for the disk, and edits are rare. Since no call waits for another task, each method is atomic without a lock.
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
from typing import Any, Self

import structlog

from halimede.bus.ordering import is_plausible_epoch
from halimede.errors import HalimedeError
from halimede.system import sqlite

log = structlog.get_logger()

#: version of the schema, and its first tables. Rows of ``meta``: ``epoch``, ``identity`` and ``lost`` (as in
#: ``Database``), ``version`` (the last resource version), ``checks`` (the writes of ``Database.check``)
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
ADDED_TABLES = (
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
#: decimal digits of the epoch in the lock file
EPOCH_WIDTH = 20
#: bits of the identity: it fits into SQLite's signed integers
IDENTITY_BITS = 62
#: name and bytes of the secret from which the session keys of services are derived
SESSIONS, SECRET_BYTES = "sessions", 32


class StoreError(HalimedeError):
    """The store cannot be used; the message has the remedy."""


class Database:
    """GM's SQLite file, open inside ``with``. Entering raises StoreError.

    Attributes:
        path: of the file; its lock file has ``.lock`` appended.
        epoch: number of this run of GM, above those of all runs before.
        identity: of this store: 16 hexadecimal digits, drawn at random when it was made.
        session_secret: 64 hexadecimal digits, drawn at random when the store was made.
        lost: whether an earlier store may have been lost: then a resource that is missing here need not be deleted.
            True for each new store, because an emptied folder cannot be distinguished from an unused one.
        failures: number of writes that failed.
        trouble: why the last write failed; empty after a success.
        put_aside: where a damaged file was moved, and why; empty if there was none.

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
        #: file descriptor of the lock file
        self._lock = -1
        self._connection: sqlite3.Connection | None = None
        #: device and inode of each file of the open store, to notice that one was removed or replaced
        self._files: dict[Path, tuple[int, int]] = {}
        #: why the file must be replaced, and the rows that could still be read from it, by table
        self._damage = ""
        self._salvaged: dict[str, list[tuple[Any, ...]]] = {}

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self._acquire()
            try:
                self._open()
            except BaseException:
                self.__exit__()
                raise
        except OSError as error:
            raise StoreError(_not_opened(self.path, error.strerror)) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None
        os.close(self._lock)

    @property
    def connection(self) -> sqlite3.Connection:
        """The open connection. Raises StoreError while there is none."""
        if self._connection is None:
            raise StoreError(self.trouble or f"the store {self.path} is not open")
        return self._connection

    def read(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query, with ``values`` for its question marks. Raises StoreError."""
        try:
            return self.connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"the store {self.path} cannot be read: {error}") from error

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Commit all writes of the block, or none. Raises StoreError, and undoes the block's writes at any error.

        ``durable``: wait until the writes survive a power cut.
        """
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
        """Return why a write would fail now; empty: it would not.

        After a failed write this tries another one. Otherwise it writes nothing: readiness probes and pages call it.
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
        """Return how the file was damaged since it was opened; empty: it is intact. Blocks: call it in a thread."""
        return sqlite.damage(self.path, self._files) if self._connection else self._damage

    def renew(self, reason: str, fill: Callable[[], None]) -> None:
        """Move a damaged file aside, and begin a new one with the rows that can still be read, except resources.

        ``reason``: the damage. ``fill`` writes resources and other data from memory, in the same transaction. Raises
        StoreError: then the store is closed until the next call.
        """
        self._damage = reason
        try:
            if self._connection:
                self._salvaged = sqlite.salvage(self._connection, {t: COLUMNS[t] for t in COLUMNS if t != "resources"})
                self._connection.close()
                self._connection, self.put_aside = None, ""
            self.put_aside = self.put_aside or f"{sqlite.quarantine(self.path, reason)} ({reason})"
            if not Path(f"{self.path}.lock").exists():
                lock = self._acquire()
                os.close(self._lock)
                self._lock = lock
                self._copy_to_lock()
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
        """Lock the store; return the lock file's descriptor. Raises StoreError if another GM has the lock.

        The kernel releases the lock when this process ends.
        """
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
        """Open the file, or make it, and set the attributes. Raises StoreError."""
        locked_epoch = self._epoch_in_lock()
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
        self.epoch = max(stored if stored and is_plausible_epoch(stored) else _new_store_epoch(), locked_epoch) + 1
        identity = meta.get("identity") or secrets.randbits(IDENTITY_BITS)
        self.identity = f"{identity:016x}"
        stored_secrets = dict(self._connection.execute("SELECT name, value FROM secrets"))
        self.session_secret = stored_secrets.get(SESSIONS) or self._secret_in_lock() or secrets.token_hex(SECRET_BYTES)
        self._copy_to_lock()
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
        """Write epoch, ``lost``, identity and secret, in the caller's transaction."""
        values = [("epoch", self.epoch), ("lost", int(self.lost)), ("identity", int(self.identity, 16))]
        self.connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values)
        self.connection.execute("INSERT OR REPLACE INTO secrets VALUES (?, ?)", (SESSIONS, self.session_secret))

    def raise_epoch(self, above: int) -> None:
        """Raise the epoch above its present value and above another one. Raises StoreError."""
        self.epoch = max(self.epoch, above) + 1
        with self.transaction(durable=True) as connection:
            connection.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (self.epoch,))
        self._copy_to_lock()

    def _copy_to_lock(self) -> None:
        """Write epoch and secret into the lock file, and wait for the disk."""
        # one write of fixed width: the file never has half a number
        os.pwrite(self._lock, f"{self.epoch:0{EPOCH_WIDTH}d}\n{self.session_secret}\n".encode(), 0)
        os.fsync(self._lock)

    def _epoch_in_lock(self) -> int:
        """Return the epoch in the lock file; 0: there is none, or an impossible one."""
        text = os.pread(self._lock, EPOCH_WIDTH, 0)
        return int(text) if text.isdigit() and is_plausible_epoch(int(text)) else 0

    def _secret_in_lock(self) -> str:
        """Return the secret in the lock file; empty: there is none."""
        text = os.pread(self._lock, 2 * SECRET_BYTES, EPOCH_WIDTH + 1).decode("ascii", errors="replace")
        return text if re.fullmatch(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}", text) else ""

    def _connect(self) -> sqlite3.Connection:
        """Open the file with all tables. Raises StoreError for a newer schema, sqlite3.Error for an unusable file."""
        try:
            connection = sqlite.connect(self.path, SCHEMA_VERSION, timeout_s=1.0, isolation_level=None)
        except sqlite.NewerSchemaError as error:
            raise StoreError(
                f"the store {self.path} was written by a newer version (schema {error.version}; this one reads"
                f" {SCHEMA_VERSION}): start that version, or use another folder"
            ) from error
        try:
            tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()[0]
            if sqlite.user_version(connection) == 0 and tables == 0:
                connection.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
            for statement in ADDED_TABLES:
                connection.execute(statement)
            sqlite.check_columns(connection, COLUMNS, "global manager")
        except BaseException:
            connection.close()
            raise
        return connection


def _not_written(path: Path, why: str) -> str:
    """Return the message about a store that cannot be written."""
    return f"the store {path} cannot be written: {why}: free space on its disk, or repair it"


def _not_opened(path: Path, why: object) -> str:
    """Return the message about a store that cannot be opened."""
    return (
        f"the store {path} cannot be opened: {why}: {path.parent} must be a writable folder with free space"
        f", and {path.name} a file: correct it, or give another folder with --store"
    )


def _new_store_epoch() -> int:
    """Return the epoch at which a new store begins: the clock's seconds since 1970.

    Nodes ignore epochs below that of a lost store forever. The seconds are above every epoch so far, because no GM
    starts more than once a second for long. Only new stores use them, so a clock that is set back later has no effect.
    If the clock was set back before, nodes report their higher epoch in a sync, and ``raise_epoch`` corrects it.
    """
    return int(time.time())
