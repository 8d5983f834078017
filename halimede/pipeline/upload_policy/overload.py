"""Detects overload: more samples are hard than the next tier takes.

The worker that requests the next tier counts its hard samples, those that were answered there, and those that the next
tier did not take (``HardTotals``). An ``OverloadDetector`` reads these totals about once a second. Overload begins when
many of the hard samples of the last seconds were not taken, and ends when hardly any was not: two limits, so that the
state does not change to and fro. Samples that stay unanswered although the next tier is up do not begin an overload,
because the next tier may be failing. But they keep one going: a next tier that is far too slow answers none in time.

Pure: ``now`` is the caller's monotonic time in seconds.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

#: seconds over which samples are counted; least seconds from which overload may begin
WINDOW_S, LEAST_S = 10.0, 3.0
#: fraction of the hard samples that are not taken with which overload begins, and below which it ends
BEGIN_SHARE, END_SHARE = 0.2, 0.05
#: least number of samples that are not taken for overload to begin
LEAST_REFUSED = 3


class HardTotals(Struct, frozen=True, gc=False):
    """Running totals of one worker's hard samples.

    Attributes:
        hard: all of them but those that the upload budget withheld.
        answered: how many of them the next tier answered.
        refused: how many of them the next tier did not take, because it was busy or too slow.
        unanswered: how many of them had no answer in time although the next tier was up, or were not sent because
            earlier samples were not answered.

    """

    hard: int = 0
    answered: int = 0
    refused: int = 0
    unanswered: int = 0


class OverloadDetector:
    """Decides whether the next tier is overloaded: call ``read`` about once a second.

    Attributes:
        is_overloaded: the next tier takes fewer samples than are hard.
        hard_per_s: hard samples a second, as ``HardTotals`` counts them, over the last WINDOW_S seconds.
        answered_per_s: samples a second that the next tier answered, over the same time.

    """

    def __init__(self) -> None:
        self.is_overloaded = False
        self.hard_per_s = self.answered_per_s = 0.0
        self._readings: deque[tuple[float, HardTotals]] = deque()

    def read(self, totals: HardTotals, now: float) -> None:
        """Record the totals at ``now``, and update the attributes."""
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
        if self.is_overloaded:
            not_answered = refused + totals.unanswered - before.unanswered
            # without a full window an overload does not end
            self.is_overloaded = seconds < WINDOW_S or (hard > 0 and not_answered >= END_SHARE * hard)
        else:
            self.is_overloaded = refused >= max(LEAST_REFUSED, BEGIN_SHARE * hard)
