"""Publishes the one final result of each sample, sent again until the broker has it.

A result that is sent again may arrive twice, under the same id. Results are not kept in order. Each is counted once the
broker has taken it, so that counts never run ahead of answers.
"""

from __future__ import annotations

import asyncio
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
from halimede.bus.reasons import FAILURE
from halimede.frames.reasons import Reason
from halimede.messages import Frame, Prediction, Result
from halimede.pipeline.escalation import NextTier
from halimede.pipeline.sample import Conclusion, Outbox, Sample
from halimede.stats.ledger import Count, Latency, Ledger
from halimede.topic import Address
from halimede.tracing import Book, EdgeTimes, write
from halimede.tracing.steps import RESULT

log = structlog.get_logger()

#: results that wait, and results in flight
CAPACITY, IN_FLIGHT = 256, 32
#: a connection that is alive may be slow, and brings all the same what was given to it: what is given to it again only
#: makes it slower. One that is not alive is found by its keepalive long before
PATIENCE_S = 60.0
TOO_LARGE = "result-too-large"
#: characters of a label that a trace shows
SHOWN = 256


@dataclass(frozen=True, slots=True)
class Origin:
    """Who gives results: the worker, its node, its tier and the next one."""

    service: str
    worker: str
    node: str
    tier: str = ""
    next_tier: str = ""


class ResultOutbox(Outbox, Protocol):
    """Takes results (``AckedPublisher``)."""

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
    """Takes samples that were answered, to show or to keep them."""

    def offer(self, frame: Frame, edge: Prediction | None, result: Result) -> None:
        """Take a sample. Never waits."""


class PendingAcks:
    """Whom to tell when a frame is answered: its source keeps it until then."""

    def __init__(self) -> None:
        self._pending: dict[bytes, list[Callable[[], None]]] = {}

    def __contains__(self, id_: bytes) -> bool:
        return id_ in self._pending

    def add(self, id_: bytes, answered: Callable[[], None]) -> None:
        """Note whom to tell about a frame; one that came again has several."""
        self._pending.setdefault(id_, []).append(answered)

    def forget(self, id_: bytes) -> None:
        """Tell nobody: its source knows what became of it."""
        self._pending.pop(id_, None)

    def settle(self, id_: bytes) -> bool:
        """Tell everybody; return whether there was anybody."""
        pending = self._pending.pop(id_, None)
        if pending is None:
            return False
        for answered in pending:
            answered()
        return True


def result_outbox(bus: Bus, *, limit: int = IN_FLIGHT, capacity: int = CAPACITY) -> AckedPublisher[Result]:
    """Return the outbox of results: bounded, each result sent again until the broker has taken it."""
    return AckedPublisher(
        bus, "result", limit=limit, capacity=capacity, timeout_s=PATIENCE_S, retry=True, substitute=_without_prediction
    )


def _without_prediction(result: Result, error: Exception) -> Result | None:
    """Return a result that can be sent in place of one that is too large, or that cannot be written."""
    log.warning("result cannot be sent whole", frame=result.id, error=str(error))
    if result.reason == TOO_LARGE:
        return None
    return msgspec.structs.replace(result, prediction=Prediction(), edge=None, reason=TOO_LARGE)


class ResultResponder:
    """Makes final results, and hands them to ``outbox``.

    ``tier``: who is asked about hard samples. ``previews`` gets the samples that somebody else was asked about,
    ``keeper`` all hard ones.
    """

    return_s = 0.0

    def __init__(
        self,
        origin: Origin,
        outbox: ResultOutbox,
        address: Address[Result],
        ledger: Ledger,
        *,
        book: Book | None = None,
        tier: NextTier | None = None,
        previews: ResultSink | None = None,
        keeper: ResultSink | None = None,
    ) -> None:
        #: degraded answers by reason
        self.degraded: Counter[str] = Counter()
        self.outbox = outbox
        self.pending_acks = PendingAcks()
        self.times = EdgeTimes()
        self._origin = origin
        self._address = address
        self._ledger = ledger
        self._book = book or Book()
        self._tier = tier or NextTier()
        self._previews = previews
        self._keeper = keeper

    def send(self, sample: Sample, conclusion: Conclusion) -> None:
        """Publish the final result of a sample."""
        now, began, trace = asyncio.get_running_loop().time(), time.monotonic(), sample.trace
        result = self._result(sample, conclusion, now)
        if conclusion.reply:
            offload_ms = (conclusion.replied - conclusion.asked) * 1000
            self._ledger.record(Latency.OFFLOAD, offload_ms)
            self.times.offload.record(offload_ms)
        self.outbox.put(
            self._address,
            result,
            partial(self._taken, sample, conclusion, result, began),
            properties=write(trace.here) if trace.travels else None,
        )
        edge = conclusion.outcome.prediction
        if self._previews and conclusion.asked:
            self._previews.offer(sample.frame, edge, result)
        if self._keeper and result.hard:
            self._keeper.offer(sample.frame, edge, result)

    def _result(self, sample: Sample, conclusion: Conclusion, now: float) -> Result:
        """Return the final answer: the reply's, else the one here, degraded where it should have been another's."""
        outcome, decision, reply = conclusion.outcome, conclusion.decision, conclusion.reply
        origin, frame, edge = self._origin, sample.frame, outcome.prediction
        final = conclusion.mixed or (reply.prediction if reply else edge) or Prediction()
        reason = reply.reason if reply else conclusion.reason
        if edge is None and not conclusion.asked:
            log.warning("frame not answered", frame=frame.id.hex(), error=outcome.error[:256])
            reason = Reason.ERROR
        return Result(
            id=frame.id.hex(),
            service=origin.service,
            camera=frame.camera,
            sequence=frame.sequence,
            captured_ns=frame.captured_ns,
            by=self._tier.by if reply else "peer" if sample.peer else "edge",
            hard=decision.hard,
            degraded=reply is None and reason != "",
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
            offload_ms=(now - conclusion.asked) * 1000 if conclusion.asked else 0.0,
        )

    def _taken(self, sample: Sample, conclusion: Conclusion, result: Result, began: float, reason: int) -> None:
        """Count a result that the broker has taken."""
        trace = sample.trace
        trace.step((RESULT, began, time.monotonic(), result.by, result.hard, (result.label or "")[:SHOWN]))
        self._book.done(trace)
        if reason >= FAILURE:
            return  # it counts as lost
        # the first one is first: a worker that is killed here must not have answered more than it accepted
        counts = [Count.ACCEPTED, Count.ANSWERED] if self.pending_acks.settle(sample.frame.id) else [Count.ANSWERED]
        if result.by == "cloud":
            counts.append(Count.CLOUD)
        if result.hard:
            counts.append(Count.HARD)
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
