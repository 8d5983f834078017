"""Rate limit of events: a repeated event is reported at intervals, with its count.

A flood of events would push all others out of any log, and costs the API server a write each.
"""

from __future__ import annotations

from collections import Counter

from services.gm.rate_limit import RateLimit

#: events a second, and at once: of one reason about one thing, and of one reason about all things
EVENTS_ABOUT, EVENTS_OF = (0.1, 20.0), (20.0, 2000.0)
#: of so many things it is known how often an event was left out
MAX_LEFT_OUT = 1000


class EventDeduplicator:
    """Counts the suppressed repeats of an event until it may be reported again."""

    def __init__(self) -> None:
        self._about: RateLimit[tuple[str, str]] = RateLimit(*EVENTS_ABOUT)
        self._reasons: RateLimit[str] = RateLimit(*EVENTS_OF)
        #: events left out since the last one of that reason about that thing was told
        self._left_out: Counter[tuple[str, str]] = Counter()

    def times(self, reason: str, about: str) -> int:
        """Return for how many events this one is to be told, itself included; 0: it is to be left out."""
        what = (reason, about)
        if self._about.spend(what) and self._reasons.spend(reason):
            return 1 + self._left_out.pop(what, 0)
        if what in self._left_out or len(self._left_out) < MAX_LEFT_OUT:
            self._left_out[what] += 1
        return 0
