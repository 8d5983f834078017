"""Estimates from recent uploads whether an answer would arrive in time.

The time of an answer is taken as a fixed part (way, queue, model) and a part for each byte that has to go first:
those under way already and its own. Both are fitted to recent answers by least squares with exponential forgetting
(Haykin, "Adaptive Filter Theory"), and an answer is given up on only where it would be late by more than the usual
deviation (the mean one, as TCP measures it: Jacobson 1988, RFC 6298). While samples are withheld a probe goes up now
and then, so that a way that got better is found; before anything is known, everything goes.

A cloud that is silent altogether is not this room's: timeouts count only once something is answered again, until then
the circuit breaker decides. Pure: ``now`` is the caller's monotonic time in seconds.
"""

from __future__ import annotations

from msgspec import Struct

from halimede.stats.decayed import DecayedLine
from halimede.system.backoff import Backoff

#: weight that an answer still has when the next one has come
KEPT = 0.9
#: answers from which the estimate counts
LEAST = 5
#: what a probe that was back in time leaves of older answers' weight
AFTER_PROBE = 0.1
#: seconds between probes: the first, doubled by each that fails, and the longest
PROBE_S, MAX_PROBE_S = 1.0, 30.0
#: what was waited for in vain is taken to need so many times as long: how long it takes is not known (Karn 1987)
IN_VAIN = 2.0
#: timeouts that are remembered until something is answered
MOST_TIMEOUTS = 16


class UploadTiming(Struct, frozen=True, gc=False):
    """An upload in flight: its bytes, and the bytes queued before its answer, its own included."""

    size: int
    ahead: int
    probe: bool


class LatencyEstimator:
    """Latency model of the next tier: call ``hopeless``, then ``begin`` and ``end`` for each upload."""

    def __init__(self) -> None:
        self._under_way = 0
        self._answers = 0
        self._deviation = 0.0
        #: seconds of answers by the bytes before them
        self._line = DecayedLine(KEPT)
        self._timeouts: list[tuple[int, float]] = []
        self._probe_backoff = Backoff(PROBE_S, MAX_PROBE_S)
        self._probe_at = 0.0
        #: a probe may go, or is under way
        self._probing = self._probe_out = False

    def hopeless(self, size: int, left_s: float, now: float) -> bool:
        """Whether an answer would be late. Now and then one such sample is uploaded as a probe."""
        if self._answers < LEAST or self._predict(self._under_way + size) - self._deviation <= left_s:
            return False
        if now < self._probe_at or self._probe_out:
            return True
        self._probing = True
        return False

    def begin(self, size: int) -> UploadTiming:
        """Record the start of an upload."""
        self._under_way += size
        probe, self._probing = self._probing, False
        self._probe_out |= probe
        return UploadTiming(size, self._under_way, probe)

    def end(self, trip: UploadTiming, seconds: float, now: float, *, answered: bool, timed_out: bool = False) -> None:
        """Record the end of an upload: answered, timed out, or (neither) not sent."""
        self._under_way -= trip.size
        if trip.probe:
            self._probed(now, in_time=answered)
        if answered:
            for ahead, waited in self._timeouts:
                if waited > self._predict(ahead):
                    self._learn(ahead, IN_VAIN * waited)
            self._timeouts.clear()
            self._learn(trip.ahead, seconds)
        elif timed_out:
            self._timeouts = [*self._timeouts, (trip.ahead, seconds)][-MOST_TIMEOUTS:]

    def _probed(self, now: float, *, in_time: bool) -> None:
        self._probe_out = False
        if in_time:
            self._probe_backoff.reset()
            self._line.fade(AFTER_PROBE)
            self._timeouts.clear()
            self._deviation = 0.0
            self._probe_at = now
        else:
            self._probe_at = now + self._probe_backoff.fail()

    def _learn(self, ahead: int, seconds: float) -> None:
        if self._answers:
            error = abs(seconds - self._predict(ahead))
            self._deviation += (1 - KEPT) * (error - self._deviation)
        self._answers += 1
        self._line.add(ahead, seconds)

    def _predict(self, ahead: int) -> float:
        mean_x, mean_y, variance, slope = self._line.fit()
        if slope is None or variance <= 1e-6 * (mean_x * mean_x + 1):
            # all of one size: smaller ones may be quicker, and that larger ones are slower has to be seen
            return mean_y * min(1.0, ahead / mean_x) if mean_x else mean_y
        slope = min(max(0.0, slope), mean_y / mean_x)  # the fixed part is not below 0
        return mean_y + slope * (ahead - mean_x)
