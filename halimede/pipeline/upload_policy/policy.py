"""Decides about each sample, from mining, budget, uplink and audits.

Edge workers and tiers between edge and cloud use it. The order matters: a sample that the model here failed on is
uploaded. Then the budget decides what is hard (it may move the cut), then the uplink withholds samples whose answers
would be late. Of the easy samples that remain, some are uploaded as audits.
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
from halimede.pipeline.upload_policy.audit import Audits, agrees
from halimede.pipeline.upload_policy.budget import Budget, check_shares
from halimede.pipeline.upload_policy.drift import Drift
from halimede.pipeline.upload_policy.latency_estimator import LatencyEstimator, UploadTiming

log = structlog.get_logger()

#: share of the budget that audits may have that the worker itself did not configure
AUDITS_OF_BUDGET = 0.5


class PolicySettings(Protocol):
    """The settings of a worker's uploads: see ``halimede.worker.settings.Settings``."""

    @property
    def hem_name(self) -> str:
        """The mining algorithm."""

    @property
    def hem_mode(self) -> str:
        """Whether mining judges samples before inference, or predictions."""

    @property
    def calibration(self) -> Path | None:
        """The file with the calibration."""

    @property
    def target_upload_ratio(self) -> float | None:
        """The share of samples that may be uploaded."""

    @property
    def audit_share(self) -> float:
        """The share of easy samples to upload as audits."""

    @property
    def fusion(self) -> str:
        """How two answers are fused."""

    @property
    def costs(self) -> Costs | None:
        """The costs by which thresholds are adapted."""


