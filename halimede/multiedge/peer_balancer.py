"""Which worker answers the next frame: the one that is expected to be done with it first, this one included.

What a worker has before it, times what a sample takes it, is when it would be done; a peer's answer takes a way there
and back besides, which is measured. Peers bound what they take by the credits that they advertise, and between two
advertisements each asker counts what it sends itself. Many askers that see the same idle worker would all run to it:
where there are many, each looks at a few at random only, as ``LoadBalancer`` does and for the same reason.

Pure: no clock, no bus. ``now`` is the caller's monotonic time in seconds.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from halimede.messages import Load
from halimede.offload.load_balancer import STALE_S, Choose, LoadBalancer, WorkerLoad

#: peers with room of which all are looked at; of more, so many at random
FEW, LOOK_AT = 8, 4
#: milliseconds: the way to a peer and back, and a sample's time, before either was seen
FIRST_WAY_MS, FIRST_SERVICE_MS = 5.0, 10.0
#: samples that a peer may be thought to have, whatever it says that one takes
MOST = 10_000
#: weight of the newest round trip in the running mean: what made one slow is mostly the peer's own work, counted anyway
FASTER, SLOWER = 0.5, 0.05


@dataclass(frozen=True, slots=True)
class PeerChoice:
    """A peer that is expected to answer the next sample within ``ms`` milliseconds."""

    worker: str
    ms: float


def spare(home: Load, *, most: int, horizon_s: float) -> Load:
    """Return what a worker can take of the others' samples, whose own model has to do what ``home`` says.

    It takes what it answers within ``horizon_s`` seconds, at least one when it is idle and at most ``most``.
    """
    places = int(min(most, horizon_s * 1000 / home.service_ms)) if home.service_ms else most
    credits_ = max(0, max(1, places) - home.queued)
    return Load(credits=credits_, service_ms=home.service_ms, queued=home.queued)


class Balance(LoadBalancer):
    """What peers can take now, and who would be done first."""

    def __init__(self, *, stale_s: float = STALE_S, choose: Choose = random.sample) -> None:
        super().__init__(stale_s=stale_s, choose=choose)
        self._preferred = ""
        #: when this worker would be done with the next sample, and what one takes it
        self._home_ms, self._usual_ms = math.inf, FIRST_SERVICE_MS

    def elsewhere(self, home: Load, now: float) -> PeerChoice | None:
        """Return the peer that would be done with the next sample before this worker, None where there is none."""
        self._usual_ms = home.service_ms or FIRST_SERVICE_MS
        self._home_ms = (home.queued + 1) * self._usual_ms
        return self._best(now)

    def prefer(self, worker: str) -> None:
        """Say which peer the next ``pick`` shall return if it has room then."""
        self._preferred = worker

    def pick(self, now: float) -> str | None:
        """Return the preferred peer, or another one that would be done before this worker."""
        preferred, self._preferred = self._preferred, ""
        if preferred in self.free(now):
            return preferred
        best = self._best(now)
        return best.worker if best else None

    def learn(self, worker: str, took_ms: float, there_ms: float) -> None:
        """Take in how long an answer took, and how much of that its worker says that it waited and was computed.

        What it took tells more of how busy the worker is than its last advertisement does, and comes more often.
        """
        if known := self._workers.get(worker):
            way_ms = max(0.0, took_ms - there_ms)
            before = way_ms if known.way_ms is None else known.way_ms
            known.way_ms = before + (FASTER if way_ms < before else SLOWER) * (way_ms - before)
            if known.service_ms:
                waited = min(MOST, (took_ms - known.way_ms) / known.service_ms)
                known.queued = max(known.mine, round(waited) - 1)

    def _best(self, now: float) -> PeerChoice | None:
        """Return the peer that would be done first, if that is before this worker."""
        free = self.free(now)
        looked_at = free if len(free) <= FEW else self._choose(free, LOOK_AT)
        choices = (PeerChoice(name, self._expected_ms(self._workers[name])) for name in looked_at)
        best = min(choices, key=lambda choice: choice.ms, default=None)
        return best if best and best.ms < self._home_ms else None

    def _expected_ms(self, known: WorkerLoad) -> float:
        """Return when a peer would be done; one that has answered nothing yet is thought to be as fast as we are.

        How many wait there is a guess: one sample of ours is added for that, or frames would travel for nothing.
        """
        way_ms = FIRST_WAY_MS if known.way_ms is None else known.way_ms
        before = max(known.queued, known.mine)
        return (before + 1) * (known.service_ms or self._usual_ms) + way_ms + self._usual_ms
