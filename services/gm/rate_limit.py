"""Rate limits by name: ``RateLimit`` has a token bucket for each name; ``EventDeduplicator`` limits events with it.

A token bucket is a budget that grows with time up to a limit (the burst), and from which each use is subtracted.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")
#: most names whose budgets are kept: those with a full budget are dropped first
MOST_NAMES = 10_000
#: (events per second, burst): of one reason about one object, and of one reason about all objects together
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
        """Count an event, and return how many events its report stands for, with the suppressed ones; 0: do not report.

        ``reason``: a word such as ``NodeFlood``. ``about``: the name of its object.
        """
        event = (reason, about)
        if self._about.spend(event) and self._reasons.spend(reason):
            return 1 + self._suppressed.pop(event, 0)
        if event in self._suppressed or len(self._suppressed) < MAX_SUPPRESSED:
            self._suppressed[event] += 1
        return 0


class RateLimit(Generic[T]):
    """A budget for each name: ``rate`` is added per second, up to ``burst``; a new name has the full burst.

    Times are those of the running event loop. ``len`` is the number of kept names.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        #: budget, and the time when it was that, in the order of the last use
        self._budgets: OrderedDict[T, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._budgets)

    def budget_of(self, name: T) -> float:
        """Return what a name may still spend: at most the burst; 0 or less: nothing."""
        budget, since = self._budgets.get(name, (self._burst, 0.0))
        return min(self._burst, budget + (asyncio.get_running_loop().time() - since) * self._rate)

    def spend(self, name: T, cost: float = 1.0) -> bool:
        """Subtract ``cost``, even if less is left: the budget may become negative.

        Return False, and subtract nothing, if nothing is left.
        """
        now = asyncio.get_running_loop().time()
        budget = self.budget_of(name)
        if name in self._budgets:
            self._budgets.move_to_end(name)
        elif len(self._budgets) >= MOST_NAMES:
            self._forget(now)
        if budget <= 0:
            return False
        self._budgets[name] = (budget - cost, now)
        return True

    def _forget(self, now: float) -> None:
        """Drop names with a full budget, and then others until half of the places are free: they get a full burst."""
        for name, (budget, since) in list(self._budgets.items()):
            if budget + (now - since) * self._rate >= self._burst:
                del self._budgets[name]
        # the names that were used least recently go first; half of all are dropped at once, so that this is rare
        while len(self._budgets) > MOST_NAMES // 2:
            del self._budgets[next(iter(self._budgets))]
