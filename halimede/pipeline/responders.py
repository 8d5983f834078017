"""The two responders of a pipeline: each gives a sample its one answer, as a reply or as a result.

``ReplyResponder`` answers requests with the model's prediction, the next tier's, or the reason why there is none. It
remembers recent replies, so that a repeated request is not computed again. It also remembers frames that broke their
batches, so that they do not do so without limit. It never repeats a reply by itself: the requester owns deadline and
retry.

``ResultResponder`` publishes the final result of a frame, and repeats it until the broker acknowledges it. So a result
may arrive twice, under the same id. Results are not ordered. A result is counted after the acknowledgement, so that
counts never exceed the published answers.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec
import structlog

from halimede.bus import Bus
from halimede.bus.acked_publisher import AckedPublisher, Done
from halimede.bus.message import FAILURE, NO_SUBSCRIBER
from halimede.bus.port import PUBLISH_TIMEOUT
from halimede.errors import shorten_middle
from halimede.log import RateLimitedLogger
from halimede.messages import Count, Frame, Prediction, Reply, Result
from halimede.offload.channel import Channel
from halimede.offload.errors import OffloadReason
from halimede.pipeline.escalation import NextTier
from halimede.pipeline.sample import Conclusion, Outbox, Sample
from halimede.stats.ledger import Latency, Ledger
from halimede.system.lru import LruCache
from halimede.topic import Address
from halimede.tracing import CloudTimes, EdgeTimes, TraceBuffer, write
from halimede.tracing.steps import REPLY, RESULT

log = structlog.get_logger()

#: results that wait, and results in flight
CAPACITY, IN_FLIGHT = 256, 32
#: seconds until a result is repeated. A slow connection delivers what it has, and a repetition only makes it slower;
#: the keepalive detects a lost connection long before
PATIENCE_S = 60.0
TOO_LARGE = "result-too-large"
#: reason in a result by the next tier: this worker's model failed on the sample
EDGE_FAILED = "edge-failed"
#: counts of a sample, by whether a canary answered it, and whether it is hard
MINED: dict[tuple[bool, bool], list[Count]] = {
    (False, False): [],
    (False, True): [Count.HARD],
    (True, False): [Count.CANARY_ANSWERED],
    (True, True): [Count.HARD, Count.CANARY_ANSWERED, Count.CANARY_HARD],
}
#: most characters of a label in a trace
SHOWN = 256
#: replies and strikes that are remembered
REMEMBERED = 1024
#: a reply that takes more memory than this (bytes) is not remembered: a repeated request is computed again
REMEMBERED_BYTES = 64 * 1024
#: a frame that broke this many batches is not tried again
STRIKES = 2
#: least seconds reserved for the delivery of a reply, and the weight of the newest one in the running mean
LEAST_S, NEWEST = 0.01, 0.2
MAX_MESSAGE = 4096

#: the requester, by its reply topic, and the frame's id
Key = tuple[str, bytes]


@dataclass(slots=True)
class RequestStats:
    """Counts since the start. ``refused``: over a limit; ``expired``: past the deadline; ``failed``: no answer.

    ``unfit``: failed ones whose sample was the cause: unreadable or of the wrong shape.
    """

    served: int = 0
    refused: int = 0
    expired: int = 0
    failed: int = 0
    unfit: int = 0


class ReplyResponder:
    """Replies to the requests on a channel. ``ledger`` counts uploads to a next tier; None: no next tier.

    ``limit``: replies in flight. ``outbox.run`` sends them.
    """

    def __init__(
        self,
        bus: Bus,
        channel: Channel,
        *,
        limit: int,
        times: CloudTimes,
        stats: RequestStats,
        trace_buffer: TraceBuffer,
        ledger: Ledger | None = None,
    ) -> None:
        #: recent replies by request
        self.remembered: LruCache[Key, Reply] = LruCache(REMEMBERED)
        self.outbox: AckedPublisher[Reply] = AckedPublisher(
            bus,
            "reply",
            limit=limit,
            capacity=0,
            timeout_s=PUBLISH_TIMEOUT,
            retry=False,
            substitute=self._unwritable,
        )
        #: seconds to reserve for a reply: its delivery through the broker, and as much for that of the request
        self.return_s = LEAST_S
        self._worker, self._tier = channel.worker, channel.tier
        self._times = times
        self._stats = stats
        self._trace_buffer = trace_buffer
        self._ledger = ledger
        self._limited_log = RateLimitedLogger()
        self._strikes: LruCache[bytes, int] = LruCache(REMEMBERED)
        self._acknowledged_s = 0.0

    def quarantined(self, id_: bytes) -> bool:
        """Whether a frame broke so many batches that it is not tried again."""
        return (self._strikes.get(id_) or 0) >= STRIKES

    def send(self, sample: Sample, conclusion: Conclusion) -> None:
        """Reply with the conclusion on a sample, and remember it for repeated requests."""
        outcome, beyond = conclusion.outcome, conclusion.reply
        reply = Reply(
            id=sample.frame.id,
            worker=self._worker,
            prediction=conclusion.mixed or (beyond.prediction if beyond else outcome.prediction),
            queue_ms=max((outcome.decoded or (outcome.began,))[0] - sample.queued, 0.0) * 1000,
            compute_ms=outcome.ms,
            batch=outcome.batch,
            model=sample.version,
            tier=self._tier,
            reason=conclusion.reason,
        )
        if outcome.prediction is None:
            error = self._blame(reply.id, unfit=outcome.unfit)
            if beyond is None:
                reply.error, reply.message = error, shorten_middle(outcome.error, MAX_MESSAGE)
                self._limited_log.warning(
                    "sample not answered", error=error, message=shorten_middle(reply.message, 256)
                )
        else:
            self._stats.served += 1
        if beyond:
            reply.model, reply.tier, reply.reason = beyond.model, beyond.tier, beyond.reason
            reply.by = beyond.by or beyond.worker
        if self._ledger:
            self._count(self._ledger, sample, conclusion)
        assert sample.reply_to is not None  # noqa: S101  # requests always have a reply topic
        if reply.error != "failed" and weight(reply.prediction) <= REMEMBERED_BYTES:
            self.remembered.put((sample.reply_to.text, reply.id), reply)
        self._put(sample, reply)

    def refuse(self, sample: Sample, error: str, message: str) -> None:
        """Reply that an accepted request is not computed."""
        self._put(sample, Reply(id=sample.frame.id, worker=self._worker, error=error, message=message))

    def reject(self, reply_to: Address[Reply], correlation: bytes, id_: bytes, error: str, message: str) -> None:
        """Reply that a request is not accepted."""
        self.repeat(reply_to, correlation, Reply(id=id_, worker=self._worker, error=error, message=message))

    def reject_unfit(self, reply_to: Address[Reply], correlation: bytes, id_: bytes, message: str) -> None:
        """Reply that a frame cannot be read."""
        self.reject(reply_to, correlation, id_, self._blame(id_, unfit=True), message)

    def repeat(self, reply_to: Address[Reply], correlation: bytes, reply: Reply) -> None:
        """Send a reply without counting it, if the outbox has capacity.

        Without capacity the reply is dropped, and the requester repeats its request: more replies in flight would only
        take memory.
        """
        if self.outbox.ready:
            self.outbox.put(reply_to, reply, correlation=correlation)

    def _put(self, sample: Sample, reply: Reply) -> None:
        trace = sample.trace
        assert sample.reply_to is not None  # noqa: S101  # requests always have a reply topic
        self.outbox.put(
            sample.reply_to,
            reply,
            partial(self._sent, sample, reply, time.monotonic()),
            properties=write(trace.here) if trace.travels else None,
            correlation=sample.correlation,
        )

    def _sent(self, sample: Sample, reply: Reply, began: float, reason: int) -> None:
        """Record whether a reply was delivered."""
        now = time.monotonic()
        sample.trace.step((REPLY, began, now, reply.error, reason < FAILURE and reason != NO_SUBSCRIBER))
        self._times.total.record((now - sample.began) * 1000)
        self._trace_buffer.done(sample.trace)
        if reason < FAILURE:
            self._acknowledged_s += NEWEST * (now - began - self._acknowledged_s)
            self.return_s = max(LEAST_S, 2 * self._acknowledged_s)

    def _blame(self, id_: bytes, *, unfit: bool) -> str:
        """Count a failure and return its error; a frame that broke its batch often is not tried again."""
        self._stats.failed += 1
        if unfit:
            self._stats.unfit += 1
            return "invalid"
        strikes = (self._strikes.get(id_) or 0) + 1
        self._strikes.put(id_, strikes)
        return "quarantined" if strikes >= STRIKES else "failed"

    def _count(self, ledger: Ledger, sample: Sample, conclusion: Conclusion) -> None:
        """Count the hard, withheld and escalated samples of a tier."""
        decision = conclusion.decision
        ledger.add(Count.HARD, int(decision.hard))
        ledger.add(Count.WITHHELD, int(decision.reason is not None))
        ledger.add(Count.OVERRULED, int(conclusion.overruled))
        if conclusion.sent:
            ledger.add(Count.DEFERRED)
            ledger.add(Count.UPLOADED_BYTES, sample.uploaded or sample.frame.data.nbytes)

    def _unwritable(self, reply: Reply, error: Exception) -> Reply | None:
        """Return a reply which reports that the prediction cannot be sent."""
        self._limited_log.warning("prediction not sent", error=str(error))
        if reply.error:
            return None
        return Reply(id=reply.id, worker=self._worker, error="failed", message="the prediction cannot be sent")


def weight(prediction: Prediction | None) -> int:
    """Return the estimated size of a prediction in bytes; infinite if it cannot be encoded."""
    if prediction is None:
        return 0
    try:
        value = len(msgspec.msgpack.encode(prediction.value)) * 4 if prediction.value is not None else 0
    except (TypeError, ValueError, OverflowError, RecursionError):
        return sys.maxsize
    vectors = len(prediction.embeddings or b"")
    points = sum(map(len, prediction.landmarks or ()))
    text = sum(512 + 4 * len(line.text) for line in prediction.lines or ())
    numbers = 32 * len(prediction.probabilities or []) + 256 * len(prediction.boxes or []) + 128 * points
    return numbers + text + vectors + value


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of results: the worker, its node, its tier and the next one."""

    service: str
    worker: str
    node: str
    tier: str = ""
    next_tier: str = ""


