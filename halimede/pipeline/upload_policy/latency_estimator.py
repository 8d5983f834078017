"""Estimates from recent uploads whether an answer would arrive in time.

The time of an answer is modelled as a fixed part (network, queue, model) and a part for each byte to transfer before
it: those of uploads in flight and its own. Both parts are fitted to recent answers by least squares with exponential
forgetting (Haykin, "Adaptive Filter Theory"). A sample is withheld only if its answer would be late by more than the
usual deviation (the mean deviation, as TCP measures it: Jacobson 1988, RFC 6298). While samples are withheld, a probe
is uploaded at intervals, to detect a better connection; before anything is known, all samples are uploaded.

A silent next tier is not detected here: timeouts count only after another answer has arrived. Until then the circuit
breaker decides. Pure: ``now`` is the caller's monotonic time in seconds.
"""

from __future__ import annotations

from msgspec import Struct

from halimede.stats.decayed import DecayedLine
from halimede.system.backoff import Backoff

#: weight of the older answers when the next one arrives
KEPT = 0.9
#: least number of answers for an estimate
LEAST = 5
#: weight of the older answers after a probe that was answered in time
AFTER_PROBE = 0.1
#: seconds between probes: the first interval, which each failed probe doubles, and the longest
PROBE_S, MAX_PROBE_S = 1.0, 30.0
#: a timed-out upload counts as this many times its wait: its real time is unknown (Karn 1987)
IN_VAIN = 2.0
#: timeouts that are remembered until an answer arrives
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
        #: seconds of answers by the bytes transferred before them
        self._line = DecayedLine(KEPT)
        self._timeouts: list[tuple[int, float]] = []
        self._probe_backoff = Backoff(PROBE_S, MAX_PROBE_S)
        self._probe_at = 0.0
        #: a probe may be sent, or is in flight
        self._probing = self._probe_out = False

    def hopeless(self, size: int, left_s: float, now: float) -> bool:
        """Whether an answer would be late. At intervals one such sample is uploaded as a probe."""
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
            # all of one size: smaller uploads may be faster; that larger ones are slower must be observed first
            return mean_y * min(1.0, ahead / mean_x) if mean_x else mean_y
        slope = min(max(0.0, slope), mean_y / mean_x)  # the fixed part is at least 0
        return mean_y + slope * (ahead - mean_x)
