"""When a client comes back: soon where it lost its connection alone, spread out where the broker was away for all."""

from __future__ import annotations

import random

#: seconds
FIRST_BACKOFF, LAST_BACKOFF = 0.1, 5.0
#: a broker that takes no connection is away for all its clients: they come back spread over so long, or longer
SPREAD = 1.0
#: a connection that held this long was a good one: the next back-off starts small again
STABLE_AFTER = 5.0


class Backoff:
    """The pauses of one client between one attempt and the next: twice as wide each time, and anywhere in that."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._failures = 0
        self._spread = 0.0

    def refused(self) -> None:
        """There was no connection at all."""
        self._failures = min(self._failures + 1, 16)
        self._spread = SPREAD

    def ended(self, lasted: float) -> None:
        """Take the end of a connection that held so many seconds."""
        self._failures = 1 if lasted >= STABLE_AFTER else min(self._failures + 1, 16)
        self._spread = 0.0

    def pause(self) -> float:
        """Return for how many seconds to wait."""
        return self._chance.uniform(0, max(self._spread, min(LAST_BACKOFF, FIRST_BACKOFF * 2**self._failures)))
