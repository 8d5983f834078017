"""Selects a cloud worker for a hard sample: the better of two random ones, by advertised load.

Two random choices come close to the best one at a fraction of the herding (Mitzenmacher 2001, "The Power of Two
Choices in Randomized Load Balancing"). Pure: no clock, no bus. ``now`` is the caller's monotonic time in seconds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from halimede.messages import Load
from halimede.offload.slot_forecast import SlotForecast

#: a worker advertises at least every 2 s: one that is silent for more than three periods counts as offline
STALE_S = 7.0
#: advertisements of more workers than this are ignored: names come from the bus
MAX_WORKERS = 1024

Choose = Callable[[Sequence[str], int], Sequence[str]]


@dataclass(slots=True)
class WorkerLoad:
    """The known load of a worker. ``queued``: samples before the next one; ``in_flight``: sent from here, not answered.

    ``confirmed_ms``: the lower of its last two advertised service times; 0: it has advertised less than two. The first
    call of a model may be slower by far. ``places``: the most samples that it queues now; infinite if unknown.
    ``network_ms``: round trip without the worker's queue and compute time, if measured. ``advertised``,
    ``last_answer``: times of the worker's last advertisement, and of its last answer to this client.
    """

    credits: int
    service_ms: float
    queued: int
    advertised: float
    in_flight: int = 0
    places: float = math.inf
    confirmed_ms: float = 0.0
    network_ms: float | None = None
    last_answer: float = -math.inf

    @property
    def rank(self) -> tuple[float, int]:
        """The sort key: expected time of its answer, then credits; lower is better.

        Credits alone would fill a slow worker's queue as much as a fast one's. A worker of unknown speed gets one
        sample to measure it, and more only if no worker is better.
        """
        if not self.service_ms:
            return (math.inf if self.in_flight else 0.0), -self.credits
        return (self.queued + 1) * self.service_ms, -self.credits


class LoadBalancer:
    """The known capacity of the workers of the next tier."""

    def __init__(self, *, stale_s: float = STALE_S, choose: Choose = random.sample) -> None:
        self._stale_s = stale_s
        self._choose = choose
        self._workers: dict[str, WorkerLoad] = {}

    def update(self, worker: str, load: Load, now: float) -> bool:
        """Replace the load of a worker; return whether the worker is new or was removed before."""
        known = self._workers.get(worker)
        if known is None:
            if len(self._workers) >= MAX_WORKERS and not self._forget_stale(now):
                return False
            self._workers[worker] = WorkerLoad(
                load.credits, load.service_ms, load.queued, now, places=load.places or math.inf
            )
            return True
        gone = self._is_stale(known, now)
        if gone:
            known.in_flight = 0
        coming = max(0, known.in_flight - load.queued)  # in flight: the worker has not counted them
        known.confirmed_ms = min(known.service_ms, load.service_ms)
        known.credits, known.queued = max(0, load.credits - coming), load.queued + coming
        known.service_ms, known.advertised, known.places = load.service_ms, now, load.places or math.inf
        return gone

    def remove(self, worker: str) -> bool:
        """Remove a worker; return whether it was known."""
        return self._workers.pop(worker, None) is not None

    def pick(self, now: float) -> str | None:
        """Return the better of two random workers that have credits: the sooner answer, then more credits."""
        free = self.free(now)
        if len(free) < 2:
            return free[0] if free else None
        two = self._choose(free, 2)
        return min(two, key=lambda name: self._workers[name].rank)

    def free(self, now: float) -> list[str]:
        """Return the workers that have credits."""
        seen = now - self._stale_s
        return [name for name, entry in self._workers.items() if entry.credits > 0 and entry.advertised >= seen]

    def left(self, now: float) -> dict[str, int]:
        """Return the credits of each online worker."""
        return {name: entry.credits for name, entry in self._workers.items() if not self._is_stale(entry, now)}

    def known(self, now: float) -> bool:
        """Whether any worker advertises, with or without credits."""
        return any(not self._is_stale(entry, now) for entry in self._workers.values())

    def forecast(self, now: float) -> SlotForecast | None:
        """Return when slots become free for requests from here; None: the speed of a worker is unknown.

        This requester's share of a worker's slots is that of its samples among those that the worker has, with the
        next request included: other requesters have the remaining ones.
        """
        slots_per_s, answer_s = 0.0, math.inf
        for entry in self._workers.values():
            if self._is_stale(entry, now):
                continue
            if not entry.confirmed_ms:
                return None
            share = min(1.0, (entry.in_flight + 1) / (entry.queued + 1))
            slots_per_s += share * 1000 / entry.confirmed_ms
            answer_s = min(answer_s, entry.confirmed_ms / 1000)
        return SlotForecast(1 / slots_per_s, answer_s) if slots_per_s else None

    def sent(self, worker: str) -> None:
        """Take one credit: the worker's next advertisement includes the sample."""
        if entry := self._workers.get(worker):
            entry.credits = max(0, entry.credits - 1)
            entry.queued, entry.in_flight = entry.queued + 1, entry.in_flight + 1

    def answered(self, worker: str, now: float = -math.inf) -> None:
        """Return one credit, for an answer at ``now``; none while the worker has more samples than places."""
        if entry := self._workers.get(worker):
            entry.queued, entry.in_flight = max(0, entry.queued - 1), max(0, entry.in_flight - 1)
            entry.credits += entry.queued < entry.places
            entry.last_answer = max(entry.last_answer, now)

    def exhausted(self, worker: str) -> None:
        """Send no more until the worker advertises again: it refused a sample."""
        if entry := self._workers.get(worker):
            entry.credits = 0

    def silent(self, worker: str, since: float = math.inf) -> None:
        """Record an abandoned sample; without an answer since then, send no more until the next advertisement.

        Its slot is not free: the worker may still compute it, and then advertises so.
        """
        if entry := self._workers.get(worker):
            entry.in_flight = max(0, entry.in_flight - 1)
            if entry.last_answer < since:
                entry.credits = 0

    def _is_stale(self, entry: WorkerLoad, now: float) -> bool:
        return now - entry.advertised > self._stale_s

    def _forget_stale(self, now: float) -> bool:
        stale = [name for name, entry in self._workers.items() if self._is_stale(entry, now)]
        for name in stale:
            del self._workers[name]
        return bool(stale)
