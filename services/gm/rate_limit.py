"""Rate limits by name: a token bucket for each name, with a rate and a burst."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Generic, TypeVar

T = TypeVar("T")
#: names whose budgets are kept: a name with a full budget is dropped
MOST = 10_000
#: events per second, and burst: of one reason about one object, and of one reason about all objects
EVENTS_ABOUT, EVENTS_OF = (0.1, 20.0), (20.0, 2000.0)
#: objects whose suppressed events are counted
MAX_SUPPRESSED = 1000


class EventDeduplicator:
    """Limits how often an event is reported, and counts its suppressed repeats until it may be reported again.

    A flood of events would displace all others from a log, and each event costs the API server a write.
    """

    def __init__(self) -> None:
        self._about: RateLimit[tuple[str, str]] = RateLimit(*EVENTS_ABOUT)
        self._reasons: RateLimit[str] = RateLimit(*EVENTS_OF)
        #: events that were suppressed since the last reported one, by reason and object
        self._suppressed: Counter[tuple[str, str]] = Counter()

    def times(self, reason: str, about: str) -> int:
        """Return how many events this report stands for, including this one; 0: do not report it."""
        what = (reason, about)
        if self._about.spend(what) and self._reasons.spend(reason):
            return 1 + self._suppressed.pop(what, 0)
        if what in self._suppressed or len(self._suppressed) < MAX_SUPPRESSED:
            self._suppressed[what] += 1
        return 0


class RateLimit(Generic[T]):
    """A budget for each name: ``rate`` is added per second, up to ``burst``; a new name has the full burst."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._budgets: dict[T, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._budgets)

    def budget_of(self, name: T) -> float:
        """Return the rest of a name's budget."""
        budget, since = self._budgets.get(name, (self._burst, 0.0))
        return min(self._burst, budget + (asyncio.get_running_loop().time() - since) * self._rate)

    def spend(self, name: T, cost: float = 1.0) -> bool:
        """Subtract ``cost``, even if less is left. Returns False, and subtracts nothing, when nothing is left."""
        now = asyncio.get_running_loop().time()
        budget = self.budget_of(name)
        if budget <= 0:
            return False
        if name not in self._budgets and len(self._budgets) >= MOST:
            self._forget(now)
        self._budgets[name] = (budget - cost, now)
        return True

    def _forget(self, now: float) -> None:
        for name, (budget, since) in list(self._budgets.items()):
            if budget + (now - since) * self._rate >= self._burst:
                del self._budgets[name]
        # the oldest entries have recovered most; half of all are dropped at once, so that this is rare
        while len(self._budgets) > MOST // 2:
            del self._budgets[next(iter(self._budgets))]
