"""Rate limits by name: a token bucket for each, with a rate and a burst."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Generic, TypeVar

T = TypeVar("T")
#: names whose budgets are remembered: whoever has all of it again is forgotten
MOST = 10_000
#: events a second, and at once: of one reason about one thing, and of one reason about all things
EVENTS_ABOUT, EVENTS_OF = (0.1, 20.0), (20.0, 2000.0)
#: of so many things it is known how often an event was left out
MAX_LEFT_OUT = 1000


class EventDeduplicator:
    """Limits how often an event is reported, and counts its suppressed repeats until it may be reported again.

    A flood of events would push all others out of any log, and costs the API server a write each.
    """

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


class RateLimit(Generic[T]):
    """``rate`` comes back in a second, up to ``burst``; a name that was never seen has all of it."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left: dict[T, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._left)

    def left(self, name: T) -> float:
        """Return what is left."""
        left, since = self._left.get(name, (self._burst, 0.0))
        return min(self._burst, left + (asyncio.get_running_loop().time() - since) * self._rate)

    def spend(self, name: T, cost: float = 1.0) -> bool:
        """Take ``cost`` from what is left, even beyond it; False, and nothing taken, when nothing is left."""
        now = asyncio.get_running_loop().time()
        left = self.left(name)
        if left <= 0:
            return False
        if name not in self._left and len(self._left) >= MOST:
            self._forget(now)
        self._left[name] = (left - cost, now)
        return True

    def _forget(self, now: float) -> None:
        for name, (left, since) in list(self._left.items()):
            if left + (now - since) * self._rate >= self._burst:
                del self._left[name]
        # whoever spent first has most of it again; half of them at once, so that this is seldom
        while len(self._left) > MOST // 2:
            del self._left[next(iter(self._left))]
