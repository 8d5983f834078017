"""When a client connects again: soon; spread out after a broker outage; late after a client id conflict.

Two clients with one id: a broker lets the newcomer in and ends the older connection, so two clients that both come
back at once chase each other for ever. The one that was there first stays: it comes back at once, a few times. The
newcomer gives way for long enough that the other settles. Neither needs to know of the other for that, only whether
its own last connection held.

MQTT 5 has a reason code for it (0x8E), and with that it is sure. Mosquitto 2.0.11 closes the older connection without
a word: several in a row that were accepted and ended soon, with the broker there all the time, mean the same. Or
somebody has read it in messages (``proven``).

A session that outlives its connection is there to be taken over, and back: among those that ``share`` one so, nobody
is a rival.
"""

from __future__ import annotations

import random

from halimede.system.backoff import exponential

#: seconds between two attempts: the first pause at most, and any at most
FIRST_BACKOFF, LAST_BACKOFF = 0.2, 5.0
#: a broker that takes no connection is away for all its clients: they come back spread over so long, or longer
SPREAD = 1.0
#: a connection that held this long was a good one: the next back-off starts small again
STABLE_AFTER = 5.0
#: seconds that one gives way, for the first time; at most so many times that, with and without proof of a rival
PAUSE = (20.0, 40.0)
LONGEST, UNPROVEN = 4, 2
#: a connection that ended sooner is a brief one
BRIEF = 2.0
#: a connection that held this long makes its client the one that was there first
SETTLED = 5.0
#: so many brief connections in a row are taken for a rival's work: by one that gave way before, by a newcomer, by a
#: settled client
RETURNED, NEWCOMER, INCUMBENT = 2, 3, 6


class ReconnectBackoff:
    """The pauses of one client between one attempt and the next: twice as wide each time, and anywhere in that."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._failures = 0
        self._spread = 0.0

    def refused(self) -> None:
        """Record that no connection could be made."""
        self._failures += 1
        self._spread = SPREAD

    def ended(self, lasted: float) -> None:
        """Record the end of a connection that lasted ``lasted`` seconds."""
        self._failures = 1 if lasted >= STABLE_AFTER else self._failures + 1
        self._spread = 0.0

    def pause(self) -> float:
        """Return for how many seconds to wait."""
        return self._chance.uniform(0, max(self._spread, exponential(self._failures, FIRST_BACKOFF, LAST_BACKOFF)))


class ClientIdConflict:
    """Detects a second client with the same client id, and decides which of the two pauses.

    Attributes:
        suspected: the operator is to be told, once there is a connection.

    """

    def __init__(self, *, share: bool = False) -> None:
        self.suspected = False
        self._share = share
        self._settled = False
        self._giving_way = False
        self._brief = 0
        #: how often it gave way since it was last settled
        self._yielded = 0

    def refused(self) -> None:
        """Record that no connection could be made: the broker is down or busy."""
        self._brief = 0

    def proven(self) -> bool:
        """Record a proven conflict; return whether this client is to disconnect and pause."""
        self._giving_way = not self._settled
        return self._giving_way

    def ended(self, lasted: float, *, told: bool, chance: random.Random, explained: bool = False) -> float:
        """Record the end of a connection that lasted ``lasted`` seconds; return the pause in seconds, usually 0.

        ``told``: the broker said that another client took the session over. ``explained``: it gave a reason, or we
        ended it ourselves: there is nothing to guess.
        """
        if self._share:
            return 0.0
        if lasted >= SETTLED:
            self._settled, self._yielded = True, 0
        self._brief = self._brief + 1 if told or (lasted < BRIEF and not explained) else 0
        if not self._giving_way and self._brief < self._patience(told=told):
            return 0.0
        most = LONGEST if told or self._giving_way else UNPROVEN  # a bad link looks much like a rival
        pause = chance.uniform(*PAUSE) * exponential(self._yielded + 1, 1, most)
        self.suspected = True
        self._settled = self._giving_way = False
        self._brief = 0
        self._yielded += 1
        return pause

    def _patience(self, *, told: bool) -> int:
        """Return how many brief connections in a row mean a conflict."""
        if self._settled:
            return INCUMBENT
        if told:
            return 1
        return RETURNED if self._yielded else NEWCOMER
