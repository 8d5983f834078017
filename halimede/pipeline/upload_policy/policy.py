"""The upload policy: decides about each sample, from mining, budget, speed of the connection, and audits.

Edge workers and tiers between edge and cloud have an ``UploadPolicy``. A sample that the model here failed on is
uploaded. For all others the budget decides first whether they are hard (it may move the cut, the number above which a
hardness is hard). Then hard samples whose answers would be late are withheld. Of the easy samples some are uploaded as
audits: the next tier's answer is only compared with this worker's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
import structlog
from msgspec import Struct

from halimede.api.deferral import Costs
from halimede.api.mining import BEFORE
from halimede.messages import Prediction
from halimede.mining import Graded, Miner, Verdict
from halimede.mining.calibration_file import CalibrationFile, read_artefact
from halimede.mining.edge_only import EdgeOnly
from halimede.mining.pre_inference import PreInferenceByNumber
from halimede.mining.two_thresholds import TwoThresholds
from halimede.offload.errors import UNTAKEN, OffloadReason
from halimede.pipeline.upload_policy.adaptive_thresholds import AdaptiveThresholds, ThresholdDraw, ThresholdState
from halimede.pipeline.upload_policy.audit import Audits, is_same_answer
from halimede.pipeline.upload_policy.budget import Budget, check_shares
from halimede.pipeline.upload_policy.drift import Drift
from halimede.pipeline.upload_policy.latency_estimator import LatencyEstimator, UploadTiming

log = structlog.get_logger()

#: most of the budget, as a fraction, for audits that the desired state or adapted thresholds require
AUDITS_OF_BUDGET = 0.5


class PolicySettings(Protocol):
    """The settings of a worker's uploads; ``halimede.worker.settings.WorkerSettings`` has them."""

    @property
    def hem_name(self) -> str:
        """The name of the mining algorithm (hard example mining)."""

    @property
    def hem_mode(self) -> str:
        """``before``: mining judges samples before inference; else predictions."""

    @property
    def calibration(self) -> Path | None:
        """The file with the calibration; None: there is none."""

    @property
    def target_upload_ratio(self) -> float | None:
        """The fraction of samples that may be uploaded; None: mining alone decides."""

    @property
    def audit_share(self) -> float:
        """The fraction of easy samples to upload as audits."""

    @property
    def fusion(self) -> str:
        """How two answers are fused: ``mixture``, or else the next tier's counts."""

    @property
    def costs(self) -> Costs | None:
        """The costs of misses, false alarms and uploads; None: thresholds are not adapted."""


class UploadDecision(Struct, frozen=True, kw_only=True, gc=False):
    """The decision about a sample.

    Attributes:
        ask: the next tier is requested.
        hard: by mining, with the cut of the budget; a sample at this cut is hard, whether the budget has room or not.
            Also a sample that the model failed on.
        audit: the next tier is requested only to compare its answer: this worker's answer counts.
        reason: why a hard sample is not escalated; None: it is, the sample is easy, or the user allows no uploads.
        hardness: the number that mining gave the sample; None: it gives none.
        cut: the number above which samples are hard; None: mining compares no numbers.
        trip: the upload, as the latency estimator knows it; None: no upload was begun.
        draw: the decision of adapted thresholds, with the edge's answer; None: they have not decided.

    """

    ask: bool
    hard: bool
    audit: bool = False
    reason: OffloadReason | None = None
    hardness: float | None = None
    cut: float | None = None
    trip: UploadTiming | None = None
    draw: ThresholdDraw | None = None

    @property
    def up(self) -> bool:
        """Whether the sample is escalated: the next tier's answer counts."""
        return self.ask and not self.audit

    @property
    def is_held_back(self) -> bool:
        """Whether the budget had no room for a hard sample with a hardness, so the edge answers as configured."""
        return self.reason is OffloadReason.BUDGET and self.hardness is not None


