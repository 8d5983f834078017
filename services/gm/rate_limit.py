"""Rate limits by name: a token bucket for each, with a rate and a burst."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")
#: names whose budgets are remembered: whoever has all of it again is forgotten
MOST = 10_000


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
