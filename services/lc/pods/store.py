"""The counts of pods on this node, across restarts of the LC: rows in the node's SQLite store (``PodRows``).

There is one row for each pod of a service's uid whose name is remembered, and one for each role with the sum of the
counts of other pods, which were retired.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator

import msgspec

from halimede.messages import TaskInfo, WorkerInfo
from halimede.messages.control import WorkerRole as Role
from halimede.names import Key
from services.lc.paths import Worker

#: the columns that each table must have
COLUMNS = {"pods": "service, uid, worker, number, record", "retired": "service, uid, role, counts"}
SCHEMA = """
CREATE TABLE IF NOT EXISTS pods
    (service TEXT, uid TEXT, worker TEXT, number INTEGER, record BLOB, PRIMARY KEY (service, uid, worker))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS retired
    (service TEXT, uid TEXT, role TEXT, counts BLOB, PRIMARY KEY (service, uid, role)) WITHOUT ROWID;
"""


class PodRecord(msgspec.Struct, frozen=True):
    """A remembered pod.

    Attributes:
        info: its last report, with its counts.
        has_ended: whether it has ended, or is silent.
        earlier_starts: start times of its earlier counts, which its folder lost when it was made anew. A late report
            with one of these times is recognised as old.

    """

    info: WorkerInfo
    has_ended: bool = msgspec.field(default=False, name="gone")
    earlier_starts: tuple[str, ...] = msgspec.field(default=(), name="ended")


#: a service's key, and the uid of its life
Owner = tuple[Key, str]


class PodRows:
    """The rows. Call ``open`` first. Each write is on disk when the call returns, or raises sqlite3.Error."""

    def __init__(self) -> None:
        #: the rows as ``open`` has read them: all pods, the one whose report is the oldest first, and the sums by role
        self.loaded: list[tuple[Owner, Worker, PodRecord]] = []
        self.loaded_sums: list[tuple[Owner, Role, TaskInfo]] = []

    def open(self, db: sqlite3.Connection) -> None:
        """Read all rows of the store. A damaged store raises sqlite3.Error, ValueError or InvalidFieldError."""
        self._db = db
        self.loaded, self.loaded_sums = list(self._read_pods()), list(self._read_sums())

    def _read_pods(self) -> Iterator[tuple[Owner, Worker, PodRecord]]:
        """Yield the stored pods, the one whose report is the oldest first."""
        rows = self._db.execute("SELECT service, uid, worker, record FROM pods ORDER BY number").fetchall()
        for service, uid, worker, record in rows:
            namespace, _, name = worker.partition("/")
            yield (Key.parse(service), uid), Worker(namespace, name), msgspec.json.decode(record, type=PodRecord)

    def _read_sums(self) -> Iterator[tuple[Owner, Role, TaskInfo]]:
        """Yield the stored sums of retired pods, by role."""
        for service, uid, role, counts in self._db.execute("SELECT service, uid, role, counts FROM retired").fetchall():
            yield (Key.parse(service), uid), role, msgspec.json.decode(counts, type=TaskInfo)

    def write(
        self, records: Iterable[tuple[Owner, Worker, PodRecord]], sums: Iterable[tuple[Owner, Role, TaskInfo]] = ()
    ) -> None:
        """Store the last reports of pods, the latest last, and sums of retired counts that have changed."""
        with self._db:
            (number,) = self._db.execute("SELECT coalesce(max(number), 0) FROM pods").fetchone()
            rows = [
                (str(owner[0]), owner[1], str(worker), number + offset, msgspec.json.encode(record))
                for offset, (owner, worker, record) in enumerate(records, 1)
            ]
            self._db.executemany("REPLACE INTO pods VALUES (?, ?, ?, ?, ?)", rows)
            added = [(str(owner[0]), owner[1], role, msgspec.json.encode(counts)) for owner, role, counts in sums]
            self._db.executemany("REPLACE INTO retired VALUES (?, ?, ?, ?)", added)

    def retire(self, owner: Owner, worker: Worker, role: Role, counts: TaskInfo | None) -> None:
        """Drop a pod's row; ``counts``: the sum of its role from now on, None: it does not change."""
        service, uid = str(owner[0]), owner[1]
        with self._db:
            key = (service, uid, str(worker))
            self._db.execute("DELETE FROM pods WHERE service = ? AND uid = ? AND worker = ?", key)
            if counts is not None:
                row = (service, uid, role, msgspec.json.encode(counts))
                self._db.execute("REPLACE INTO retired VALUES (?, ?, ?, ?)", row)

    def forget(self, owners: Collection[Owner]) -> None:
        """Drop all rows of services, by key and uid."""
        rows = [(str(key), uid) for key, uid in owners]
        with self._db:
            self._db.executemany("DELETE FROM pods WHERE service = ? AND uid = ?", rows)
            self._db.executemany("DELETE FROM retired WHERE service = ? AND uid = ?", rows)