class ResultOutbox(Outbox, Protocol):
    """Takes results for publication (``AckedPublisher``)."""

    @property
    def waiting(self) -> int:
        """Results that wait for their first attempt."""

    def put(
        self,
        address: Address[Result],
        body: Result,
        done: Done,
        *,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Take a result; ``done`` is called once it is delivered."""

    async def run(self) -> None:
        """Deliver results until cancelled."""

    async def drain(self, timeout_s: float) -> bool:
        """Wait until all results are delivered; return whether they were within ``timeout_s`` seconds."""


class ResultSink(Protocol):
    """Accepts answered samples, to show or store them."""

    def offer(self, frame: Frame, edge: Prediction | None, result: Result) -> None:
        """Take a sample. Never blocks."""


class ResultStore(ResultSink, Protocol):
    """Stores some of the samples, and counts all of them."""

    def observe(self, frame: Frame, *, hard: bool) -> None:
        """Count an answered sample."""


def result_outbox(bus: Bus, *, limit: int = IN_FLIGHT, capacity: int = CAPACITY) -> AckedPublisher[Result]:
    """Return the outbox of results: bounded, and it repeats each result until the broker acknowledges it."""
    return AckedPublisher(
        bus, "result", limit=limit, capacity=capacity, timeout_s=PATIENCE_S, retry=True, substitute=_without_prediction
    )


def _without_prediction(result: Result, error: Exception) -> Result | None:
    """Return a substitute for a result that is too large or cannot be encoded."""
    log.warning("result truncated", frame=result.id, error=str(error))
    if result.reason == TOO_LARGE:
        return None
    return msgspec.structs.replace(result, prediction=Prediction(), edge=None, reason=TOO_LARGE)


class ResultResponder:
    """Makes final results, and gives them to ``outbox``.

    ``tier``: the next tier, which answers hard samples. ``previews`` gets the samples that another worker was requested
    to answer, ``keeper`` all hard samples and the audited ones.
    """

    return_s = 0.0

    def __init__(
        self,
        origin: Origin,
        outbox: ResultOutbox,
        address: Address[Result],
        ledger: Ledger,
        *,
        trace_buffer: TraceBuffer | None = None,
        tier: NextTier | None = None,
        previews: ResultSink | None = None,
        keeper: ResultStore | None = None,
    ) -> None:
        #: degraded answers by reason
        self.degraded: Counter[str] = Counter()
        self.outbox = outbox
        #: by a frame's id: callbacks of the sources that keep it until it is answered; a source may send it more than
        #: once
        self.pending_acks: dict[bytes, list[Callable[[], None]]] = {}
        self.times = EdgeTimes()
        self._origin = origin
        self._address = address
        self._ledger = ledger
        self._trace_buffer = trace_buffer or TraceBuffer()
        self._tier = tier or NextTier()
        self._previews = previews
        self._keeper = keeper

    def send(self, sample: Sample, conclusion: Conclusion) -> None:
        """Publish the final result of a sample."""
        now, began, trace = asyncio.get_running_loop().time(), time.monotonic(), sample.trace
        result = self._result(sample, conclusion, now)
        if conclusion.reply:
            offload_ms = (conclusion.replied_at - conclusion.requested_at) * 1000
            self._ledger.record(Latency.OFFLOAD, offload_ms)
            self.times.offload.record(offload_ms)
        self.outbox.put(
            self._address,
            result,
            partial(self._taken, sample, conclusion, result, began),
            properties=write(trace.here) if trace.travels else None,
        )
        edge = conclusion.outcome.prediction
        if self._previews and conclusion.requested_at:
            self._previews.offer(sample.frame, edge, result)
        if self._keeper:
            self._keeper.observe(sample.frame, hard=result.hard)
            if result.hard:
                self._keeper.offer(sample.frame, edge, result)

    def audited(self, sample: Sample, conclusion: Conclusion) -> None:
        """Store an audited sample, with the next tier's answer as the result."""
        if self._keeper:
            result = self._result(sample, conclusion, asyncio.get_running_loop().time())
            self._keeper.offer(sample.frame, conclusion.outcome.prediction, result)

    def _result(self, sample: Sample, conclusion: Conclusion, now: float) -> Result:
        """Return the result: the reply's prediction or this worker's, degraded if it needed the next tier."""
        outcome, decision, reply = conclusion.outcome, conclusion.decision, conclusion.reply
        origin, frame, edge = self._origin, sample.frame, outcome.prediction
        final = conclusion.mixed or (reply.prediction if reply else edge) or Prediction()
        reason = reply.reason if reply else conclusion.reason
        if edge is None and not conclusion.requested_at:
            log.warning("frame not answered", frame=frame.id.hex(), error=shorten_middle(outcome.error, 256))
            reason = OffloadReason.ERROR
        elif reply and outcome.error and not reason:
            reason = EDGE_FAILED
        return Result(
            id=frame.id.hex(),
            service=origin.service,
            camera=frame.camera,
            file=frame.file,
            sequence=frame.sequence,
            captured_ns=frame.captured_ns,
            by=self._tier.by if reply else "peer" if sample.peer else "edge",
            hard=decision.hard,
            degraded=reply is None and reason != "" and not (decision.is_held_back and edge),
            reason=reason,
            label=final.label,
            score=final.score,
            prediction=final,
            edge=edge if reply else None,
            worker=(reply.by or reply.worker) if reply else sample.peer or origin.worker,
            node=origin.node,
            model=reply.model if reply else sample.version,
            tier=(reply.tier or origin.next_tier) if reply else origin.tier,
            hardness=decision.hardness,
            cut=decision.cut,
            audit=decision.audit,
            mixed=conclusion.mixed is not None,
            total_ms=(now - sample.accepted) * 1000,
            edge_ms=outcome.ms,
            offload_ms=(conclusion.replied_at - conclusion.requested_at) * 1000 if conclusion.requested_at else 0.0,
        )

    def _taken(self, sample: Sample, conclusion: Conclusion, result: Result, began: float, reason: int) -> None:
        """Count a result that the broker has acknowledged."""
        trace = sample.trace
        trace.step((RESULT, began, time.monotonic(), result.by, result.hard, (result.label or "")[:SHOWN]))
        self._trace_buffer.done(trace)
        pending = self.pending_acks.pop(sample.frame.id, ())
        for answered in pending:
            answered()
        if reason >= FAILURE:  # refused even without its prediction: it is lost, and its source need not keep it
            log.error("result lost", frame=result.id)
            return
        # ACCEPTED first: a worker that is killed here must not have answered more than it accepted
        counts = [Count.ACCEPTED] if pending else []
        if reason == NO_SUBSCRIBER:
            counts.append(Count.UNRECEIVED)
        self._count(sample, conclusion, result, counts)

    def _count(self, sample: Sample, conclusion: Conclusion, result: Result, counts: list[Count]) -> None:
        """Count a sample whose result was published, after these ``counts``."""
        counts.append(Count.ANSWERED)
        if result.by == "cloud":
            counts.append(Count.CLOUD)
        counts += MINED[sample.on_trial, result.hard]
        if conclusion.decision.reason is not None:
            counts.append(Count.WITHHELD)
        if conclusion.overruled:
            counts.append(Count.OVERRULED)
        if result.degraded:
            counts.append(Count.DEGRADED)
            self.degraded[result.reason] += 1
        if conclusion.sent and self._tier.hard:
            counts.append(Count.UPLOADED)
            self._ledger.add(Count.UPLOADED_BYTES, sample.uploaded or sample.frame.data.nbytes)
        self._ledger.count(counts)
