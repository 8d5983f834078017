"""Escalation: requests the next tier's answer to a sample, or returns why this worker's answer stands.

Edge workers, tiers, members of multi-edge services and JointModels have an ``Escalation``. It encodes the sample as the
service specifies, sends it, and reports the outcome to the upload policy. If calibration has fitted a mixture (a
function of both answers), both are fused then.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
import structlog

from halimede.errors import shorten_middle
from halimede.log import RateLimitedLogger
from halimede.messages import Count, Frame, Prediction, Reply
from halimede.mining import Verdict
from halimede.mining.calibration_file import CalibrationFile
from halimede.mining.mixture import mix
from halimede.offload.errors import OVERLOAD, UNANSWERED, OffloadError, OffloadReason
from halimede.pipeline.inference import InferenceOutcome
from halimede.pipeline.sample import NOT_ESCALATED, Conclusion, Sample
from halimede.pipeline.transcode import Upload, UploadEncoder
from halimede.pipeline.upload_policy.overload import HardTotals
from halimede.pipeline.upload_policy.policy import UploadDecision, UploadPolicy
from halimede.stats.ledger import Ledger
from halimede.tracing import FrameRecord
from halimede.tracing.steps import OFFLOAD, REGIONS

log = structlog.get_logger()

#: verdict on a sample that is not mined
EASY = Verdict(hard=False)


class SampleClient(Protocol):
    """Requests the next tier's answer to a frame; ``OffloadClient`` is one."""

    async def ask(self, frame: Frame, deadline_s: float, trace: FrameRecord | None = None) -> Reply:
        """Return the answer, with its prediction, within ``deadline_s`` seconds. Raises OffloadError with a reason.

        ``trace``: records the steps of the request; None: nothing does.
        """

    def abandon(self) -> None:
        """Expire all requests, present and later ones."""


@dataclass(frozen=True, slots=True)
class NextTier:
    """The next tier, as requests and results treat it.

    Attributes:
        by: its name in results.
        hard: escalated samples count as hard samples; False for a joint, to which all findings go.
        deadline_s: most seconds for a request; infinite: only the sample's deadline counts.
        uploads: what counts uploaded audits; None: they are counted only in the uploaded bytes.

    """

    by: Literal["cloud", "joint"] = "cloud"
    hard: bool = True
    deadline_s: float = math.inf
    uploads: Count | None = None


