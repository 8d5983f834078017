"""Picks a worker for a request: the better of two random ones, by advertised load.

Two random choices come close to the best one, without all requesters choosing the same worker at a time (Mitzenmacher
2001, "The Power of Two Choices in Randomized Load Balancing"). Credits are the requests that a worker takes now. Pure:
no clock, no bus. ``now`` is the caller's monotonic time in seconds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from halimede.messages import Load
from halimede.offload.slot_forecast import SlotForecast

#: seconds without an advertisement after which a worker counts as offline: more than three of its periods of 2 s
STALE_S = 7.0
#: most workers whose loads are kept: names come from the bus
MAX_WORKERS = 1024

#: returns so many of the given names
Choose = Callable[[Sequence[str], int], Sequence[str]]


@dataclass(slots=True)
class WorkerLoad:
    """The known load of a worker.

    Attributes:
        credits: requests that it takes now.
        service_ms: its mean time for a sample, as advertised; 0: not known.
        queued: samples without an answer that it has before the next one.
        advertised: when it advertised last.
        in_flight: samples that were sent from here and are not answered.
        capacity: the most samples that it queues; infinite: not known.
        confirmed_ms: the lower of its last two advertised service times, because the first call of a model may be much
            slower; 0: it has advertised fewer than two, or one was unknown.
        network_ms: milliseconds of a round trip without the worker's queue and compute time; None: not measured. Only
            ``peer_offload`` sets and reads it.
        last_answer: when it answered this client last; minus infinity: never.

    """

    credits: int
    service_ms: float
    queued: int
    advertised: float
    in_flight: int = 0
    capacity: float = math.inf
    confirmed_ms: float = 0.0
    network_ms: float | None = None
    last_answer: float = -math.inf

    @property
    def rank(self) -> tuple[float, int]:
        """The sort key, lower is better: expected milliseconds until its answer, then minus its credits.

        Credits alone would fill a slow worker's queue as much as a fast one's. A worker of unknown speed gets one
        sample to measure it, and more only if no other worker is better.
        """
        if not self.service_ms:
            return (math.inf if self.in_flight else 0.0), -self.credits
        return (self.queued + 1) * self.service_ms, -self.credits


class LoadBalancer:
    """The known loads of the workers that may get requests: workers of the next tier, or peers of a worker.

    ``stale_s``: seconds without an advertisement after which a worker counts as offline. ``choose``: the random choice.
    """

    def __init__(self, *, stale_s: float = STALE_S, choose: Choose = random.sample) -> None:
        self._stale_s = stale_s
        self._choose = choose
        self._workers: dict[str, WorkerLoad] = {}

    def update(self, worker: str, load: Load, now: float) -> bool:
        """Record the advertised load of a worker; return whether the worker is new or was offline before.

        A new worker is not recorded, and the answer is False, if MAX_WORKERS others are online.
        """
        entry = self._workers.get(worker)
        if entry is None:
            if len(self._workers) >= MAX_WORKERS and not self._remove_stale(now):
                return False
            self._workers[worker] = WorkerLoad(
                load.credits, load.service_ms, load.queued, now, capacity=load.places or math.inf
            )
            return True
        was_stale = self._is_stale(entry, now)
        if was_stale:
            entry.in_flight = 0
        not_counted = max(0, entry.in_flight - load.queued)  # sent, but not yet in the worker's advertised queue
        entry.confirmed_ms = min(entry.service_ms, load.service_ms)
        entry.credits, entry.queued = max(0, load.credits - not_counted), load.queued + not_counted
        entry.service_ms, entry.advertised, entry.capacity = load.service_ms, now, load.places or math.inf
        return was_stale

    def remove(self, worker: str) -> None:
        """Remove a worker, if it is known."""
        self._workers.pop(worker, None)

    def pick(self, now: float) -> str | None:
        """Return the better of two random online workers that have credits (``WorkerLoad.rank``); None: none has."""
        workers = self.free_workers(now)
        if len(workers) < 2:
            return workers[0] if workers else None
        return min(self._choose(workers, 2), key=lambda name: self._workers[name].rank)

    def free_workers(self, now: float) -> list[str]:
        """Return the online workers that have credits."""
        since = now - self._stale_s
        return [name for name, entry in self._workers.items() if entry.credits > 0 and entry.advertised >= since]

    def credits_by_worker(self, now: float) -> dict[str, int]:
        """Return the credits of each online worker."""
        return {name: entry.credits for name, entry in self._workers.items() if not self._is_stale(entry, now)}

    def is_up(self, now: float) -> bool:
        """Whether a worker is online, with or without credits."""
        return any(not self._is_stale(entry, now) for entry in self._workers.values())

    def forecast(self, now: float) -> SlotForecast | None:
        """Return when slots become free for requests from here; None: no worker is online, or one's speed is unknown.

        This requester's share of a worker's slots is its share of the samples that the worker has, with the next
        request included; other requesters have the rest.
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

    def record_sent(self, worker: str) -> None:
        """Record a sample that is sent to a worker: it takes one credit, until the worker advertises again."""
        if entry := self._workers.get(worker):
            entry.credits = max(0, entry.credits - 1)
            entry.queued, entry.in_flight = entry.queued + 1, entry.in_flight + 1

    def record_answer(self, worker: str, now: float = -math.inf) -> None:
        """Record that a worker's sample has ended: give one credit back, unless the worker's queue is still full.

        ``now``: when the worker answered; without it, the sample ended without an answer.
        """
        if entry := self._workers.get(worker):
            entry.queued, entry.in_flight = max(0, entry.queued - 1), max(0, entry.in_flight - 1)
            entry.credits += entry.queued < entry.capacity
            entry.last_answer = max(entry.last_answer, now)

    def record_refusal(self, worker: str) -> None:
        """Record that a worker refused a sample: its credits are 0 until it advertises again."""
        if entry := self._workers.get(worker):
            entry.credits = 0

    def record_silence(self, worker: str, since: float = math.inf) -> None:
        """Record a sample that is no longer awaited. Its credit stays taken: the worker may still compute it.

        If the worker has answered nothing since ``since`` (monotonic seconds), its credits are 0 until it advertises
        again. Without ``since`` they are always 0 until then.
        """
        if entry := self._workers.get(worker):
            entry.in_flight = max(0, entry.in_flight - 1)
            if entry.last_answer < since:
                entry.credits = 0

    def _is_stale(self, entry: WorkerLoad, now: float) -> bool:
        """Whether a worker counts as offline."""
        return now - entry.advertised > self._stale_s

    def _remove_stale(self, now: float) -> int:
        """Remove stale workers; return their number."""
        stale = [name for name, entry in self._workers.items() if self._is_stale(entry, now)]
        for name in stale:
            del self._workers[name]
        return len(stale)