class UploadPolicy:
    """Decides for one worker: ``decide`` or ``decide_failed`` for each sample; ``ended`` for each decision with a trip.

    ``closed``: the user allows no uploads, not even of samples that the model failed on.

    Attributes:
        withheld: number of hard samples that were not escalated, by reason.
        budget: holds the fraction of uploads; None: mining alone decides.
        uplink: estimates whether an answer would arrive in time.
        audits: selects easy samples; None: there are no audits.
        drift: compares samples with the calibration; None: there is none.
        mixture: the calibration whose mixture fuses both answers; None: the next tier's answer counts.
        thresholds: follow the stream for the least cost; None: the mining rule's own decide.

    """

    def __init__(
        self,
        *,
        budget: Budget | None = None,
        uplink: LatencyEstimator | None = None,
        audits: Audits | None = None,
        drift: Drift | None = None,
        mixture: CalibrationFile | None = None,
        thresholds: AdaptiveThresholds | None = None,
        closed: bool = False,
    ) -> None:
        self.withheld: Counter[str] = Counter()
        self.budget = budget
        self.uplink = uplink or LatencyEstimator()
        self.audits = audits
        self.drift = drift
        self.mixture = mixture
        self.thresholds = thresholds
        self._closed = closed

    def decide(
        self,
        verdict: Verdict,
        prediction: Prediction | None,
        size: int,
        left_s: float,
        now: float,
        *,
        on_trial: bool = False,
    ) -> UploadDecision:
        """Decide about a sample whose upload has ``size`` bytes (estimated) and a deadline in ``left_s`` seconds.

        ``verdict``: of mining. ``prediction``: the model's answer; None: it did not run yet, and ``verdict`` is about
        the sample itself. ``now``: monotonic seconds. ``on_trial``: a canary answered, which the calibration does not
        describe. If the decision has a trip, call ``ended`` later.
        """
        hardness, cut, hard, reason = verdict.hardness, verdict.cut, verdict.hard, None
        if self.drift and not on_trial and (prediction is not None or hardness is not None):
            self.drift.see(hardness, prediction.label if prediction else None)
        # decide whether it is hard
        draw = None if self.thresholds is None or on_trial else self._draw(prediction)
        if draw:
            hard, cut = draw.is_up, None
        if self.budget:
            goes, moved = self.budget.admits(verdict)
            if moved is not None:
                hard, cut = goes or _is_hard_at(verdict, moved), moved
            if hard and not goes:
                reason = OffloadReason.BUDGET
        if hard and not reason and self.uplink.must_withhold(size, left_s, now):
            reason = OffloadReason.TOO_SLOW
        if cut is not None and not math.isfinite(cut):
            cut = None  # messages cannot carry infinity
        # withhold it, escalate it, audit it, or leave it to this worker
        if reason:
            self.withheld[reason] += 1
            return UploadDecision(ask=False, hard=hard, reason=reason, hardness=hardness, cut=cut, draw=draw)
        if hard:
            trip = self.uplink.begin(size)
            return UploadDecision(ask=True, hard=True, hardness=hardness, cut=cut, trip=trip, draw=draw)
        if self.audits and self.audits.must_audit():
            self.audits.open += 1
            if self.budget:
                self.budget.spend()
            trip = self.uplink.begin(size)
            return UploadDecision(ask=True, hard=False, audit=True, hardness=hardness, cut=cut, trip=trip, draw=draw)
        return UploadDecision(ask=False, hard=False, hardness=hardness, cut=cut, draw=draw)

    def learn(self, decision: UploadDecision, answer: Prediction) -> None:
        """Adapt the thresholds, if they have decided, to the next tier's answer to an uploaded sample."""
        if self.thresholds and decision.draw:
            self.thresholds.learn(decision.draw, answer.label)

    def decide_failed(self, size: int, before: UploadDecision | None = None) -> UploadDecision:
        """Decide about a sample that the model failed on: it is uploaded, unless the user allows no uploads.

        It counts against the budget, even beyond it.
        ``before``: the decision before inference, which this one replaces, with its trip; None: there was none.
        """
        if self._closed:
            if before:
                self.forget(before)
            return UploadDecision(ask=False, hard=True)
        if before and before.trip:  # the sample was selected for an audit, and is already counted as one
            if self.audits:
                self.audits.open -= 1
            return UploadDecision(ask=True, hard=True, trip=before.trip)
        if self.budget:
            if before:
                self.budget.spend()  # the sample itself was counted then
            else:
                self.budget.count_forced()
        return UploadDecision(ask=True, hard=True, trip=self.uplink.begin(size))

    def forget(self, decision: UploadDecision) -> None:
        """Undo a decision: no request was sent."""
        self.ended(decision, 0.0, 0.0, sent=False, answered=False)

    def ended(
        self, decision: UploadDecision, seconds: float, now: float, *, sent: bool, answered: bool, reason: str = ""
    ) -> None:
        """Record the outcome of an upload that took ``seconds`` and ended at ``now``; nothing without a trip.

        ``sent``: the sample was uploaded. ``answered``: the next tier has answered it. ``reason``: why not. A sample
        that the next tier did not take stays charged to the budget: a refund would lower the cut, and only more samples
        would be refused.
        """
        if decision.trip is None:
            return
        self.uplink.end(
            decision.trip, seconds, now, answered=answered, timed_out=sent and reason == OffloadReason.DEADLINE
        )
        if decision.audit and self.audits:
            self.audits.open -= 1
        if self.budget and not sent and reason not in UNTAKEN:
            self.budget.refund()

    def compare(self, edge: Prediction, cloud: Prediction, *, on_trial: bool = False) -> bool:
        """Return whether both answers to an audited sample agree, and record it for drift.

        Answers that cannot be compared do not agree. ``on_trial``: a canary answered, which is not recorded for drift.
        """
        try:
            agreed = is_same_answer(edge, cloud)
        except Exception:
            # predictions of models may have any form
            log.exception("predictions not compared")
            agreed = False
        if self.drift and not on_trial:
            self.drift.audited(agreed)
        return agreed

    def _draw(self, prediction: Prediction | None) -> ThresholdDraw | None:
        """Return the decision of adapted thresholds; None: there are none, or they cannot judge the prediction."""
        if self.thresholds is None or prediction is None:
            return None
        return self.thresholds.draw(prediction, self.audits.present() if self.audits else 0.0)