class Escalation:
    """Sends samples to ``client`` for an answer.

    ``ledger``: counts audits. ``encoder``: encodes uploads; None: frames are sent as received. ``audited``: called with
    each audited sample and the conclusion with the next tier's answer; None: nothing is called.

    Attributes:
        tier: the next tier.
        policy: selects the samples to escalate; None: all samples that mining finds hard are escalated.

    """

    def __init__(
        self,
        client: SampleClient,
        ledger: Ledger,
        *,
        tier: NextTier | None = None,
        policy: UploadPolicy | None = None,
        encoder: UploadEncoder | None = None,
        audited: Callable[[Sample, Conclusion], None] | None = None,
    ) -> None:
        self.tier = tier or NextTier()
        self.policy = policy
        self._client = client
        self._ledger = ledger
        self._encoder = encoder
        self._audited = audited
        self._limited_log = RateLimitedLogger()
        #: numbers of hard samples: requested from the next tier, answered, not taken, and without an answer although
        #: it was up
        self._requested = self._answered = self._refused = self._unanswered = 0

    def totals(self) -> HardTotals:
        """Return the totals of hard samples, with those that were withheld because the answer would be too late."""
        withheld = self.policy.withheld[OffloadReason.TOO_SLOW] if self.policy else 0
        return HardTotals(self._requested + withheld, self._answered, self._refused + withheld, self._unanswered)

    def abandon(self) -> None:
        """Expire all requests, present and later ones: a stopping worker answers with its own predictions."""
        self._client.abandon()

    def time_left(self, sample: Sample, now: float) -> float:
        """Return the seconds that an answer may take from ``now`` (loop time), less a reserve for the own reply."""
        return min(self.tier.deadline_s, sample.until - sample.intake.responder.return_s - now)

    # --- decisions ------------------------------------------------------------------------------------------------

    def decide_unseen(self, sample: Sample, verdict: Verdict, now: float) -> UploadDecision:
        """Return the decision about a sample that was mined before inference. ``now``: loop time."""
        if self.policy is None:
            return UploadDecision(ask=verdict.hard, hard=verdict.hard)
        return self.policy.decide(verdict, None, self._size(sample.frame), self.time_left(sample, now), now)

    def decide(self, sample: Sample, outcome: InferenceOutcome, now: float) -> UploadDecision:
        """Return the decision about a sample after inference, at ``now`` (loop time).

        A sample that the model failed on is escalated, unless the sample is the cause or the next tier is a joint.
        Adapted thresholds may replace the outcome's prediction.
        """
        prediction, policy = outcome.prediction, self.policy
        if outcome.unfit or not (self.tier.hard or prediction is not None):
            if sample.decision:
                self.forget(sample.decision)  # the sample was selected for an audit
            return NOT_ESCALATED
        verdict = outcome.verdict or EASY
        if policy is None:
            return UploadDecision(ask=verdict.hard, hard=verdict.hard and self.tier.hard)
        size = self._size(sample.frame)
        if prediction is None:
            return policy.decide_failed(size, sample.decision)
        if sample.decision:
            return sample.decision
        left_s = self.time_left(sample, now)
        decision = policy.decide(verdict, prediction, size, left_s, now, on_trial=sample.on_trial)
        if decision.draw:
            outcome.prediction = decision.draw.prediction
        return decision

    def forget(self, decision: UploadDecision) -> None:
        """Undo a decision, because the sample was not accepted or no request was sent."""
        if self.policy:
            self.policy.forget(decision)

    def _size(self, frame: Frame) -> int:
        """Return the estimated size of an upload in bytes."""
        return self._encoder.size(frame) if self._encoder else frame.data.nbytes

    # --- requests -------------------------------------------------------------------------------------------------

    async def request(self, sample: Sample, outcome: InferenceOutcome, decision: UploadDecision) -> Conclusion:
        """Request an answer to a sample; return a conclusion with the reply, or the reason why there is none.

        Waits at most ``time_left``, and for an audit at most the tier's deadline, if that is finite. Raises nothing but
        cancellation.
        """
        loop = asyncio.get_running_loop()
        concluded = Conclusion(outcome, decision, reason=OffloadReason.ERROR, requested_at=loop.time())
        trace, began = None if decision.audit else sample.trace, time.monotonic()
        hard = not decision.audit
        self._requested += hard
        left_s = self.time_left(sample, concluded.requested_at)
        if decision.audit and self.tier.deadline_s < math.inf:
            left_s = self.tier.deadline_s  # an audit has no requester that waits
        frame = msgspec.structs.replace(sample.frame, edge=outcome.prediction)
        try:
            if self._encoder is None or left_s <= 0:
                concluded.reply = await self._client.ask(frame, left_s, trace)
            else:
                # an audit compares both answers to the whole frame
                upload = await self._encoder.write(frame, left_s, whole=decision.audit)
                sample.uploaded = upload.frame.data.nbytes
                left_s -= loop.time() - concluded.requested_at
                if trace and upload.regions:
                    number = len(upload.regions.layout.placements)
                    trace.step((REGIONS, began, time.monotonic(), number, sample.uploaded))
                reply = await self._client.ask(upload.frame, left_s, trace)
                concluded.reply = self._read(upload, reply, concluded)
            concluded.reason, concluded.sent = "", True
            self._answered += hard
        except OffloadError as error:
            concluded.reason, concluded.sent = error.reason, concluded.sent or error.sent
            self._refused += hard and error.reason in OVERLOAD
            self._unanswered += hard and error.is_up and error.reason in UNANSWERED
            log.debug(
                "request not answered",
                frame=frame.id.hex(),
                reason=error.reason,
                detail=shorten_middle(error.detail),
            )
        except Exception:
            # an unexpected error of the request must not cost the sample its answer
            log.exception("offload failed", frame=frame.id.hex())
        finally:
            now = concluded.replied_at = loop.time()
            if self.policy:
                self.policy.ended(
                    decision,
                    now - concluded.requested_at,
                    now,
                    sent=concluded.sent,
                    answered=concluded.reply is not None,
                    reason=concluded.reason,
                )
        if trace:
            by = concluded.reply.worker if concluded.reply else ""
            trace.step((OFFLOAD, began, time.monotonic(), by, concluded.reason, concluded.sent))
        if self.policy and decision.draw and concluded.reply and concluded.reply.prediction:
            self.policy.learn(decision, concluded.reply.prediction)
        if self.policy and self.policy.mixture and not decision.audit:
            self._mix(self.policy.mixture, sample, concluded)
        return concluded

    def _read(self, upload: Upload, reply: Reply, concluded: Conclusion) -> Reply:
        """Return the reply to an upload in pixels of the frame. Raises OffloadError if it cannot be used."""
        concluded.sent = True
        try:
            return upload.read(reply)
        except OffloadError as error:
            self._limited_log.warning("answer of the next tier not used", detail=error.detail)
            raise

    async def audit(self, sample: Sample, outcome: InferenceOutcome, decision: UploadDecision) -> None:
        """Request an answer to a sample that this worker has answered, compare both answers, and count the audit."""
        concluded = await self.request(sample, outcome, decision)
        if concluded.sent:
            if self.tier.uploads is not None:
                self._ledger.add(self.tier.uploads)
            self._ledger.add(Count.UPLOADED_BYTES, sample.uploaded or sample.frame.data.nbytes)
        answer = concluded.reply.prediction if concluded.reply else None
        if self.policy and outcome.prediction is not None and answer is not None:
            agreed = int(self.policy.compare(outcome.prediction, answer, on_trial=sample.on_trial))
            self._ledger.add(Count.AUDITED)
            self._ledger.add(Count.AUDIT_AGREED, agreed)
            if sample.on_trial:
                self._ledger.add(Count.CANARY_AUDITED)
                self._ledger.add(Count.CANARY_AGREED, agreed)
            if self._audited:
                self._audited(sample, concluded)

    def _mix(self, mixture: CalibrationFile, sample: Sample, concluded: Conclusion) -> None:
        """Set ``mixed`` to the fusion of both answers, and ``overruled``, if there are both answers."""
        here: Prediction | None = concluded.outcome.prediction
        there = concluded.reply.prediction if concluded.reply else None
        if here is None or there is None:
            return
        try:
            mixed = mix(mixture, here, there)
        except Exception:
            # predictions of models may have any form: if both cannot be fused, the next tier's counts
            log.exception("predictions not fused", frame=sample.frame.id.hex())
            return
        if mixed is not there:
            concluded.mixed, concluded.overruled = mixed, mixed.label != there.label
