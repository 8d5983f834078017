"""Forecasts whether a slot of the next tier will be free in time for a request that waits.

A slot is room for one sample in a worker's queue. One becomes free with each answer of the next tier, every ``slot_s``
seconds. A request that gets a slot is answered ``answer_s`` later at the earliest: the samples before it may be in one
batch that is about to end. The newest request gets the next slot, so an older one gets a slot only if fewer requests
arrive than slots become free. Where no slot will be free in time, the caller's own answer is better now than at the
deadline.

Both times are lower bounds, so that only requests are refused whose answers would certainly be late. Pure: no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

#: seconds over which the rate of requests is averaged, so that a short burst counts little
AVERAGED_S = 10.0
#: most seconds between two readings that count; before the first one, so many without a request are assumed
MAX_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True)
class SlotForecast:
    """When slots become free for one requester.

    Attributes:
        slot_s: seconds from one free slot to the next, by all workers together and this requester's share of them.
        answer_s: least seconds from a slot to the answer.

    """

    slot_s: float
    answer_s: float

    def capacity(self, left_s: float, requests_per_s: float) -> int:
        """Return how many requests may wait such that one with ``left_s`` seconds left gets its answer in time.

        At least one, if an answer can be in time at all, because the next slot is for the newest request. More may wait
        if more slots become free than requests arrive (``requests_per_s``). 0 if no answer can be in time.
        """
        spare_s = left_s - self.answer_s
        if spare_s < 0:
            return 0
        return 1 + int(max(0.0, 1 / self.slot_s - requests_per_s) * spare_s)

    def hopeless(self, lefts_s: Iterable[float], requests_per_s: float) -> Iterator[bool]:
        """Yield for each waiting request, the newest first, whether no slot will be free for it in time.

        ``lefts_s``: the seconds until each deadline. Requests that are hopeless do not count for the older ones.
        """
        ahead = 0
        for left_s in lefts_s:
            late = ahead >= self.capacity(left_s, requests_per_s)
            ahead += not late
            yield late


class RequestRate:
    """The mean number of requests per second, in which older ones count less, read from a running total."""

    def __init__(self) -> None:
        self._per_s = 0.0
        self._total = 0
        self._read_at = -math.inf

    def read(self, total: int, now: float) -> float:
        """Return the rate after ``total`` requests from the start until ``now`` (monotonic seconds)."""
        seconds = now - self._read_at
        if seconds > 0:
            requests, self._total, self._read_at = total - self._total, total, now
            seconds = min(seconds, MAX_INTERVAL_S)
            self._per_s += (1 - math.exp(-seconds / AVERAGED_S)) * (requests / seconds - self._per_s)
        return self._per_s
