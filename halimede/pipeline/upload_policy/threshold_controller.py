"""Holds a share of uploads through drift by moving a graded miner's cut.

Adaptive conformal inference (Gibbs and Candès 2021, arXiv 2106.00170), with "it goes up" in the place of "it was not
covered": the cut is the quantile of the recent hardnesses at a level, and the level is moved against what has gone up
too much: level = target - gain * debt, debt = (samples that went up) - target * (all samples). Whatever the sequence
of hardnesses is, the debt stays within about 1/gain samples (their Proposition 4.1), so that the long-run error falls
as 1/(gain * samples); the quantile only makes the way there smooth.

Pure: no clock, no chance. A sample costs two bisections in ``window`` numbers.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque


class ThresholdController:
    """The cut for one stream of samples. Ask ``steer`` once for each, in order.

    Args:
        target: share of samples that shall go up, 0 to 1.
        cut: where to begin: the miner's own. It counts until ``least`` hardnesses are known, while no debt stands.
        debt: samples that have gone up too many (or, negative, too few) before; see ``restored``.
        gain: how fast debts are paid, in share of samples for each sample of debt.
        window: hardnesses that are remembered.
        least: hardnesses from which the quantile is trusted.

    """

    def __init__(
        self, target: float, cut: float, *, debt: float = 0.0, gain: float = 0.02, window: int = 300, least: int = 50
    ) -> None:
        self.target = target
        #: the cut that the last sample was compared with
        self.used = cut
        self._gain = gain
        self._least = least
        self._first = cut
        self._recent: deque[float] = deque()
        self._window = window
        self._sorted: list[float] = []
        self._most, self._least_debt = target / gain + 1, (target - 1) / gain - 1
        self._debt = 0.0
        self._owe(debt)

    @property
    def debt(self) -> float:
        """Samples that went up too many; negative: too few. Bounded, so that an outage is not made up for at once."""
        return self._debt

    @property
    def cut(self) -> float:
        """The hardness from which the next sample goes up; at it, only while no debt stands."""
        level = self.target - self._gain * self._debt
        if level <= 0:
            return math.inf
        if level >= 1:
            return -math.inf
        if len(self._sorted) < self._least:
            return self._first if self._debt <= 0 else math.inf
        return self._sorted[math.ceil((1 - level) * len(self._sorted)) - 1]

    def steer(self, hardness: float) -> bool:
        """Whether a sample of this hardness goes up. It is taken as sent if so: ``refund`` where it was not."""
        cut = self.used = self.cut
        goes = self._debt <= 0 and cut < math.inf if hardness == cut else hardness > cut
        recent, ordered = self._recent, self._sorted
        if len(recent) == self._window:
            del ordered[bisect_left(ordered, recent.popleft())]
        recent.append(hardness)
        insort(ordered, hardness)
        self._owe(self._debt + goes - self.target)
        return goes

    def count(self, *, goes: bool) -> None:
        """Take note of a sample without a hardness, that goes up or does not: it counts against the budget."""
        self._owe(self._debt + goes - self.target)

    def spend(self) -> None:
        """Take note that a sample that was kept goes up all the same, as an audit."""
        self._owe(self._debt + 1)

    def refund(self) -> None:
        """Take note that a sample that was to go up did not."""
        self._owe(self._debt - 1)

    def _owe(self, debt: float) -> None:
        """Bound the debt where the level is 0 (nothing goes up) or 1 (everything does): more would only be lag."""
        self._debt = self._most if debt > self._most else max(debt, self._least_debt)


def restored(target: float, uploaded: int, samples: int) -> float:
    """Return the debt with which a worker goes on that has counted so much before."""
    return uploaded - target * samples