def _is_hard_at(verdict: Verdict, cut: float) -> bool:
    """Whether a sample is hard at the budget's cut; if that is infinite, as while the budget is used up, by mining."""
    return verdict.hard if cut == math.inf else verdict.hardness is not None and verdict.hardness >= cut


def create(
    settings: PolicySettings,
    miner: Miner,
    chance: Callable[[], float],
    *,
    uploaded: int = 0,
    samples: int = 0,
    audits: Callable[[], float] | None = None,
    thresholds: ThresholdState | None = None,
) -> UploadPolicy:
    """Return the policy for a worker's settings.

    ``miner``: the worker's mining. ``chance``: returns random numbers from 0 up to 1. ``uploaded``, ``samples``:
    uploads and all samples in earlier lives of the worker. ``audits``: returns the least fraction of audits at present;
    of a budget they get at most half; None: the settings' own. ``thresholds``: where adapted ones continue; None: they
    begin. Raises InvalidFieldError for an invalid calibration, and for audits beyond the budget.
    """
    check_shares(settings.target_upload_ratio, settings.audit_share)
    artefact = read_artefact(settings.calibration, "CALIBRATION_URL") if settings.calibration else None
    by_number = PreInferenceByNumber if settings.hem_mode == BEFORE else Graded
    cut = miner.cut if isinstance(miner, by_number) else None
    target, adaptive = settings.target_upload_ratio, None
    if settings.costs and settings.costs.adaptive and isinstance(miner, TwoThresholds):
        adaptive = AdaptiveThresholds(miner, settings.costs, chance, state=thresholds)
        audits = _larger(audits, adaptive)
    return UploadPolicy(
        budget=None if target is None else Budget(target, cut, uploaded=uploaded, samples=samples),
        audits=_audits(settings, chance, audits),
        thresholds=adaptive,
        drift=drift_of(artefact, settings.hem_name) if artefact else None,
        mixture=artefact if settings.fusion == "mixture" else None,
        closed=isinstance(miner, EdgeOnly),
    )


def _larger(least: Callable[[], float] | None, adaptive: AdaptiveThresholds) -> Callable[[], float]:
    """Return the function of the least fraction of audits that is also enough for thresholds to learn from."""
    if least is None:
        return lambda: adaptive.audit_share
    return lambda: max(least(), adaptive.audit_share)


def _audits(settings: PolicySettings, chance: Callable[[], float], least: Callable[[], float] | None) -> Audits | None:
    """Return what selects audits; None: nothing may require any."""
    target = settings.target_upload_ratio
    if least:
        bounded = least if target is None else lambda: min(least(), target * AUDITS_OF_BUDGET)
        return Audits(settings.audit_share, chance, bounded)
    return Audits(settings.audit_share, chance) if settings.audit_share else None


def drift_of(artefact: CalibrationFile, rule: str) -> Drift:
    """Return a detector of drift against a calibration, for a worker that mines with ``rule``.

    If the calibration is of another rule, hardness and agreement are not compared.
    """
    if artefact.rule.lower() not in {"", rule.lower()}:
        reference = artefact.reference and msgspec.structs.replace(artefact.reference, hardness=[])
        artefact = msgspec.structs.replace(artefact, reference=reference, metrics={})
    return Drift(artefact)
