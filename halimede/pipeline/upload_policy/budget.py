"""Keeps the share of uploads at the user's target, for any mining algorithm.

If the miner gives a hardness, the cut is moved (``ThresholdController``), which holds the share from above and from
below. If it gives only hard or easy, or failed, samples cannot be ordered. Then hard samples are uploaded while there
is budget, as a token bucket admits packets (RFC 2697); at most a few dozen unused samples are saved for later.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

from halimede.errors import InvalidFieldError
from halimede.mining import Verdict


class ThresholdController:
    """Moves a graded miner's cut for one stream of samples. Call ``steer`` once for each sample, in order.

    Adaptive conformal inference (Gibbs and Candès 2021, arXiv 2106.00170), with "uploaded" in place of "not covered":
    the cut is the quantile of the recent hardnesses at a level, and the level moves against the excess of uploads:
    level = target - gain * debt, debt = (uploaded samples) - target * (all samples). For any sequence of hardnesses,
    the debt stays within about 1/gain samples (their Proposition 4.1), so that the long-run error falls as 1/(gain *
    samples). The quantile only smooths the path to the target.

    Pure: no clock, no random source. A sample costs two bisections in ``window`` numbers.

    Args:
        target: share of samples to upload, 0 to 1.
        cut: initial cut: the miner's own. It applies until ``least`` hardnesses are known, while there is no debt.
        debt: samples that were uploaded in excess before (negative: too few); see ``restored``.
        gain: how fast debts are paid, in share of samples for each sample of debt.
        window: hardnesses that are remembered.
        least: hardnesses from which the quantile is used.

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
        """Excess uploads in samples; negative: too few. Bounded, so an outage is not compensated at once."""
        return self._debt

    @property
    def cut(self) -> float:
        """The hardness above which the next sample is uploaded; at it, only while there is no debt."""
        level = self.target - self._gain * self._debt
        if level <= 0:
            return math.inf
        if level >= 1:
            return -math.inf
        if len(self._sorted) < self._least:
            return self._first if self._debt <= 0 else math.inf
        return self._sorted[math.ceil((1 - level) * len(self._sorted)) - 1]

    def steer(self, hardness: float) -> bool:
        """Whether a sample of this hardness is uploaded. True counts as an upload: see ``refund``."""
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
        """Count a sample without a hardness, uploaded or not, against the budget."""
        self._owe(self._debt + goes - self.target)

    def spend(self) -> None:
        """Count a kept sample that is uploaded as an audit."""
        self._owe(self._debt + 1)

    def refund(self) -> None:
        """Undo a decided upload that did not happen."""
        self._owe(self._debt - 1)

    def _owe(self, debt: float) -> None:
        """Bound the debt where the level is 0 (no uploads) or 1 (all samples): more debt would only add lag."""
        self._debt = self._most if debt > self._most else max(debt, self._least_debt)


class Budget:
    """One worker's budget: call ``admits`` for each sample that its model has answered, in order.

    ``cut`` is a graded miner's initial cut; None: the miner gives no numbers. ``uploaded`` of ``samples`` were uploaded
    in earlier lives of the worker.
    """

    def __init__(self, target: float, cut: float | None = None, *, uploaded: int = 0, samples: int = 0) -> None:
        self._graded = cut is not None
        self._steering = ThresholdController(target, cut or 0.0, debt=restored(target, uploaded, samples))

    @property
    def target(self) -> float:
        """The share of samples to upload."""
        return self._steering.target

    @property
    def debt(self) -> float:
        """Samples uploaded in excess of late; negative: samples that may still be uploaded."""
        return self._steering.debt

    @property
    def cut(self) -> float | None:
        """The hardness from which samples are now uploaded; None: the miner gives no numbers."""
        return self._steering.cut if self._graded else None

    def admits(self, verdict: Verdict) -> tuple[bool, float | None]:
        """Return whether a sample is uploaded, and the cut that decided it. True counts as an upload."""
        if self._graded and verdict.hardness is not None and math.isfinite(verdict.hardness):
            return self._steering.steer(verdict.hardness), self._steering.used
        goes = verdict.hard and self._steering.debt <= 0 < self.target
        self._steering.count(goes=goes)
        return goes, None

    def forced(self) -> None:
        """Count an upload that the budget did not decide: this worker's model failed on the sample."""
        self._steering.count(goes=True)

    def spend(self) -> None:
        """Count a kept sample that is uploaded as an audit."""
        self._steering.spend()

    def refund(self) -> None:
        """Undo a decided upload that did not happen."""
        self._steering.refund()


def check_shares(target: float | None, audit_share: float) -> None:
    """Raise InvalidFieldError if the audits alone exceed the budget."""
    if target is not None and audit_share > target:
        fix = f"audits count against the upload budget: set it to {target:g} (TARGET_UPLOAD_RATIO) at most"
        raise InvalidFieldError("AUDIT_SHARE", audit_share, fix)


def restored(target: float, uploaded: int, samples: int) -> float:
    """Return the debt of a worker that continues with these counts."""
    return uploaded - target * samples
