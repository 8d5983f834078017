"""Answers requests: with the model's prediction, the next tier's, or the word for why there is none.

What was answered is remembered for a while, so that nothing is computed twice for one who requests it again; and so is
which frames broke their batches, so that they do not do it for ever. A reply is never sent again: its requester owns
the deadline and the retry.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from functools import partial

import msgspec

from halimede.bus import Bus
from halimede.bus.acked_publisher import AckedPublisher
from halimede.bus.port import PUBLISH_TIMEOUT
from halimede.bus.reasons import FAILURE, NO_SUBSCRIBER
from halimede.frames.channel import Channel
from halimede.frames.recent import Recent
from halimede.frames.seldom import Seldom
from halimede.messages import Prediction, Reply
from halimede.pipeline.sample import Conclusion, Sample
from halimede.stats.ledger import Count, Ledger
from halimede.topic import Address
from halimede.tracing import Book, CloudTimes, write
from halimede.tracing.steps import REPLY

#: replies and strikes that are remembered
REMEMBERED = 1024
#: a reply that takes more memory than this (bytes) is not remembered: its sample is computed again on a resend
REMEMBERED_BYTES = 64 * 1024
#: after breaking this many batches a frame is not tried again
STRIKES = 2
#: seconds that a reply's way is taken to cost at least, and the weight of the newest one in the running mean
LEAST_S, NEWEST = 0.01, 0.2
MAX_MESSAGE = 4096

#: who requested it, by its reply topic, and the frame's id
Key = tuple[str, bytes]


@dataclass(slots=True)
class RequestStats:
    """Counts since the start. ``refused``: no room; ``expired``: nobody waited any more; ``failed``: no prediction.

    ``unfit``: those of the failed that were to blame themselves, unreadable or of the wrong shape.
    """

    served: int = 0
    refused: int = 0
    expired: int = 0
    failed: int = 0
    unfit: int = 0


class ReplyResponder:
    """Replies as the worker and tier of a channel. ``ledger`` counts what went up to a next tier; None: there is none.

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
        book: Book,
        ledger: Ledger | None = None,
    ) -> None:
        #: what requests were answered, as far as it is remembered
        self.remembered: Recent[Key, Reply] = Recent(REMEMBERED)
        self.outbox: AckedPublisher[Reply] = AckedPublisher(
            bus,
            "reply",
            limit=limit,
            capacity=0,
            timeout_s=PUBLISH_TIMEOUT,
            retry=False,
            substitute=self._unwritable,
        )
        #: seconds to leave for a reply: its way through the broker, and as much for the request's way here
        self.return_s = LEAST_S
        self._worker, self._tier = channel.worker, channel.tier
        self._times = times
        self._stats = stats
        self._book = book
        self._ledger = ledger
        self._seldom = Seldom()
        self._strikes: Recent[bytes, int] = Recent(REMEMBERED)
        self._acknowledged_s = 0.0

    def quarantined(self, id_: bytes) -> bool:
        """Whether a frame broke so many batches that it is not tried again."""
        return (self._strikes.get(id_) or 0) >= STRIKES

    def send(self, sample: Sample, conclusion: Conclusion) -> None:
        """Reply with the conclusion on a sample, and remember it for whoever requests it again."""
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
                reply.error, reply.message = error, outcome.error[:MAX_MESSAGE]
                self._seldom.warning("sample not answered", error=error, message=reply.message[:256])
        else:
            self._stats.served += 1
        if beyond:
            reply.model, reply.tier, reply.reason = beyond.model, beyond.tier, beyond.reason
            reply.by = beyond.by or beyond.worker
        if self._ledger:
            self._count(self._ledger, sample, conclusion)
        assert sample.reply_to is not None  # noqa: S101  # it is a request
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
        """Send a reply that nothing is noted of, if there is room for it.

        Whoever does not get it requests it again: as many as may be in flight are not acknowledged, and more of them
        would only take memory.
        """
        if self.outbox.ready:
            self.outbox.put(reply_to, reply, _ignore, correlation=correlation)

    def _put(self, sample: Sample, reply: Reply) -> None:
        trace = sample.trace
        assert sample.reply_to is not None  # noqa: S101  # it is a request
        self.outbox.put(
            sample.reply_to,
            reply,
            partial(self._sent, sample, reply, time.monotonic()),
            properties=write(trace.here) if trace.travels else None,
            correlation=sample.correlation,
        )

    def _sent(self, sample: Sample, reply: Reply, began: float, reason: int) -> None:
        """Note what became of a reply: the broker has it, or it was not delivered."""
        now = time.monotonic()
        sample.trace.step((REPLY, began, now, reply.error, reason < FAILURE and reason != NO_SUBSCRIBER))
        self._times.total.record((now - sample.began) * 1000)
        self._book.done(sample.trace)
        if reason < FAILURE:
            self._acknowledged_s += NEWEST * (now - began - self._acknowledged_s)
            self.return_s = max(LEAST_S, 2 * self._acknowledged_s)

    def _blame(self, id_: bytes, *, unfit: bool) -> str:
        """Count a failure and return the word for it; a frame that broke its batch often is not tried again."""
        self._stats.failed += 1
        if unfit:
            self._stats.unfit += 1
            return "invalid"
        strikes = (self._strikes.get(id_) or 0) + 1
        self._strikes.put(id_, strikes)
        return "quarantined" if strikes >= STRIKES else "failed"

    def _count(self, ledger: Ledger, sample: Sample, conclusion: Conclusion) -> None:
        """Count what a tier found hard, kept back and passed on."""
        decision = conclusion.decision
        ledger.add(Count.HARD, int(decision.hard))
        ledger.add(Count.WITHHELD, int(decision.reason is not None))
        ledger.add(Count.OVERRULED, int(conclusion.overruled))
        if conclusion.sent:
            ledger.add(Count.DEFERRED)
            ledger.add(Count.UPLOADED_BYTES, sample.uploaded or sample.frame.data.nbytes)

    def _unwritable(self, reply: Reply, error: Exception) -> Reply | None:
        """Return the reply that a prediction cannot be sent."""
        self._seldom.warning("prediction cannot be sent", error=str(error))
        if reply.error:
            return None
        return Reply(id=reply.id, worker=self._worker, error="failed", message="the prediction cannot be sent")


def weight(prediction: Prediction | None) -> int:
    """Return about how many bytes of memory a prediction takes; without end for one that cannot be written."""
    if prediction is None:
        return 0
    try:
        value = len(msgspec.msgpack.encode(prediction.value)) * 4 if prediction.value is not None else 0
    except (TypeError, ValueError, OverflowError, RecursionError):
        return sys.maxsize
    vectors = len(prediction.embeddings or b"")
    return 32 * len(prediction.probabilities or []) + 256 * len(prediction.boxes or []) + vectors + value


def _ignore(_: int) -> None:
    """Note nothing."""
