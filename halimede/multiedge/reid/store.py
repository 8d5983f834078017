"""The persistent part of a gallery: one bounded SQLite file, in which new sightings replace the oldest ones.

The file may be damaged or the disk full. A damaged file is moved aside and replaced by a new one; changes that cannot
be written wait in the gallery. The file has two kinds of times. ``clock`` counts the seconds that galleries of this
file have run, so no wall clock can set it back; ``first``, ``last`` and ``time`` are the cameras' own, for display.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from halimede.messages import Sighting
from halimede.multiedge.reid.identity_eviction import IdentityRecord
from halimede.system.sqlite import check_columns, quarantine

log = structlog.get_logger()

#: version of the schema
VERSION = 1
#: SQL that creates the tables of an empty file
SCHEMA = """
CREATE TABLE IF NOT EXISTS numbers (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS identities (id TEXT PRIMARY KEY, clock REAL, count INTEGER, first REAL, last REAL,
    cameras TEXT, seen BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS vectors (key INTEGER PRIMARY KEY, id TEXT, vector BLOB);
CREATE TABLE IF NOT EXISTS sightings (slot INTEGER PRIMARY KEY, id TEXT, camera TEXT, time REAL, seen BLOB);
CREATE INDEX IF NOT EXISTS vectors_id ON vectors (id);
CREATE INDEX IF NOT EXISTS sightings_id ON sightings (id, time);
CREATE INDEX IF NOT EXISTS sightings_time ON sightings (time);
"""
#: the columns that each table must have: other ones belong to another program, or mean damage
COLUMNS = {
    "numbers": "name, value",
    "identities": "id, clock, count, first, last, cameras, seen",
    "vectors": "key, id, vector",
    "sightings": "slot, id, camera, time, seen",
}
#: the most sightings that wait while nothing can be written
MAX_WAITING = 10_000
_sighting = msgspec.json.Decoder(Sighting)


@dataclass(slots=True)
class Changes:
    """The changes of a gallery since it was last written.

    Attributes:
        rows: changed identities by id, each with its latest sighting as JSON.
        deleted: ids of deleted identities.
        vectors: new vectors by key: the identity's id, and float16 bytes.
        dropped: keys of removed vectors.
        sightings: new sightings, each with its identity's id.
        numbers: values that stand for the whole gallery, by name.

    """

    rows: dict[str, tuple[IdentityRecord, bytes]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    vectors: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    sightings: deque[tuple[str, Sighting]] = field(default_factory=lambda: deque(maxlen=MAX_WAITING))
    numbers: Mapping[str, int | float | str] = field(default_factory=dict)

    def forget(self, id_: str) -> None:
        """Record that an identity was deleted, in place of its changed row; ``write`` drops its sightings."""
        self.rows.pop(id_, None)
        self.deleted.add(id_)


class GalleryStore:
    """The open file. It is used from one thread. Once a write returns, its data survives a kill of the process.

    ``sightings``: the most sightings in it. All methods raise sqlite3.Error; ``open`` and ``reset`` also OSError.
    """

    def __init__(self, path: Path, sightings: int) -> None:
        self.path = path
        self._most = sightings
        #: number of the next sighting; its slot is this modulo the most sightings
        self._next = 0
        self._db: sqlite3.Connection

    def open(self) -> None:
        """Open or create the file; replace a damaged one.

        Raises OSError or sqlite3.OperationalError, as without space or permission.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._open()
        except sqlite3.OperationalError:  # not damage: no space, no permission
            raise
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            self.reset(str(error))

    def reset(self, reason: str) -> None:
        """Move the file aside and begin a new one. ``reason``: for the log. Raises OSError and sqlite3.Error."""
        self.close()
        aside = quarantine(self.path, reason)
        log.critical("gallery put aside, starting with an empty one", path=str(aside), reason=reason)
        self._open()

    def close(self) -> None:
        """Close the file, if it is open."""
        if hasattr(self, "_db"):
            self._db.close()

    def number(self, name: str) -> int | float | str | None:
        """Return a value that stands for the whole gallery; None if it was never written."""
        row = self._db.execute("SELECT value FROM numbers WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def rows(self, id_: str = "") -> Iterator[tuple[IdentityRecord, bytes]]:
        """Yield the identity with the id ``id_``, or all if it is empty, each with its latest sighting as JSON.

        The least recently seen identity comes first.
        """
        rows = self._db.execute(
            f"SELECT {COLUMNS['identities']} FROM identities {'WHERE id = ?' if id_ else 'ORDER BY clock'}",  # noqa: S608
            (id_,) if id_ else (),
        )
        for key, clock, count, first, last, cameras, sighting in rows:
            cameras_ = tuple(cameras.split())
            yield IdentityRecord(key, float(clock), int(count), float(first), float(last), cameras_), bytes(sighting)

    def vectors(self) -> Iterator[tuple[int, str]]:
        """Yield the key of each vector with its identity's id, the oldest first."""
        yield from self._db.execute("SELECT key, id FROM vectors ORDER BY key")

    def vector(self, key: int) -> bytes:
        """Return the float16 bytes of one vector; empty if it does not exist."""
        row = self._db.execute("SELECT vector FROM vectors WHERE key = ?", (key,)).fetchone()
        return bytes(row[0]) if row else b""

    def write(self, changes: Changes) -> None:
        """Write all changes; after sqlite3.Error none is written."""
        at = self._next
        with self._db as db:
            deleted = [(id_,) for id_ in changes.deleted]
            for table in ("identities", "vectors", "sightings"):
                db.executemany(f"DELETE FROM {table} WHERE id = ?", deleted)  # noqa: S608 - constants
            db.executemany("DELETE FROM vectors WHERE key = ?", [(key,) for key in changes.dropped])
            db.executemany(
                "INSERT INTO identities VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET clock = "
                "excluded.clock, count = excluded.count, first = excluded.first, last = excluded.last, cameras = "
                "excluded.cameras, seen = CASE excluded.seen WHEN x'' THEN seen ELSE excluded.seen END",
                [
                    (record.id, record.clock, record.count, record.first, record.last, " ".join(record.cameras), data)
                    for record, data in changes.rows.values()
                ],
            )
            vectors = [(key, id_, vector) for key, (id_, vector) in changes.vectors.items()]
            db.executemany("REPLACE INTO vectors VALUES (?, ?, ?)", vectors)
            for id_, sighting in changes.sightings:
                if id_ in changes.deleted and id_ not in changes.rows:
                    continue
                row = (at % self._most, id_, sighting.camera, sighting.time, msgspec.json.encode(sighting))
                db.execute("REPLACE INTO sightings VALUES (?, ?, ?, ?, ?)", row)
                at += 1
            db.executemany("REPLACE INTO numbers VALUES (?, ?)", [*changes.numbers.items(), ("next", at)])
        self._next = at

    def sightings(self, id_: str, camera: str, since: float, until: float, limit: int) -> list[Sighting]:
        """Return the latest ``limit`` sightings of an identity by a camera (empty: any), the latest first.

        ``since``, ``until``: bounds of their time by the cameras' clocks, in seconds since 1970.
        """
        rows = self._db.execute(
            "SELECT seen FROM sightings WHERE id = ? AND (? = '' OR camera = ?) AND time BETWEEN ? AND ? "
            "ORDER BY time DESC LIMIT ?",
            (id_, camera, camera, since, until, limit),
        )
        return [_sighting.decode(row[0]) for row in rows]

    def latest_ids(self, camera: str, since: float, until: float, limit: int) -> list[str]:
        """Return the ids of the last ``limit`` identities that a camera (empty: any) saw, the latest first.

        ``since``, ``until``: bounds of the time by the cameras' clocks, in seconds since 1970.
        """
        rows = self._db.execute(
            "SELECT id FROM sightings WHERE (? = '' OR camera = ?) AND time BETWEEN ? AND ? GROUP BY id "
            "ORDER BY max(time) DESC LIMIT ?",
            (camera, camera, since, until, limit),
        )
        return [str(row[0]) for row in rows]

    def _open(self) -> None:
        """Open or create the file. Raises sqlite3.DatabaseError, also if it has another schema."""
        self._db = sqlite3.connect(self.path)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.executescript(SCHEMA)
        check_columns(self._db, COLUMNS, "gallery")
        version = self.number("version")
        if version not in {None, VERSION}:
            raise sqlite3.DatabaseError(f"version {version} of the file is not known")
        with self._db as db:
            db.execute("REPLACE INTO numbers VALUES ('version', ?)", (VERSION,))
            db.execute("DELETE FROM sightings WHERE slot >= ?", (self._most,))
        self._next = int(self.number("next") or 0)
