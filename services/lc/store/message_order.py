"""When GM last spoke of each resource: what it said before that, and comes later, is old news.

Without it an insert of a uid that this node has never held, sent again by whatever lies in between, would bury the one
that has taken its place. Kept with what the node holds, for one epoch of GM: messages of an earlier one are ignored
anyway.
"""

from __future__ import annotations

import sqlite3

from halimede.bus.ordering import SequenceNumber
from halimede.names import Key
from services.lc.store.deferred_writes import Statements

COLUMNS = {"said": "key, epoch, number"}
SCHEMA = "CREATE TABLE IF NOT EXISTS said (key TEXT PRIMARY KEY, epoch INTEGER, number INTEGER) WITHOUT ROWID;"
#: resources that are remembered; beyond this those go that GM has spoken of least recently
MAX_SAID = 10_000


class MessageOrder:
    """The latest stamp by resource, of the latest epoch."""

    def __init__(self) -> None:
        self._epoch = 0
        self._numbers: dict[Key, int] = {}

    def load(self, db: sqlite3.Connection) -> None:
        """Read what was written."""
        rows = db.execute("SELECT key, epoch, number FROM said ORDER BY epoch, number").fetchall()
        self._epoch = rows[-1][1] if rows else 0
        self._numbers = {Key.parse(key): number for key, epoch, number in rows if epoch == self._epoch}

    def later(self, key: Key, stamp: SequenceNumber) -> bool:
        """Whether GM has said something of this resource later than that."""
        return stamp.overtaken_by(SequenceNumber(self._epoch, self._numbers.get(key, 0)))

    def note(self, db: Statements, key: Key, stamp: SequenceNumber) -> None:
        """Write a stamp that is the latest; in the caller's transaction."""
        if stamp.epoch != self._epoch:
            db.execute("DELETE FROM said")
            self._epoch, self._numbers = stamp.epoch, {}
        db.execute("REPLACE INTO said VALUES (?, ?, ?)", (str(key), stamp.epoch, stamp.number))
        self._numbers.pop(key, None)
        self._numbers[key] = stamp.number
        if len(self._numbers) > MAX_SAID:
            oldest = next(iter(self._numbers))
            del self._numbers[oldest]
            db.execute("DELETE FROM said WHERE key = ?", (str(oldest),))
