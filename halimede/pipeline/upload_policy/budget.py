"""Keeps the share of uploads at the user's target, for any mining algorithm.

Where it gives a hardness, the cut is moved (``ThresholdController``): the share is held, from above and from below.
Where it says only hard or easy, or failed, there is no order to choose by: hard samples go up while there is budget, as
a token bucket lets packets through (RFC 2697), and what nobody uses of it is not saved for later beyond a few dozen
samples.
"""

from __future__ import annotations

import math

from halimede.errors import InvalidFieldError
from halimede.mining import Verdict
from halimede.pipeline.upload_policy.threshold_controller import ThresholdController, restored


class Budget:
    """One worker's budget: ``admits`` for each sample that its model has answered, in order.

    ``cut`` is where a graded miner begins, None: the miner gives no numbers. ``uploaded`` of ``samples`` went up in
    earlier lives of the worker.
    """

    def __init__(self, target: float, cut: float | None = None, *, uploaded: int = 0, samples: int = 0) -> None:
        self._graded = cut is not None
        self._steering = ThresholdController(target, cut or 0.0, debt=restored(target, uploaded, samples))

    @property
    def target(self) -> float:
        """The share of samples that shall go up."""
        return self._steering.target

    @property
    def debt(self) -> float:
        """Samples that have gone up too many of late; negative: that may still go."""
        return self._steering.debt

    @property
    def cut(self) -> float | None:
        """The hardness from which samples go up at present; None: the miner gives no numbers."""
        return self._steering.cut if self._graded else None

    def admits(self, verdict: Verdict) -> tuple[bool, float | None]:
        """Return whether a sample goes up, and the cut that decided it. It is taken as sent if so."""
        if self._graded and verdict.hardness is not None and math.isfinite(verdict.hardness):
            return self._steering.steer(verdict.hardness), self._steering.used
        goes = verdict.hard and self._steering.debt <= 0 < self.target
        self._steering.count(goes=goes)
        return goes, None

    def forced(self) -> None:
        """Take note of a sample that went up without being asked about: nobody here could answer it."""
        self._steering.count(goes=True)

    def spend(self) -> None:
        """Take note that a sample that was kept goes up as an audit."""
        self._steering.spend()

    def refund(self) -> None:
        """Take note that a sample that was to go up did not."""
        self._steering.refund()


def check_shares(target: float | None, audit_share: float) -> None:
    """Raise InvalidFieldError where audits alone would need more than the budget."""
    if target is not None and audit_share > target:
        fix = f"audits count against the upload budget: set it to {target:g} (TARGET_UPLOAD_RATIO) at most"
        raise InvalidFieldError("AUDIT_SHARE", audit_share, fix)
