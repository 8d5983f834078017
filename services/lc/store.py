"""The node's persistent state in one SQLite file (``NodeStore``): enough to start all without GM and broker.

A resource has a uid (its life) and a generation (version of its spec). A tombstone is the record that GM has deleted a
uid. Resources are kept in memory as well, because every decision reads them. An unreadable file is moved aside and not
repaired: GM fills an empty store again after the node's next sync, and until then no unknown worker is stopped.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
import structlog

from halimede.bus.ordering import MAX_INTEGER, SequenceNumber, is_plausible_epoch
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.messages import ResourceBody
from halimede.messages.control import WorkerRole
from halimede.names import Key
from halimede.system import sqlite
from services.lc.deferred_writer import DeferredWriter, Statements
from services.lc.paths import WORKERS, Worker
from services.lc.pods import store as pod_rows
from services.lc.pods.store import PodRows

log = structlog.get_logger()

#: version of the schema
VERSION = 1
#: the columns that each table must have. farewells: resources whose report must still be cleared; said: the order of
#: GM's messages
COLUMNS = {
    "resources": "key, uid, generation, body",
    "tombstones": "number, uid, generation",
    "farewells": "key",
    "processes": "worker, record",
    "numbers": "name, value",
    "said": "key, epoch, number",
    "session_keys": "key, value",
    **pod_rows.COLUMNS,
}
SCHEMA = """
CREATE TABLE IF NOT EXISTS resources (key TEXT PRIMARY KEY, uid TEXT, generation INTEGER, body BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tombstones
    (number INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT UNIQUE, generation INTEGER);
CREATE TABLE IF NOT EXISTS farewells (key TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS processes (worker TEXT PRIMARY KEY, record BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS numbers (name TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS said (key TEXT PRIMARY KEY, epoch INTEGER, number INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS session_keys (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
"""
#: the sequence number of a message without one: earlier than any other
UNKNOWN = SequenceNumber()
#: most tombstones; then the oldest are dropped. Their age is not used, because clocks may be wrong
MAX_TOMBSTONES = 10_000
#: numbers of connections that are reserved with one write
EPOCHS_AT_ONCE = 100
#: names of the stored numbers that are epochs
EPOCHS = frozenset({"gm epoch", "presence epoch"})
#: bits of the identity: it fits into SQLite's signed integers
IDENTITY_BITS = 62
#: most resources whose last message is remembered; then the oldest are dropped
MAX_ORDERED = 10_000
#: statement: acknowledged data must survive a power cut
WAIT_FOR_DISK = "PRAGMA synchronous = FULL"


class MessageOrder:
    """The number of GM's last message about each resource, by which a late, older message is recognised.

    A client or broker may repeat an insert late. Without the numbers, its uid, which this node may never have stored,
    would replace the newer resource. The numbers are of GM's latest epoch (number of GM's life): messages of an earlier
    one are ignored anyway.
    """

    def __init__(self) -> None:
        self._epoch = 0
        #: the number of the last message about each resource, the oldest message first
        self._numbers: dict[Key, int] = {}

    def load(self, db: sqlite3.Connection) -> None:
        """Load the stored numbers."""
        stored = db.execute("SELECT key, epoch, number FROM said ORDER BY epoch, number")
        rows = [row for row in stored if is_plausible_epoch(row[1])]
        self._epoch = rows[-1][1] if rows else 0
        self._numbers = {Key.parse(key): number for key, epoch, number in rows if epoch == self._epoch}

    def fill(self, db: sqlite3.Connection) -> None:
        """Write all numbers into a new file, in the caller's transaction."""
        rows = [(str(key), self._epoch, number) for key, number in self._numbers.items()]
        db.executemany("REPLACE INTO said VALUES (?, ?, ?)", rows)

    def has_later(self, key: Key, stamp: SequenceNumber) -> bool:
        """Whether GM has sent a later message about a resource than the one with ``stamp``."""
        return stamp.is_overtaken_by(SequenceNumber(self._epoch, self._numbers.get(key, 0)))

    def record(self, db: Statements, key: Key, stamp: SequenceNumber) -> None:
        """Record the sequence number of GM's last message about a resource, in the caller's transaction."""
        if stamp.epoch != self._epoch:
            db.execute("DELETE FROM said")
            self._epoch, self._numbers = stamp.epoch, {}
        db.execute("REPLACE INTO said VALUES (?, ?, ?)", (str(key), stamp.epoch, stamp.number))
        self._numbers.pop(key, None)
        self._numbers[key] = stamp.number
        if len(self._numbers) > MAX_ORDERED:
            oldest = next(iter(self._numbers))
            del self._numbers[oldest]
            db.execute("DELETE FROM said WHERE key = ?", (str(oldest),))


@dataclass(frozen=True, slots=True)
class ResourceVersion:
    """A version of a resource: the uid of its life, and the generation of its spec."""

    uid: str
    generation: int


@dataclass(frozen=True, slots=True)
class NodeResource:
    """A resource that this node holds, as GM has sent it.

    Attributes:
        key: plural, namespace and name.
        uid: of its life.
        generation: of its spec.
        body: the resource as plain data, not validated.
        session_key: of a service, the secret of its MQTT sessions; empty: it has none.

    """

    key: Key
    uid: str
    generation: int
    body: ResourceBody
    session_key: str = field(default="", repr=False)

    @property
    def identity(self) -> ResourceVersion:
        """Its version: uid and generation."""
        return ResourceVersion(self.uid, self.generation)


class ProcessRecord(msgspec.Struct, frozen=True):
    """A worker's process, by which a later LC finds it again: pid, boot and start ticks identify it.

    Attributes:
        namespace, name: of the worker.
        service: key of its service, as text.
        uid: of the service.
        role: of the worker.
        spec_hash: digest of the ``ProcessSpec`` that it runs.
        pid: process id.
        ticks: its start in clock ticks since the boot.
        boot: identifier of the machine's boot.
        http: URL of its health, by its first report: with it a later LC notices that it hangs; empty: unknown.
        period_s: seconds between its reports, by its first report; 0: unknown.
        code: digests of the Python files that it was started with, by path.

    """

    namespace: str
    name: str
    service: str
    uid: str
    role: WorkerRole
    spec_hash: str
    pid: int
    ticks: int
    boot: str
    http: str = ""
    period_s: float = 0.0
    code: dict[str, str] = {}

    @property
    def worker(self) -> Worker:
        """The name of the worker."""
        return Worker(self.namespace, self.name)


class NodeStore:
    """The node's SQLite file, open inside ``with``. Entering raises HalimedeError if it cannot be used.

    Use it from the event loop only. Each write is on disk when the call returns, or is deferred while the disk is full:
    then it is in memory, and written with the next write that succeeds. Writes raise sqlite3.Error.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: 16 hexadecimal digits, drawn at random when the file was made
        self.identity = ""
        #: where a damaged file was moved, and why, until that is reported; empty: none was
        self.put_aside = ""
        self.message_order = MessageOrder()
        self.pods = PodRows()
        self._writer = DeferredWriter(self._renew)
        #: device and inode of each file of the open store, to notice that one was removed
        self._files: dict[Path, tuple[int, int]] = {}
        #: rows that could still be read from a file that must be replaced, by table
        self._salvaged: dict[str, list[tuple[Any, ...]]] = {}
        #: why the store must be replaced, if it must, and where it was moved
        self._damage = self._aside = ""
        self._complete = False
        #: stored numbers by name, and generations of tombstones by uid, the oldest first; with deferred writes
        self._numbers: dict[str, int] = {}
        self._tombstones: dict[str, int] = {}
        self._resources: dict[Key, NodeResource] = {}
        self._uncleared: set[Key] = set()
        #: the number of the last connection, and the highest one that is reserved
        self._epoch = self._reserved = 0

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._open()
        except (sqlite3.DatabaseError, msgspec.DecodeError, InvalidFieldError, ValueError, TypeError) as error:
            if isinstance(error, sqlite3.OperationalError) and not sqlite.is_corrupt(error):
                # not damaged: no space, no permission, in use
                raise HalimedeError(f"the store {self.path} cannot be used: {error}") from error
            aside = sqlite.quarantine(self.path, str(error))
            self.put_aside = f"the store was damaged ({error}) and moved to {aside}"
            log.critical("store quarantined", path=str(aside), reason=str(error))
            self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    @property
    def complete(self) -> bool:
        """Whether the store has all desired resources: False after a loss of the file, until GM has sent them.

        It is stored, so it holds across restarts of the LC. To set it writes to the file.
        """
        return self._complete

    @complete.setter
    def complete(self, complete: bool) -> None:
        self._complete = complete
        self._set_number("complete", int(complete))

    @property
    def size(self) -> int:
        """The bytes of the file, without its write-ahead log; 0: it was removed."""
        return self.path.stat().st_size if self.path.exists() else 0

    def check(self) -> None:
        """Write deferred writes, and raise sqlite3.Error if the store cannot be written.

        Without deferred writes this writes nothing, because it is called every few seconds, and an edge node's disk may
        be flash. A disk that fails, or a user's quota, is noticed at the next write.
        """
        if removal := self._removal():
            raise sqlite.corruption(removal)
        self.settle()
        if obstacle := sqlite.disk_obstacle(self.path):
            raise sqlite3.OperationalError(obstacle)

    def trouble(self) -> str:
        """Replace a damaged file from memory; return a problem that an operator must solve, empty: there is none."""
        try:
            if damage := self._damage or sqlite.damage(self.path, self._files):
                self._renew(damage)
            self.check()
        except sqlite3.Error as error:
            return f"its store {self.path} cannot be written: {error}"
        return sqlite.quarantine_notice(self.path)

    def settle(self) -> None:
        """Write what was deferred. Raises sqlite3.Error while there is no space."""
        self._writer.settle()

    # --- resources ---------------------------------------------------------------------------------------------

    @property
    def resources(self) -> Mapping[Key, NodeResource]:
        """All resources that this node holds, by key."""
        return self._resources

    def put(self, new: NodeResource, stamp: SequenceNumber = UNKNOWN) -> None:
        """Store a resource in place of an earlier one of its name; an earlier uid gets a tombstone.

        Its report need not be cleared any more. ``stamp``: the sequence number of GM's message.
        """
        old = self._resources.get(new.key)
        with self._writer.transaction() as statements:
            self.message_order.record(statements, new.key, stamp)
            if old and old.uid != new.uid:
                self._put_tombstone(statements, ResourceVersion(old.uid, MAX_INTEGER))
            body = msgspec.json.encode(new.body)
            statements.execute(
                "REPLACE INTO resources VALUES (?, ?, ?, ?)", (str(new.key), new.uid, new.generation, body)
            )
            if new.session_key != (old.session_key if old else ""):
                statements.execute("REPLACE INTO session_keys VALUES (?, ?)", (str(new.key), new.session_key))
            if new.key in self._uncleared:
                statements.execute("DELETE FROM farewells WHERE key = ?", (str(new.key),))
        self._resources[new.key] = new
        self._uncleared.discard(new.key)

    def put_tombstone(self, version: ResourceVersion, key: Key, stamp: SequenceNumber = UNKNOWN) -> None:
        """Store that GM has deleted a uid up to a generation.

        ``key``: the resource that GM's message names. ``stamp``: the sequence number of the message.
        """
        with self._writer.transaction() as statements:
            self.message_order.record(statements, key, stamp)
            self._put_tombstone(statements, version)

    def drop(self, key: Key) -> None:
        """Drop a stored resource, and store that its report must be cleared."""
        with self._writer.transaction() as statements:
            statements.execute("DELETE FROM resources WHERE key = ?", (str(key),))
            if self._resources[key].session_key:
                statements.execute("DELETE FROM session_keys WHERE key = ?", (str(key),))
            statements.execute("REPLACE INTO farewells VALUES (?)", (str(key),))
        del self._resources[key]
        self._uncleared.add(key)

    def latest_tombstones(self, most: int) -> list[str]:
        """Return the uids that GM has deleted last, at most ``most``, the oldest first."""
        return list(self._tombstones)[-most:]

    def has_tombstone(self, uid: str) -> bool:
        """Whether GM has deleted a uid, in all generations or up to one."""
        return uid in self._tombstones

    def tombstone(self, uid: str) -> int | None:
        """Return the generation up to which GM has deleted a uid; None: it has not."""
        return self._tombstones.get(uid)

    # --- reports that are to be cleared ------------------------------------------------------------------------

    @property
    def uncleared(self) -> Collection[Key]:
        """The resources, no longer stored, whose retained report must still be cleared."""
        return self._uncleared

    def add_uncleared(self, key: Key) -> None:
        """Store that the report on a resource, which is no longer stored, must be cleared."""
        with self._writer.transaction() as statements:
            statements.execute("REPLACE INTO farewells VALUES (?)", (str(key),))
        self._uncleared.add(key)

    def remove_uncleared(self, key: Key) -> None:
        """Store that the report on a resource was cleared."""
        with self._writer.transaction() as statements:
            statements.execute("DELETE FROM farewells WHERE key = ?", (str(key),))
        self._uncleared.discard(key)

    # --- processes ---------------------------------------------------------------------------------------------

    def processes(self) -> list[ProcessRecord]:
        """Return the stored worker processes, which may still run."""
        rows = self._db.execute("SELECT record FROM processes").fetchall()
        return [msgspec.json.decode(row[0], type=ProcessRecord) for row in rows]

    def put_process(self, record: ProcessRecord) -> None:
        """Store a process, so that a later LC finds it, in place of an earlier record of its worker."""
        with self._writer.transaction() as statements:
            statements.execute(
                "REPLACE INTO processes VALUES (?, ?)", (str(record.worker), msgspec.json.encode(record))
            )

    def process_ended(self, worker: Worker) -> None:
        """Drop the record of a worker's process."""
        with self._writer.transaction() as statements:
            statements.execute("DELETE FROM processes WHERE worker = ?", (str(worker),))

    # --- epochs ------------------------------------------------------------------------------------------------

    @property
    def gm_epoch(self) -> int:
        """The highest epoch of GM in messages to this node; 0: there was none."""
        return self._number("gm epoch")

    def record_gm_epoch(self, epoch: int) -> None:
        """Store an epoch of GM; a lower one is ignored."""
        if epoch > self.gm_epoch:
            self._set_number("gm epoch", epoch)

    def next_presence_epoch(self) -> int:
        """Return the number of the next connection: higher than any that this node has used.

        An empty store begins at the clock's seconds since 1970, so that it does not fall behind a lost one. Numbers are
        reserved in blocks, so that a node that tries to connect for days does not write each time.
        """
        if self._epoch >= self._reserved:
            self._epoch = max(self._reserved, self._number("presence epoch") or int(time.time()))
            self._reserved = self._epoch + EPOCHS_AT_ONCE
            try:
                self._set_number("presence epoch", self._reserved)
            except sqlite3.Error as error:  # with a full disk the node must still announce itself
                log.warning("presence epoch not written", error=str(error))
        self._epoch += 1
        return self._epoch

    # --- inside ------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Open the file, or make it, and read it. Raises sqlite3.Error or another error for an unreadable file."""
        self._connect()
        try:
            self._load()
        except BaseException:
            self._db.close()
            raise

    def _connect(self) -> None:
        """Open the file with all tables. Raises HalimedeError for one of a newer version, sqlite3.Error."""
        try:
            self._db = sqlite.connect(self.path, VERSION, timeout_s=5, isolation_level="DEFERRED")
        except sqlite.NewerSchemaError as error:
            raise HalimedeError(f"{self.path} was written by a newer halimede: install that version") from error
        try:
            self._db.execute(WAIT_FOR_DISK)
            self._db.executescript(SCHEMA + pod_rows.SCHEMA)
            sqlite.check_columns(self._db, COLUMNS, "node")
            if sqlite.user_version(self._db) == 0:
                first = not self.put_aside and not (self.path.parent / WORKERS).exists()
                numbers = [("identity", secrets.randbits(IDENTITY_BITS)), ("complete", int(first))]
                with self._db:
                    self._db.executemany("REPLACE INTO numbers VALUES (?, ?)", numbers)
                self._db.execute(f"PRAGMA user_version = {VERSION}")
            self._files = sqlite.files(self.path)
        except BaseException:
            self._db.close()
            raise

    def _load(self) -> None:
        """Read the whole file into memory."""
        numbers = {n: int(value) for n, value in self._db.execute("SELECT name, value FROM numbers")}
        self._numbers = {n: value for n, value in numbers.items() if n not in EPOCHS or is_plausible_epoch(value)}
        self._writer.open(self._db, self._removal)
        self.identity = f"{self._number('identity'):016x}"
        self._complete = bool(self._number("complete"))
        rows = self._db.execute("SELECT key, uid, generation, body FROM resources").fetchall()
        session_keys = dict(self._db.execute("SELECT key, value FROM session_keys"))
        resources = [
            NodeResource(Key.parse(key), uid, generation, msgspec.json.decode(body), session_keys.get(key, ""))
            for key, uid, generation, body in rows
        ]
        self._resources = {resource.key: resource for resource in resources}
        tombstones = self._db.execute("SELECT uid, generation FROM tombstones ORDER BY number")
        self._tombstones = {uid: int(generation) for uid, generation in tombstones}
        self.message_order.load(self._db)
        self.pods.open(self._db)
        self._uncleared = {Key.parse(row[0]) for row in self._db.execute("SELECT key FROM farewells")}

    def _removal(self) -> str:
        """Return that a file of the store was removed or replaced; empty: none was."""
        return "" if self._files.items() <= sqlite.files(self.path).items() else sqlite.REMOVED

    def _renew(self, damage: str) -> None:
        """Move a damaged file aside, and write all state in memory into a new one. Raises sqlite3.Error."""
        try:
            if not self._damage:
                self._damage, self._aside = damage, ""
                self._salvaged = sqlite.salvage(self._db, {t: COLUMNS[t] for t in ("processes", *pod_rows.COLUMNS)})
                self._db.close()
            self._aside = self._aside or str(sqlite.quarantine(self.path, self._damage))
            self._connect()
            with self._db:
                sqlite.insert(self._db, self._salvaged)
                self._fill(self._db)
        except (OSError, HalimedeError) as error:
            text = f"it was damaged ({self._damage}), and no new one can be created: {error}"
            raise sqlite3.OperationalError(text) from error
        except sqlite3.Error:
            self._db.close()
            raise
        self._writer.open(self._db, self._removal)
        self.pods.open(self._db)
        log.critical("store renewed", path=str(self.path), damage=self._damage, put_aside=self._aside)
        self.put_aside = f"the store was damaged ({self._damage}) and moved to {self._aside}"
        self._damage, self._salvaged = "", {}

    def _fill(self, db: sqlite3.Connection) -> None:
        """Write all state in memory into a new file, in the caller's transaction."""
        resources = [(str(r.key), r.uid, r.generation, msgspec.json.encode(r.body)) for r in self._resources.values()]
        db.executemany("REPLACE INTO resources VALUES (?, ?, ?, ?)", resources)
        session_keys = [(str(r.key), r.session_key) for r in self._resources.values()]
        db.executemany("REPLACE INTO session_keys VALUES (?, ?)", session_keys)
        db.executemany("REPLACE INTO tombstones (uid, generation) VALUES (?, ?)", list(self._tombstones.items()))
        db.executemany("REPLACE INTO farewells VALUES (?)", [(str(key),) for key in self._uncleared])
        db.executemany("REPLACE INTO numbers VALUES (?, ?)", list(self._numbers.items()))
        self.message_order.fill(db)

    def _put_tombstone(self, statements: Statements, version: ResourceVersion) -> None:
        """Write a tombstone as the newest one; of two generations of a uid the higher one stays."""
        generation = max(version.generation, self.tombstone(version.uid) or 0)
        statements.execute("REPLACE INTO tombstones (uid, generation) VALUES (?, ?)", (version.uid, generation))
        statements.execute(
            "DELETE FROM tombstones WHERE number <= (SELECT max(number) FROM tombstones) - ?", (MAX_TOMBSTONES,)
        )
        self._tombstones.pop(version.uid, None)
        self._tombstones[version.uid] = generation
        if len(self._tombstones) > MAX_TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]

    def _number(self, name: str) -> int:
        """Return a stored number; 0: it is not stored."""
        return self._numbers.get(name, 0)

    def _set_number(self, name: str, value: int) -> None:
        """Store a number."""
        with self._writer.transaction() as statements:
            statements.execute("REPLACE INTO numbers VALUES (?, ?)", (name, value))
        self._numbers[name] = value