class UploadDecision(Struct, frozen=True, kw_only=True, gc=False):
    """The decision about a sample.

    Attributes:
        ask: the next tier is requested; with ``audit`` in addition to this worker's answer, which counts.
        hard: by mining, with the cut of the budget; a sample at this cut is hard, whether the budget has room or not.
        reason: why a hard sample is not escalated.
        hardness, cut: the compared numbers, if mining compares numbers.
        trip: argument of ``UploadPolicy.ended``, if the next tier is requested.
        draw: the decision of adapted thresholds, if they have decided: it has the edge's answer.

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
        """Whether the sample is escalated."""
        return self.ask and not self.audit

    @property
    def is_held_back(self) -> bool:
        """Whether the budget had no room for a sample at its own cut: the edge answers it as the user configured."""
        return self.reason is OffloadReason.BUDGET and self.hardness is not None


class UploadPolicy:
    """Decides for one worker. Call ``ended`` once for each decision with a trip."""

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
        #: hard samples that were not escalated, by reason
        self.withheld: Counter[str] = Counter()
        self.budget = budget
        self.uplink = uplink or LatencyEstimator()
        self.audits = audits
        self.drift = drift
        #: the calibration whose mixture fuses both answers; None: the next tier's answer counts
        self.mixture = mixture
        #: thresholds that follow the stream, for the least cost; None: the rule's own decide
        self.thresholds = thresholds
        #: the user allows no uploads, not even of samples that the model failed on
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
        """Decide about a sample of ``size`` bytes with a deadline in ``left_s`` seconds.

        ``prediction`` is the model's answer; None: it failed, or did not run (then ``verdict`` is about the sample).
        ``now`` is monotonic. ``on_trial``: a canary answered, which the calibration does not describe.
        """
        hardness, cut, hard, reason = verdict.hardness, verdict.cut, verdict.hard, None
        if self.drift and not on_trial and (prediction is not None or hardness is not None):
            self.drift.see(hardness, prediction.label if prediction else None)
        draw = None if self.thresholds is None or on_trial else self._draw(prediction)
        if draw:
            hard, cut = draw.is_up, None
        if self.budget:
            goes, moved = self.budget.admits(verdict)
            if moved is not None:
                hard, cut = goes or _is_hard_at(verdict, moved), moved
            if hard and not goes:
                reason = OffloadReason.BUDGET
        if hard and not reason and self.uplink.hopeless(size, left_s, now):
            reason = OffloadReason.TOO_SLOW
        if cut is not None and not math.isfinite(cut):
            cut = None  # messages cannot carry infinity
        if reason:
            self.withheld[reason] += 1
            return UploadDecision(ask=False, hard=hard, reason=reason, hardness=hardness, cut=cut, draw=draw)
        if hard:
            trip = self.uplink.begin(size)
            return UploadDecision(ask=True, hard=True, hardness=hardness, cut=cut, trip=trip, draw=draw)
        if self.audits and self.audits.draw():
            self.audits.open += 1
            if self.budget:
                self.budget.spend()
            trip = self.uplink.begin(size)
            return UploadDecision(ask=True, hard=False, audit=True, hardness=hardness, cut=cut, trip=trip, draw=draw)
        return UploadDecision(ask=False, hard=False, hardness=hardness, cut=cut, draw=draw)

    def learn(self, decision: UploadDecision, answer: Prediction) -> None:
        """Adapt the thresholds, if they have decided, to the next tier's answer."""
        if self.thresholds and decision.draw:
            self.thresholds.learn(decision.draw, answer.label)

    def forced(self, size: int, before: UploadDecision | None = None) -> UploadDecision:
        """Decide about a sample that the model failed on: it is uploaded, and counts against the budget.

        ``before``: the decision before inference. This one replaces it, and takes its trip.
        """
        if self._closed:
            if before:
                self.ended(before, 0.0, 0.0, sent=False, answered=False)
            return UploadDecision(ask=False, hard=True)
        if before and before.trip:  # the sample was selected for an audit, and is already counted as one
            if self.audits:
                self.audits.open -= 1
            return UploadDecision(ask=True, hard=True, trip=before.trip)
        if self.budget:
            if before:
                self.budget.spend()  # the sample itself was counted then
            else:
                self.budget.forced()
        return UploadDecision(ask=True, hard=True, trip=self.uplink.begin(size))

    def ended(
        self,
        decision: UploadDecision,
        seconds: float,
        now: float,
        *,
        sent: bool,
        answered: bool,
        reason: str = "",
    ) -> None:
        """Record the outcome of an upload; ``reason``: why it was not answered.

        A sample that the next tier did not take stays charged to the budget: the samples after it are no harder, and a
        lower cut would only have more of them refused.
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
        """Return whether both answers to an audited sample agree. Incomparable answers do not agree."""
        try:
            agreed = agrees(edge, cloud)
        except Exception:
            # predictions of models may have any form
            log.exception("predictions not compared")
            agreed = False
        if self.drift and not on_trial:
            self.drift.audited(agreed)
        return agreed

    def _draw(self, prediction: Prediction | None) -> ThresholdDraw | None:
        """Return the decision of the thresholds; None: there are none, or they cannot judge the prediction."""
        if self.thresholds is None or prediction is None:
            return None
        return self.thresholds.draw(prediction, self.audits.present() if self.audits else 0.0)


def _is_hard_at(verdict: Verdict, cut: float) -> bool:
    """Whether a sample is hard at the budget's cut, which is infinite while the budget is full: then at its own cut."""
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
    """Return the policy for a worker's settings, which uploaded ``uploaded`` of ``samples`` before.

    ``audits`` returns the least share of audits at present; of a budget they get at most half. ``thresholds``: where
    adapted ones continue. Raises
    InvalidFieldError for an invalid calibration, and for audits beyond the budget.
    """
    check_shares(settings.target_upload_ratio, settings.audit_share)
    artefact = read_artefact(settings.calibration, "CALIBRATION_URL") if settings.calibration else None
    by_number = PreInferenceByNumber if settings.hem_mode == BEFORE else Graded
    cut = miner.cut if isinstance(miner, by_number) else None
    target, budget = settings.target_upload_ratio, None
    if target is not None:
        budget = Budget(target, cut, uploaded=uploaded, samples=samples)
    adaptive = None
    if settings.costs and settings.costs.adaptive and isinstance(miner, TwoThresholds):
        adaptive = AdaptiveThresholds(miner, settings.costs, chance, state=thresholds)
        audits = _larger(audits, adaptive)
    return UploadPolicy(
        budget=budget,
        audits=_audits(settings, chance, audits),
        thresholds=adaptive,
        drift=drift_of(artefact, settings.hem_name) if artefact else None,
        mixture=artefact if settings.fusion == "mixture" else None,
        closed=isinstance(miner, EdgeOnly),
    )


def _larger(least: Callable[[], float] | None, adaptive: AdaptiveThresholds) -> Callable[[], float]:
    """Return the least share of audits, also for thresholds to learn from."""
    if least is None:
        return lambda: adaptive.audit_share
    return lambda: max(least(), adaptive.audit_share)


def _audits(settings: PolicySettings, chance: Callable[[], float], least: Callable[[], float] | None) -> Audits | None:
    target = settings.target_upload_ratio
    if least:
        return Audits(settings.audit_share, chance, least, 1.0 if target is None else target * AUDITS_OF_BUDGET)
    return Audits(settings.audit_share, chance) if settings.audit_share else None


def drift_of(artefact: CalibrationFile, rule: str) -> Drift:
    """Return a detector of drift against a calibration, for a worker that mines with ``rule``."""
    return Drift(_of_rule(artefact, rule))


def _of_rule(artefact: CalibrationFile, rule: str) -> CalibrationFile:
    """Return a calibration without its hardness reference if another rule measured it."""
    if artefact.rule.lower() in {"", rule.lower()}:
        return artefact
    known = artefact.reference
    reference = msgspec.structs.replace(known, hardness=[]) if known else None
    return msgspec.structs.replace(artefact, reference=reference, figures={})
