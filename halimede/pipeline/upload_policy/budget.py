"""Keeps the fraction of uploads at the user's target, for any mining algorithm: ``Budget``.

If mining gives a hardness (a number; higher is harder), the cut above which samples are uploaded is moved
(``ThresholdController``), which holds the fraction from above and from below. Without a hardness, samples cannot be
ordered: then hard samples are uploaded while there is budget, as a token bucket admits packets (RFC 2697), and at most
a few dozen unused samples are saved for later.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

from halimede.errors import InvalidFieldError
from halimede.mining import Verdict

#: how fast debts are paid: fraction of samples for each sample of debt
GAIN = 0.02
#: hardnesses that are remembered, and least number of them for a quantile
WINDOW, LEAST = 300, 50


class ThresholdController:
    """Moves the cut for one stream of samples with a hardness. Call ``steer`` once for each sample, in order.

    Adaptive conformal inference (Gibbs and Candès 2021, arXiv 2106.00170), with "uploaded" in place of "not covered":
    the cut is the quantile of the recent hardnesses at a level, and the level moves against the excess of uploads:
    level = target - GAIN * debt, debt = (uploaded samples) - target * (all samples). For any sequence of hardnesses,
    the debt stays within about 1/GAIN samples (their Proposition 4.1), so that the long-run error falls as 1/(GAIN *
    samples). The quantile only smooths the path to the target.

    Pure: no clock, no random source. A sample costs two bisections in WINDOW numbers.

    ``cut``: the mining rule's own, which applies until LEAST hardnesses are known, while there is no debt.

    Attributes:
        target: fraction of samples to upload, 0 to 1.
        debt: samples that were uploaded in excess; negative: too few. Bounded, so an outage is not compensated at once.
        used: the cut that the last sample was compared with.

    """

    def __init__(self, target: float, cut: float, *, debt: float = 0.0) -> None:
        self.target = target
        self.used = cut
        self._first = cut
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self.debt = self._clamp(debt)

    @property
    def cut(self) -> float:
        """The hardness above which the next sample is uploaded; at the cut itself, only while there is no debt."""
        level = self.target - GAIN * self.debt
        if level <= 0:
            return math.inf
        if level >= 1:
            return -math.inf
        if len(self._sorted) < LEAST:
            return self._first if self.debt <= 0 else math.inf
        return self._sorted[math.ceil((1 - level) * len(self._sorted)) - 1]

    def steer(self, hardness: float) -> bool:
        """Return whether a sample of this finite hardness is uploaded. True counts as an upload; see ``refund``."""
        cut = self.used = self.cut
        goes = self.debt <= 0 if hardness == cut else hardness > cut
        recent, ordered = self._recent, self._sorted
        if len(recent) == WINDOW:
            del ordered[bisect_left(ordered, recent.popleft())]
        recent.append(hardness)
        insort(ordered, hardness)
        self.count(goes=goes)
        return goes

    def count(self, *, goes: bool) -> None:
        """Count a sample, uploaded or not, against the budget."""
        self.debt = self._clamp(self.debt + goes - self.target)

    def spend(self) -> None:
        """Count the upload of a sample that was counted as not uploaded, such as an audit."""
        self.debt = self._clamp(self.debt + 1)

    def refund(self) -> None:
        """Undo a decided upload that did not happen."""
        self.debt = self._clamp(self.debt - 1)

    def _clamp(self, debt: float) -> float:
        """Return a debt within the levels 0 (no uploads) and 1 (all samples): more would only add lag."""
        return min(max(debt, (self.target - 1) / GAIN - 1), self.target / GAIN + 1)


class Budget:
    """One worker's budget: call ``admits`` for each sample, in order, or ``count_forced`` if the model failed on it.

    ``target``: the fraction of samples to upload, 0 to 1. ``cut``: the mining rule's own; None: it gives no numbers.
    ``uploaded``, ``samples``: uploads and all samples in earlier lives of the worker.
    """

    def __init__(self, target: float, cut: float | None = None, *, uploaded: int = 0, samples: int = 0) -> None:
        self._graded = cut is not None
        first = math.inf if cut is None else cut  # without a cut there is no hardness to compare
        self._steering = ThresholdController(target, first, debt=initial_debt(target, uploaded, samples))

    @property
    def target(self) -> float:
        """The fraction of samples to upload."""
        return self._steering.target

    @property
    def debt(self) -> float:
        """The recent uploads in excess of the target; negative: uploads that are still allowed."""
        return self._steering.debt

    @property
    def cut(self) -> float | None:
        """The hardness above which samples are uploaded now; None: mining gives no numbers."""
        return self._steering.cut if self._graded else None

    def admits(self, verdict: Verdict) -> tuple[bool, float | None]:
        """Return whether a sample is uploaded, and the cut that decided it (None: no cut did).

        True counts as an upload; ``refund`` undoes that.
        """
        if self._graded and verdict.hardness is not None and math.isfinite(verdict.hardness):
            return self._steering.steer(verdict.hardness), self._steering.used
        goes = verdict.hard and self._steering.debt <= 0 < self.target
        self._steering.count(goes=goes)
        return goes, None

    def count_forced(self) -> None:
        """Count a sample that is uploaded without ``admits``, because this worker's model failed on it."""
        self._steering.count(goes=True)

    def spend(self) -> None:
        """Count the upload of a sample that ``admits`` refused, such as an audit."""
        self._steering.spend()

    def refund(self) -> None:
        """Undo a decided upload that did not happen."""
        self._steering.refund()


def check_shares(target: float | None, audit_share: float) -> None:
    """Raise InvalidFieldError if the fraction of audits alone exceeds the budget ``target`` (None: no budget)."""
    if target is not None and audit_share > target:
        fix = f"audits count against the upload budget: set it to {target:g} (TARGET_UPLOAD_RATIO) at most"
        raise InvalidFieldError("AUDIT_SHARE", audit_share, fix)


def initial_debt(target: float, uploaded: int, samples: int) -> float:
    """Return the excess uploads of a worker that has uploaded ``uploaded`` of ``samples`` before."""
    return uploaded - target * samples
