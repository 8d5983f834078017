"""Detects that the next tier takes fewer samples than are hard, with both rates.

The worker that requests the next tier counts its hard samples, those that were answered there, and those that the next
tier did not take. A detector reads these totals about once a second. Overload begins when a large share of the hard
samples of the last seconds was not taken, and ends when hardly one was: two limits, so that the state does not flap.
Samples that stay unanswered although the next tier is up do not begin an overload, because it may be failing. But an
overload continues with them: a next tier that is far too slow answers none in time, and the requester's circuit is then
open.

Pure: ``now`` is the caller's monotonic time in seconds. A sample costs nothing here.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

#: seconds over which samples are counted; least seconds from which overload may begin
WINDOW_S, LEAST_S = 10.0, 3.0
#: share of hard samples that are not taken with which overload begins, and below which it ends
BEGIN_SHARE, END_SHARE = 0.2, 0.05
#: least number of samples that are not taken
LEAST_REFUSED = 3


class HardTotals(Struct, frozen=True, gc=False):
    """Running totals of hard samples: all, those that the next tier answered, those that it did not take.

    ``unanswered``: it was up, but its answer did not come in time, or it was not requested because others had not come.
    """

    hard: int = 0
    answered: int = 0
    refused: int = 0
    unanswered: int = 0


class OverloadDetector:
    """Reads totals: call ``read`` about once a second."""

    def __init__(self) -> None:
        self.overloaded = False
        #: samples per second in the window: hard ones, and those that the next tier answered
        self.hard_per_s = self.answered_per_s = 0.0
        self._readings: deque[tuple[float, HardTotals]] = deque()

    def read(self, totals: HardTotals, now: float) -> None:
        """Record the totals at ``now``, and decide whether the next tier is overloaded."""
        readings = self._readings
        readings.append((now, totals))
        while len(readings) > 2 and readings[1][0] <= now - WINDOW_S:
            readings.popleft()
        began, before = readings[0]
        seconds = now - began
        if seconds < LEAST_S:
            return
        hard, refused = totals.hard - before.hard, totals.refused - before.refused
        self.hard_per_s, self.answered_per_s = hard / seconds, (totals.answered - before.answered) / seconds
        if self.overloaded:
            not_answered = refused + totals.unanswered - before.unanswered
            self.overloaded = seconds < WINDOW_S or not_answered >= END_SHARE * hard > 0
        else:
            self.overloaded = refused >= max(LEAST_REFUSED, BEGIN_SHARE * hard)
