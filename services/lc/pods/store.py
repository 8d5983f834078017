"""The counts of pods on this node, across restarts of the controller: rows in the node's store.

One row for each pod of a service's uid whose name is remembered, and one for each role with the sum of the others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator

import msgspec

from halimede.messages import TaskInfo, WorkerInfo
from halimede.messages.control import WorkerRole as Role
from halimede.names import Key
from services.lc.paths import Worker

COLUMNS = {"pods": "service, uid, worker, number, record", "retired": "service, uid, role, counts"}
SCHEMA = """
CREATE TABLE IF NOT EXISTS pods
    (service TEXT, uid TEXT, worker TEXT, number INTEGER, record BLOB, PRIMARY KEY (service, uid, worker))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS retired
    (service TEXT, uid TEXT, role TEXT, counts BLOB, PRIMARY KEY (service, uid, role)) WITHOUT ROWID;
"""


class PodRecord(msgspec.Struct, frozen=True):
    """The last report and counters of a pod. ``ended``: the starts of its earlier counters."""

    info: WorkerInfo
    has_ended: bool = msgspec.field(default=False, name="gone")
    ended: tuple[str, ...] = ()


#: a service and its uid
Owner = tuple[Key, str]


class PodRows:
    """The rows. Each write is on disk when the call returns."""

    def __init__(self) -> None:
        #: the rows as loaded: all pods, the least recently reporting pod first, and the sums
        self.loaded: list[tuple[Owner, Worker, PodRecord]] = []
        self.loaded_sums: list[tuple[Owner, Role, TaskInfo]] = []

    def open(self, db: sqlite3.Connection) -> None:
        """Use the store's connection, and read all rows. Raises if a row is damaged."""
        self._db = db
        self.loaded, self.loaded_sums = list(self._read_pods()), list(self._read_sums())

    def _read_pods(self) -> Iterator[tuple[Owner, Worker, PodRecord]]:
        rows = self._db.execute("SELECT service, uid, worker, record FROM pods ORDER BY number").fetchall()
        for service, uid, worker, record in rows:
            namespace, _, name = worker.partition("/")
            yield (Key.parse(service), uid), Worker(namespace, name), msgspec.json.decode(record, type=PodRecord)

    def _read_sums(self) -> Iterator[tuple[Owner, Role, TaskInfo]]:
        for service, uid, role, counts in self._db.execute("SELECT service, uid, role, counts FROM retired").fetchall():
            yield (Key.parse(service), uid), role, msgspec.json.decode(counts, type=TaskInfo)

    def write(
        self, records: Iterable[tuple[Owner, Worker, PodRecord]], sums: Iterable[tuple[Owner, Role, TaskInfo]] = ()
    ) -> None:
        """Store the last reports, the latest last, and changed sums of pods' earlier counts."""
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
        """Drop a pod's name; ``counts`` is the sum of its role from now on."""
        service, uid = str(owner[0]), owner[1]
        with self._db:
            key = (service, uid, str(worker))
            self._db.execute("DELETE FROM pods WHERE service = ? AND uid = ? AND worker = ?", key)
            if counts is not None:
                row = (service, uid, role, msgspec.json.encode(counts))
                self._db.execute("REPLACE INTO retired VALUES (?, ?, ?, ?)", row)

    def forget(self, owners: Collection[Owner]) -> None:
        """Drop all pods of these services."""
        rows = [(str(key), uid) for key, uid in owners]
        with self._db:
            self._db.executemany("DELETE FROM pods WHERE service = ? AND uid = ?", rows)
            self._db.executemany("DELETE FROM retired WHERE service = ? AND uid = ?", rows)
