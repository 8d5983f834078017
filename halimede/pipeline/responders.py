"""The two responders of a pipeline: each gives a sample its one answer, as a reply or as a result.

Every responder has an outbox. The pipeline gives an answer to ``send``, which puts it into the outbox and returns. The
outbox publishes the answer and waits for the broker's acknowledgement. It bounds the unacknowledged answers: while it
is full, the pipeline runs no batch, and its intake fills up.

``ReplyResponder`` publishes each reply once: the prediction of this model or of the next tier, or the reason why there
is none. The requester waits for it, and repeats its request if the reply is lost. So recent replies are remembered, and
a repeated request is not computed again. A frame that made the model fail MAX_FAILURES times is refused (quarantined).

``ResultResponder`` repeats each result until the broker acknowledges it. So a result may arrive twice, under the same
id; results are not ordered. The source of a frame keeps the frame until then, and learns of it from ``acknowledge``.
The result is counted at that moment, so that counts never exceed the published answers. A source may send a frame again
meanwhile: all its copies are acknowledged together.
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
from halimede.frames.encodings import picture_size
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

#: most results that wait, and most that are in flight
CAPACITY, MAX_IN_FLIGHT = 256, 32
#: seconds until a result is repeated. A slow connection delivers what it has, and a repetition only makes it slower;
#: the keepalive detects a lost connection long before
REPEAT_S = 60.0
#: reason in a result without its prediction, which was too large or could not be encoded
TOO_LARGE = "result-too-large"
#: reason in a result by the next tier: this worker's model failed on the sample
EDGE_FAILED = "edge-failed"
#: what is counted for a sample, by whether a canary answered it, and whether it is hard
COUNTS: dict[tuple[bool, bool], list[Count]] = {
    (False, False): [],
    (False, True): [Count.HARD],
    (True, False): [Count.CANARY_ANSWERED],
    (True, True): [Count.HARD, Count.CANARY_ANSWERED, Count.CANARY_HARD],
}
#: most characters of a label in a trace
MAX_TRACED_LABEL = 256
#: most replies that are remembered, and most frames whose failures are counted
MAX_REMEMBERED = 1024
#: a reply that takes more bytes of memory is not remembered, and a repeated request is computed again
REMEMBERED_BYTES = 64 * 1024
#: a frame on which the model failed this many times is not tried again
MAX_FAILURES = 2
#: least seconds reserved for the delivery of a reply, and the weight of the newest one in the running mean
MIN_RETURN_S, NEW_WEIGHT = 0.01, 0.2
#: most characters of an error's message
MAX_MESSAGE = 4096

#: a request: the requester's reply topic, and the frame's id
Key = tuple[str, bytes]


@dataclass(slots=True)
class RequestStats:
    """Numbers of requests since the start. The intake counts ``refused`` and ``expired``, the responder the others.

    Attributes:
        served: this worker's model made a prediction.
        refused: not accepted, because of a limit.
        expired: dropped, because the deadline was over or too close for the model.
        failed: this worker's model made no prediction; the next tier may have answered.
        unfit: how many of ``failed`` the sample itself caused: unreadable, or of the wrong shape.

    """

    served: int = 0
    refused: int = 0
    expired: int = 0
    failed: int = 0
    unfit: int = 0


class ReplyResponder:
    """A ``Responder`` (sample) that replies to the requests on a channel. ``outbox.run`` sends the replies.

    ``limit``: most replies in flight. ``ledger``: counts hard samples and uploads to a next tier; None: there is no
    next tier.

    Attributes:
        stats: numbers of requests.
        times: distributions of durations.
        remembered: recent replies by request.
        return_s: seconds to reserve for a reply: for its delivery through the broker, and as much for the request's.

    """

    def __init__(
        self, bus: Bus, channel: Channel, *, limit: int, trace_buffer: TraceBuffer, ledger: Ledger | None = None
    ) -> None:
        self.stats = RequestStats()
        self.times = CloudTimes()
        self.remembered: LruCache[Key, Reply] = LruCache(MAX_REMEMBERED)
        self.outbox: AckedPublisher[Reply] = AckedPublisher(
            bus, "reply", limit=limit, capacity=0, timeout_s=PUBLISH_TIMEOUT, retry=False, substitute=self._unwritable
        )
        self.return_s = MIN_RETURN_S
        self._worker, self._tier = channel.worker, channel.tier
        self._trace_buffer = trace_buffer
        self._ledger = ledger
        self._limited_log = RateLimitedLogger()
        #: by a frame's id: how many times the model failed on it
        self._failures: LruCache[bytes, int] = LruCache(MAX_REMEMBERED)
        #: mean seconds until the broker acknowledges a reply
        self._acknowledged_s = 0.0

    def is_quarantined(self, id_: bytes) -> bool:
        """Whether the model failed on a frame so often that it is not tried again."""
        failures = self._failures.get(id_)
        return failures is not None and failures >= MAX_FAILURES

    def send(self, sample: Sample, conclusion: Conclusion) -> None:
        """Reply to a request by its conclusion; remember the reply for repetitions.

        A large reply is not remembered, nor one with the error ``failed``.
        """
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
                self._limited_log.warning("sample not answered", error=error, message=shorten_middle(reply.message))
        else:
            self.stats.served += 1
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
        """Reply that an accepted request is not computed. ``error``, ``message``: of the ``Reply``.

        The caller counts the request.
        """
        self._put(sample, Reply(id=sample.frame.id, worker=self._worker, error=error, message=message))

    def reject(self, reply_to: Address[Reply], correlation: bytes, id_: bytes, error: str, message: str) -> None:
        """Reply that a request for the frame ``id_`` is not accepted. ``error``, ``message``: of the ``Reply``.

        The caller counts the request.
        """
        self.repeat(reply_to, correlation, Reply(id=id_, worker=self._worker, error=error, message=message))

    def reject_unfit(self, reply_to: Address[Reply], correlation: bytes, id_: bytes, message: str) -> None:
        """Reply that the frame ``id_`` cannot be read, and count it as failed. ``message``: of the ``Reply``."""
        self.reject(reply_to, correlation, id_, self._blame(id_, unfit=True), message)

    def repeat(self, reply_to: Address[Reply], correlation: bytes, reply: Reply) -> None:
        """Send a reply without counting it; with a full outbox drop it, since the requester repeats its request."""
        if self.outbox.ready:
            self.outbox.put(reply_to, reply, correlation=correlation)

    def _put(self, sample: Sample, reply: Reply) -> None:
        """Give the reply to a request to the outbox."""
        trace = sample.trace
        assert sample.reply_to is not None  # noqa: S101  # requests always have a reply topic
        self.outbox.put(
            sample.reply_to,
            reply,
            partial(self._record_reply, sample, reply, time.monotonic()),
            properties=write(trace.context) if trace.must_travel else None,
            correlation=sample.correlation,
        )

    def _record_reply(self, sample: Sample, reply: Reply, began: float, reason: int) -> None:
        """Record the broker's reason code for a reply that was put at ``began`` (monotonic seconds)."""
        now = time.monotonic()
        sample.trace.step((REPLY, began, now, reply.error, reason < FAILURE and reason != NO_SUBSCRIBER))
        self.times.total.record((now - sample.began) * 1000)
        self._trace_buffer.finish(sample.trace)
        if reason < FAILURE:
            self._acknowledged_s += NEW_WEIGHT * (now - began - self._acknowledged_s)
            self.return_s = max(MIN_RETURN_S, 2 * self._acknowledged_s)

    def _blame(self, id_: bytes, *, unfit: bool) -> str:
        """Count a failure and return its ``Reply.error``. ``unfit``: the sample was the cause, not the model."""
        self.stats.failed += 1
        if unfit:
            self.stats.unfit += 1
            return "invalid"
        self._failures.put(id_, (self._failures.get(id_) or 0) + 1)
        return "quarantined" if self.is_quarantined(id_) else "failed"

    def _count(self, ledger: Ledger, sample: Sample, conclusion: Conclusion) -> None:
        """Count a tier's sample: whether it is hard, withheld from the next tier, uploaded, and overruled."""
        decision = conclusion.decision
        ledger.add(Count.HARD, int(decision.hard))
        ledger.add(Count.WITHHELD, int(decision.reason is not None))
        ledger.add(Count.OVERRULED, int(conclusion.overruled))
        if conclusion.sent:
            ledger.add(Count.DEFERRED)
            ledger.add(Count.UPLOADED_BYTES, sample.uploaded or sample.frame.data.nbytes)

    def _unwritable(self, reply: Reply, error: Exception) -> Reply | None:
        """Return the reply in place of one that cannot be encoded; None: nothing can be sent."""
        self._limited_log.warning("prediction not sent", error=str(error))
        if reply.error:
            return None
        return Reply(id=reply.id, worker=self._worker, error="failed", message="the prediction cannot be sent")


