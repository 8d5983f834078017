"""Estimates from recent uploads whether an answer would arrive in time.

The time of an answer is modelled as a fixed part (network, queue, model) and a part for each byte to transfer before
it: the bytes of uploads in flight and its own. Both parts are fitted to recent answers by least squares with
exponential forgetting (Haykin, "Adaptive Filter Theory"). A sample is withheld only if its answer would be late by more
than the mean deviation from the estimate, as TCP measures it (Jacobson 1988, RFC 6298). While samples are withheld, a
probe is uploaded at intervals, to detect a better connection. Before anything is known, all samples are uploaded.

A silent next tier is not detected here, because timeouts count only after another answer has arrived: the circuit
breaker of the offload client detects it. Pure: ``now`` is the caller's monotonic time in seconds.
"""

from __future__ import annotations

from msgspec import Struct

from halimede.stats.decayed import DecayedLine
from halimede.system.backoff import Backoff

#: weight of the older answers when the next one arrives
OLD_WEIGHT = 0.9
#: least number of answers for an estimate
MIN_ANSWERS = 5
#: weight of the older answers after a probe that was answered in time
AFTER_PROBE = 0.1
#: seconds between probes: at first, and at most, because each failed probe doubles the interval
PROBE_S, MAX_PROBE_S = 1.0, 30.0
#: a timed-out upload counts as this many times its wait, because its real time is unknown (Karn 1987)
TIMEOUT_FACTOR = 2.0
#: most timeouts that are remembered until an answer arrives
MOST_TIMEOUTS = 16


class UploadTiming(Struct, frozen=True, gc=False):
    """An upload in flight.

    Attributes:
        size: its bytes.
        ahead: bytes of all uploads that were in flight when it began, with its own.
        probe: it is uploaded to measure the connection, although its answer is expected to be late.

    """

    size: int
    ahead: int
    probe: bool


class LatencyEstimator:
    """The estimate of one worker: call ``must_withhold`` for each sample, and ``begin`` and ``end`` for each upload."""

    def __init__(self) -> None:
        #: bytes of uploads in flight
        self._under_way = 0
        #: number of upload times that were learned
        self._answers = 0
        #: mean deviation of answers from the estimate, in seconds
        self._deviation = 0.0
        #: seconds of answers by the bytes transferred before them
        self._line = DecayedLine(OLD_WEIGHT)
        #: timeouts since the last answer: bytes to transfer before the answer, and seconds of waiting
        self._timeouts: list[tuple[int, float]] = []
        self._probe_backoff = Backoff(PROBE_S, MAX_PROBE_S)
        #: the time from which the next probe may be sent
        self._probe_at = 0.0
        #: whether the next upload is a probe, and whether a probe is in flight
        self._probing = self._probe_out = False

    def must_withhold(self, size: int, left_s: float, now: float) -> bool:
        """Whether a sample of ``size`` bytes, with ``left_s`` seconds left, is withheld because it would be late.

        False at intervals for a probe, whose ``begin`` must follow.
        """
        if self._answers < MIN_ANSWERS or self._predict(self._under_way + size) - self._deviation <= left_s:
            return False
        if now < self._probe_at or self._probe_out:
            return True
        self._probing = True
        return False

    def begin(self, size: int) -> UploadTiming:
        """Record the start of an upload of ``size`` bytes; return the argument for its ``end``."""
        self._under_way += size
        probe, self._probing = self._probing, False
        self._probe_out |= probe
        return UploadTiming(size, self._under_way, probe)

    def end(self, trip: UploadTiming, seconds: float, now: float, *, answered: bool, timed_out: bool = False) -> None:
        """Record the end of the upload ``trip`` (of ``begin``) at ``now``, after ``seconds``.

        If it was neither answered nor timed out, nothing is learned from its time.
        """
        self._under_way -= trip.size
        if trip.probe:
            self._end_probe(now, in_time=answered)
        if answered:
            for ahead, waited in self._timeouts:
                if waited > self._predict(ahead):
                    self._learn(ahead, TIMEOUT_FACTOR * waited)
            self._timeouts.clear()
            self._learn(trip.ahead, seconds)
        elif timed_out:
            self._timeouts = [*self._timeouts, (trip.ahead, seconds)][-MOST_TIMEOUTS:]

    def _end_probe(self, now: float, *, in_time: bool) -> None:
        """Record the end of a probe; after one in time, forget most of what was learned before."""
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
        """Fit the estimate to an answer that took ``seconds``, with ``ahead`` bytes to transfer before it."""
        if self._answers:
            error = abs(seconds - self._predict(ahead))
            self._deviation += (1 - OLD_WEIGHT) * (error - self._deviation)
        self._answers += 1
        self._line.add(ahead, seconds)

    def _predict(self, ahead: int) -> float:
        """Return the expected seconds until an answer, with ``ahead`` bytes to transfer before it."""
        mean_x, mean_y, variance, slope = self._line.fit()
        if slope is None or variance <= 1e-6 * mean_x * mean_x:
            # all of one size: smaller uploads may be faster; that larger ones are slower must be observed first
            return mean_y * min(1.0, ahead / mean_x) if mean_x else mean_y
        slope = min(max(0.0, slope), mean_y / mean_x)  # the fixed part is at least 0
        return mean_y + slope * (ahead - mean_x)
