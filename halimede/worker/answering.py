"""From what an edge worker's model said of a frame to its one final result.

Easy frames are answered at once. For the others somebody else is asked, the cloud or, of a multi-edge service, whoever
brings findings together; where no answer comes in time, the edge's own stands and says why.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from halimede.frames.compute import Outcome
from halimede.frames.reasons import OffloadError, Reason
from halimede.frames.slot import Slot
from halimede.frames.uploading_write import Uploads
from halimede.messages import Frame, Prediction, Reply, Result
from halimede.mining import Verdict
from halimede.mining.mixture import mix
from halimede.pipeline.upload_policy.triage import Decision, Triage
from halimede.stats.ledger import Count, Latency, Ledger
from halimede.tracing import Book, EdgeTimes, Record, write
from halimede.worker.asking import Asking, Asks, Keeps
from halimede.worker.glimpses import Glimpses
from halimede.worker.outbox import Outbox
from halimede.worker.sample import Judged, Sample
from halimede.worker.settings import Settings

log = structlog.get_logger()


#: of a sample that nobody else is asked about
KEPT = Decision(ask=False, hard=False)


@dataclass(slots=True)
class _Answered:
    """What came of asking: a reply, or the reason why there is none, and whether the sample went up."""

    reply: Reply | None = None
    reason: Reason = Reason.ERROR
    sent: bool = False


class Answering:
    """Makes final results of samples, and hands them over; ``leave`` is called for each that is on its way out.

    ``triage`` says about which samples others are asked; None: about those that mining calls hard.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        asks: Asks | None,
        outbox: Outbox,
        ledger: Ledger,
        book: Book,
        slot: Slot,
        times: EdgeTimes,
        glimpses: Glimpses | None,
        keeper: Keeps | None,
        triage: Triage | None,
        asking: Asking,
        leave: Callable[[Sample], None],
        taken: Callable[[Sample], bool],
        uploads: Uploads | None = None,
    ) -> None:
        #: degraded answers by reason
        self.degraded: Counter[str] = Counter()
        self._settings = settings
        self._asks = asks
        self._outbox = outbox
        self._ledger = ledger
        self._book = book
        self._slot = slot
        self._times = times
        self._glimpses = glimpses
        self._keeper = keeper
        self._triage = triage
        self._asking = asking
        self._leave = leave
        self._taken = taken
        self._uploads = uploads

    def time_left(self, sample: Sample, now: float | None = None) -> float:
        """Return seconds for others' answers: the service's, or less where the camera wants its answer earlier."""
        if now is None:
            now = asyncio.get_running_loop().time()
        return self._time_left(sample.frame, now - sample.accepted)

    def _time_left(self, frame: Frame, waited: float = 0.0) -> float:
        own = frame.deadline_ms / 1000
        return min(self._settings.deadline_s, own - waited) if own else self._settings.deadline_s

    # --- decisions ------------------------------------------------------------------------------------------------

    def foreseen(self, frame: Frame, verdict: Verdict) -> Decision:
        """Say what becomes of a frame that no model has seen."""
        assert self._triage is not None  # noqa: S101  # who looks ahead has one
        now = asyncio.get_running_loop().time()
        return self._triage.decide(verdict, None, self._size(frame), self._time_left(frame), now)

    def decide(self, sample: Sample, said: Judged, now: float) -> Decision:
        """Say what becomes of a sample whose model has spoken. What it could not answer is others' to answer.

        ``now`` is the loop's time.
        """
        prediction, verdict, triage = said.outcome.prediction, said.verdict, self._triage
        if self._asks is None or not (self._asking.hard or prediction is not None):
            return KEPT
        if triage is None:
            return Decision(ask=verdict.hard, hard=verdict.hard and self._asking.hard)
        size = self._size(sample.frame)
        if prediction is None:
            return triage.forced(size, sample.decision)
        if sample.decision:
            return sample.decision
        return triage.decide(verdict, prediction, size, self.time_left(sample, now), now)

    def _size(self, frame: Frame) -> int:
        """Return about how many bytes go up with a frame."""
        return self._uploads.size(frame) if self._uploads else frame.data.nbytes

    def forget(self, decision: Decision | None) -> None:
        """Take note that a frame is not accepted after all."""
        if self._triage and decision:
            self._triage.ended(decision, 0.0, 0.0, sent=False, answered=False)

    # --- answers --------------------------------------------------------------------------------------------------

    async def alone(self, sample: Sample, outcome: Outcome, decision: Decision = KEPT) -> None:
        """Answer with what the model here, or a peer's, said; degraded if that is nothing, or if it is hard."""
        now = asyncio.get_running_loop().time()
        result = sample.result(self._settings, outcome, now, decision)
        if decision.reason:
            result.degraded, result.reason = True, decision.reason
        if outcome.prediction is None:
            log.warning("frame not answered", frame=sample.frame.id.hex(), error=outcome.error[:256])
            result.degraded, result.reason = True, Reason.ERROR
        await self._finish(sample, outcome, result, withheld=decision.reason is not None)

    async def ask(self, sample: Sample, outcome: Outcome, decision: Decision) -> None:
        """Get the last word on a sample from somebody else, or say why the edge's own stands."""
        asked = time.monotonic()
        began = asyncio.get_running_loop().time()
        answered = await self._get(sample, outcome, decision, self.time_left(sample), sample.trace)
        reply, now = answered.reply, asyncio.get_running_loop().time()
        if reply:
            self._ledger.record(Latency.OFFLOAD, (now - began) * 1000)
            self._times.offload.record((now - began) * 1000)
        elif sample.decision and outcome.prediction is None:
            outcome = await self._late(sample)  # mining has spoken before the small model, which was spared
        result = sample.result(self._settings, outcome, now, decision, reply=reply, offloaded=began, by=self._asking.by)
        overruled = False
        if reply is None:
            result.degraded, result.reason = True, answered.reason
        else:
            overruled = self._mix(result, outcome.prediction, reply)
        sample.offloaded(asked, reply, answered.reason, sent=answered.sent)
        await self._finish(sample, outcome, result, sent=answered.sent, overruled=overruled)
        if self._glimpses:
            self._glimpses.offer(sample.frame, outcome.prediction, result)

    async def audit(self, sample: Sample, outcome: Outcome, decision: Decision) -> None:
        """Ask about a sample that the model here has answered, only to see whether both say the same."""
        answered = await self._get(sample, outcome, decision, self._settings.deadline_s)
        if answered.sent:
            self._uploaded(sample)
        said = answered.reply.prediction if answered.reply else None
        if self._triage and outcome.prediction is not None and said is not None:
            self._ledger.add(Count.AUDITED)
            self._ledger.add(Count.AUDIT_AGREED, int(self._triage.compare(outcome.prediction, said)))

    async def _get(
        self, sample: Sample, outcome: Outcome, decision: Decision, left_s: float, trace: Record | None = None
    ) -> _Answered:
        """Ask, and let triage learn what came of it."""
        assert self._asks is not None  # noqa: S101  # ``decide`` has looked
        loop = asyncio.get_running_loop()
        began, answered = loop.time(), _Answered()
        frame = msgspec.structs.replace(sample.frame, edge=outcome.prediction)
        try:
            if self._uploads is None:
                answered.reply = await self._asks.ask(frame, left_s, trace)
            else:
                upload = await self._uploads.write(frame, left_s)
                sample.uploaded = upload.frame.data.nbytes
                reply = await self._asks.ask(upload.frame, left_s - (loop.time() - began), trace)
                answered.reply = upload.read(reply)
            answered.sent = True
        except OffloadError as error:
            answered.reason, answered.sent = error.reason, error.sent
            log.debug("not answered", frame=frame.id.hex(), reason=error.reason, detail=error.detail[:256])
        except Exception:
            # a defect in the offload must not cost the sample its answer
            log.exception("offload failed", frame=frame.id.hex())
        finally:
            if self._triage:
                now = loop.time()
                timed_out = answered.reason is Reason.DEADLINE
                got, sent = answered.reply is not None, answered.sent
                self._triage.ended(decision, now - began, now, sent=sent, answered=got, timed_out=timed_out)
        return answered

    async def _late(self, sample: Sample) -> Outcome:
        """Let the small model answer after all."""
        ((outcome, sample.version),), _ = await self._slot.answer([sample.frame], 1)
        return outcome

    def _mix(self, result: Result, edge: Prediction | None, reply: Reply) -> bool:
        """Put the mixture of both answers in the place of the reply's; return whether it says something else."""
        cloud = reply.prediction
        if self._triage is None or self._triage.mixture is None or edge is None or cloud is None:
            return False
        try:
            mixed = mix(self._triage.mixture, edge, cloud)
        except Exception:
            # answers of models may be of any form: one that cannot be mixed is the next tier's
            log.exception("answers not mixed", frame=result.id)
            return False
        if mixed is cloud:
            return False
        result.prediction, result.label, result.score, result.mixed = mixed, mixed.label, mixed.score, True
        return mixed.label != cloud.label

    def _uploaded(self, sample: Sample) -> None:
        self._ledger.add(Count.UPLOADED)
        self._ledger.add(Count.UPLOADED_BYTES, sample.uploaded or sample.frame.data.nbytes)

    async def _finish(
        self,
        sample: Sample,
        outcome: Outcome,
        result: Result,
        *,
        sent: bool = False,
        withheld: bool = False,
        overruled: bool = False,
    ) -> None:
        """Hand a result over. It is counted once the broker has taken it, so that counts never run ahead."""
        began, trace = time.monotonic(), sample.trace

        def taken() -> None:
            sample.answered(began, result)
            self._book.done(trace)
            if self._taken(sample):
                self._ledger.add(Count.ACCEPTED)
            self._ledger.add(Count.ANSWERED)
            if result.by == "cloud":
                self._ledger.add(Count.CLOUD)
            if result.hard:
                self._ledger.add(Count.HARD)
            if withheld:
                self._ledger.add(Count.WITHHELD)
            if overruled:
                self._ledger.add(Count.OVERRULED)
            if sent and self._asking.hard:
                self._uploaded(sample)
            if result.degraded:
                self._ledger.add(Count.DEGRADED)
                self.degraded[result.reason] += 1

        await self._outbox.put(result, taken, write(trace.here) if trace.travels else None)
        self._leave(sample)
        if self._keeper and result.hard:
            self._keeper.offer(sample.frame, outcome.prediction, result)