def weight(prediction: Prediction | None) -> int:
    """Return the estimated bytes of memory of a prediction; ``sys.maxsize`` if it cannot be encoded."""
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
    """Where results come from, as they name it.

    Attributes:
        service: the name of the service.
        worker: the worker whose model answers.
        node: the node of that worker.
        tier: of that worker, in a service with tiers; else empty.
        next_tier: the next tier, for answers of a worker that does not name its own tier; else empty.

    """

    service: str
    worker: str
    node: str
    tier: str = ""
    next_tier: str = ""


class ResultOutbox(Outbox, Protocol):
    """An ``Outbox`` (sample) for results; ``AckedPublisher`` is one."""

    @property
    def waiting(self) -> int:
        """The number of results that wait for their first attempt."""

    def put(
        self, address: Address[Result], body: Result, done: Done, *, properties: Mapping[str, str] | None = None
    ) -> None:
        """Take a result for ``address``. ``done`` is called with the broker's reason code for it.

        ``properties``: user properties of the message, such as the trace context. Does not wait.
        """

    async def run(self) -> None:
        """Deliver results until cancelled."""

    async def drain(self, timeout_s: float) -> bool:
        """Wait until all results are delivered, at most ``timeout_s`` seconds; return whether they are."""


class ResultSink(Protocol):
    """Takes answered samples, to show or store them."""

    def offer(self, frame: Frame, edge: Prediction | None, result: Result) -> None:
        """Take a frame with this worker's prediction (None: it failed, or did not run) and its result. Never blocks."""


class ResultStore(ResultSink, Protocol):
    """A ``ResultSink`` that stores some of the samples, and counts all of them."""

    def observe(self, frame: Frame, *, hard: bool) -> None:
        """Count an answered sample. Called for all of them, before ``offer``."""


def result_outbox(bus: Bus, *, limit: int = MAX_IN_FLIGHT, capacity: int = CAPACITY) -> AckedPublisher[Result]:
    """Return an outbox that repeats each result until the broker acknowledges it.

    ``limit``: most results in flight. ``capacity``: most results that wait.
    """
    return AckedPublisher(
        bus, "result", limit=limit, capacity=capacity, timeout_s=REPEAT_S, retry=True, substitute=_without_prediction
    )


def _without_prediction(result: Result, error: Exception) -> Result | None:
    """Return the substitute for a result that is too large or cannot be encoded; None: it is a substitute already."""
    log.warning("result truncated", frame=result.id, error=str(error))
    if result.reason == TOO_LARGE:
        return None
    return msgspec.structs.replace(result, prediction=Prediction(), edge=None, reason=TOO_LARGE)


class ResultResponder:
    """A ``Responder`` (sample) that makes final results, and gives them to ``outbox`` for ``address``.

    ``ledger``: counts them. ``tier``: the next tier, which answers hard samples. ``previews``: gets the samples that
    the next tier was requested to answer; None: nobody does. ``keeper``: gets all hard samples and the audited ones;
    None: they are not stored. ``sizes``: whether a result with boxes has the size of its picture. ``trace_buffer``:
    exports the traces; None: they are not exported.

    Attributes:
        origin: where the results come from.
        degraded: number of degraded answers by reason.
        times: distributions of durations.

    """

    return_s = 0.0  # results reserve no time

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
        sizes: bool = False,
    ) -> None:
        self.degraded: Counter[str] = Counter()
        self.outbox = outbox
        self.times = EdgeTimes()
        self.origin = origin
        self.address = address
        self.ledger = ledger
        #: by a frame's id: what acknowledges it to its sources, once for each time that it was sent
        self._acks: dict[bytes, list[Callable[[], None]]] = {}
        self._trace_buffer = trace_buffer or TraceBuffer()
        self._tier = tier or NextTier()
        self._previews = previews
        self._keeper = keeper
        self._sizes = sizes

    def add_source(self, id_: bytes, ack: Callable[[], None]) -> None:
        """Call ``ack`` once the source of a new frame need not keep it: ``acknowledge`` is called for it.

        Its result is published or lost, or it was dropped as too old.
        """
        self._acks.setdefault(id_, []).append(ack)

    def rejoin_source(self, id_: bytes, ack: Callable[[], None]) -> None:
        """Call ``ack`` for a repeated frame when ``add_source`` calls that of the first one; at once if it has."""
        if id_ in self._acks:
            self._acks[id_].append(ack)
        else:
            ack()

    def acknowledge(self, id_: bytes) -> int:
        """Acknowledge a frame to its sources, which need not keep it any longer; return to how many."""
        acks = self._acks.pop(id_, ())
        for ack in acks:
            ack()
        return len(acks)

    def forget_sources(self, id_: bytes) -> None:
        """Drop what ``add_source`` added for a frame that is not accepted: its sources learn that from an error."""
        self._acks.pop(id_, None)

    def send(self, sample: Sample, conclusion: Conclusion) -> None:
        """Publish the final result of a sample by its conclusion, and offer the sample to previews and keeper."""
        now, began, trace = asyncio.get_running_loop().time(), time.monotonic(), sample.trace
        result = self._result(sample, conclusion, now)
        if self._sizes and result.prediction.boxes:
            result.size = picture_size(sample.frame)
        if conclusion.reply:
            offload_ms = (conclusion.replied_at - conclusion.requested_at) * 1000
            self.ledger.record(Latency.OFFLOAD, offload_ms)
            self.times.offload.record(offload_ms)
        self.outbox.put(
            self.address,
            result,
            partial(self._record_result, sample, conclusion, result, began),
            properties=write(trace.context) if trace.must_travel else None,
        )
        edge = conclusion.outcome.prediction
        if self._previews and conclusion.requested_at:
            self._previews.offer(sample.frame, edge, result)
        if self._keeper:
            self._keeper.observe(sample.frame, hard=result.hard)
            if result.hard:
                self._keeper.offer(sample.frame, edge, result)

    def audited(self, sample: Sample, conclusion: Conclusion) -> None:
        """Offer an audited sample to the keeper, with the next tier's answer as its result."""
        if self._keeper:
            result = self._result(sample, conclusion, asyncio.get_running_loop().time())
            self._keeper.offer(sample.frame, conclusion.outcome.prediction, result)

    def _result(self, sample: Sample, conclusion: Conclusion, now: float) -> Result:
        """Return the result: the reply's prediction, or this worker's, degraded if the next tier should have answered.

        Logs a frame without any answer.
        """
        outcome, decision, reply = conclusion.outcome, conclusion.decision, conclusion.reply
        origin, frame, edge = self.origin, sample.frame, outcome.prediction
        final = conclusion.mixed or (reply.prediction if reply else edge) or Prediction()
        reason = reply.reason if reply else conclusion.reason
        if edge is None and not conclusion.requested_at:
            log.warning("frame not answered", frame=frame.id.hex(), error=shorten_middle(outcome.error))
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

    def _record_result(self, sample: Sample, conclusion: Conclusion, result: Result, began: float, reason: int) -> None:
        """Acknowledge and count a result, for which the broker has sent the reason code ``reason``."""
        trace = sample.trace
        trace.step((RESULT, began, time.monotonic(), result.by, result.hard, (result.label or "")[:MAX_TRACED_LABEL]))
        self._trace_buffer.finish(trace)
        sources = self.acknowledge(sample.frame.id)
        if reason >= FAILURE:  # refused even without its prediction: it is lost, and its source need not keep it
            log.error("result lost", frame=result.id)
            return
        # ACCEPTED first: a worker that is killed here must not have answered more than it accepted
        counts = [Count.ACCEPTED] if sources else []
        if reason == NO_SUBSCRIBER:
            counts.append(Count.UNRECEIVED)
        self._count(sample, conclusion, result, counts)

    def _count(self, sample: Sample, conclusion: Conclusion, result: Result, counts: list[Count]) -> None:
        """Count a sample whose result was published; ``counts`` are counted before the others."""
        counts.append(Count.ANSWERED)
        if result.by == "cloud":
            counts.append(Count.CLOUD)
        counts += COUNTS[sample.on_trial, result.hard]
        if conclusion.decision.reason is not None:
            counts.append(Count.WITHHELD)
        if conclusion.overruled:
            counts.append(Count.OVERRULED)
        if result.degraded:
            counts.append(Count.DEGRADED)
            self.degraded[result.reason] += 1
        if conclusion.sent and self._tier.hard:
            counts.append(Count.UPLOADED)
            self.ledger.add(Count.UPLOADED_BYTES, sample.uploaded or sample.frame.data.nbytes)
        self.ledger.count(counts)
