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
from typing import Literal, Protocol

import msgspec
import structlog

from halimede.frames.compute import Outcome
from halimede.frames.reasons import OffloadError, Reason
from halimede.messages import Frame, Reply, Result
from halimede.tracing import Book, EdgeTimes, Record, write
from halimede.worker.glimpses import Glimpses
from halimede.worker.ledger import Count, Latency, Ledger
from halimede.worker.outbox import Outbox
from halimede.worker.sample import Sample
from halimede.worker.settings import Settings

log = structlog.get_logger()


class Asks(Protocol):
    """Gets somebody else's answer to a frame (``OffloadClient``)."""

    async def ask(self, frame: Frame, deadline_s: float, trace: Record | None = None) -> Reply:
        """Return the answer, with its prediction. Raises OffloadError with a reason."""

    def abandon(self) -> None:
        """Let every sample run out of time, now and from now on."""


class Share(Asks, Protocol):
    """Hands frames to peers with room."""

    def elsewhere(self) -> bool:
        """Whether a peer shall look at the next frame. Costs next to nothing: it is asked for each one."""


@dataclass(frozen=True, slots=True)
class Asking:
    """Who has the last word: its name in results, and whether what is asked counts as a hard example."""

    by: Literal["cloud", "joint"] = "cloud"
    hard: bool = True


class Answering:
    """Makes final results of samples, and hands them over; ``leave`` is called for each that is on its way out."""

    def __init__(
        self,
        settings: Settings,
        *,
        asks: Asks | None,
        outbox: Outbox,
        ledger: Ledger,
        book: Book,
        times: EdgeTimes,
        glimpses: Glimpses | None,
        asking: Asking,
        leave: Callable[[Sample], None],
        taken: Callable[[Sample], bool],
    ) -> None:
        #: degraded answers by reason
        self.degraded: Counter[str] = Counter()
        self._settings = settings
        self._asks = asks
        self._outbox = outbox
        self._ledger = ledger
        self._book = book
        self._times = times
        self._glimpses = glimpses
        self._asking = asking
        self._leave = leave
        self._taken = taken

    def time_left(self, sample: Sample, now: float) -> float:
        """Return seconds for others' answers: the service's, or less where the camera wants its answer earlier."""
        own = sample.frame.deadline_ms / 1000
        return min(self._settings.deadline_s, own - (now - sample.accepted)) if own else self._settings.deadline_s

    def asks(self, outcome: Outcome) -> bool:
        """Whether somebody can be asked about it: those who bring findings together need one."""
        return self._asks is not None and (self._asking.hard or outcome.prediction is not None)

    async def alone(self, sample: Sample, outcome: Outcome) -> None:
        """Answer with what the model here, or a peer's, said; degraded if that is nothing."""
        now = asyncio.get_running_loop().time()
        result = sample.result(self._settings, outcome, now, hard=False)
        if outcome.prediction is None:
            log.warning("frame not answered", frame=sample.frame.id.hex(), error=outcome.error[:256])
            result.degraded, result.reason = True, Reason.ERROR
        await self._finish(sample, result)

    async def ask(self, sample: Sample, outcome: Outcome) -> None:
        """Get the last word on a sample from somebody else, or say why the edge's own stands."""
        assert self._asks is not None  # noqa: S101  # ``asks`` has looked
        loop = asyncio.get_running_loop()
        began, asked = loop.time(), time.monotonic()
        frame = msgspec.structs.replace(sample.frame, edge=outcome.prediction)
        reason = Reason.ERROR
        sent, reply = False, None
        try:
            reply = await self._asks.ask(frame, self.time_left(sample, began), sample.trace)
        except OffloadError as error:
            reason, sent = error.reason, error.sent
            log.debug("sample degraded", frame=frame.id.hex(), reason=reason, detail=error.detail[:256])
        except Exception:
            # a defect in the offload must not cost the sample its answer
            log.exception("offload failed", frame=frame.id.hex())
        else:
            sent = True
            self._ledger.record(Latency.OFFLOAD, (loop.time() - began) * 1000)
            self._times.offload.record((loop.time() - began) * 1000)
        now = loop.time()
        result = sample.result(
            self._settings, outcome, now, hard=self._asking.hard, reply=reply, offloaded=began, by=self._asking.by
        )
        if reply is None:
            result.degraded, result.reason = True, reason
        sample.offloaded(asked, reply, reason, sent=sent)
        await self._finish(sample, result, sent=sent)
        if self._glimpses:
            self._glimpses.offer(sample.frame, outcome.prediction, result)

    async def _finish(self, sample: Sample, result: Result, *, sent: bool = False) -> None:
        """Hand a result over. It is counted once the broker has taken it, so that counts never run ahead."""
        began, trace = time.monotonic(), sample.trace

        def taken() -> None:
            sample.answered(began, result)
            self._book.done(trace)
            self._ledger.add(Count.ACCEPTED, int(self._taken(sample)))
            self._ledger.add(Count.ANSWERED)
            for count, holds in (
                (Count.CLOUD, result.by == "cloud"),
                (Count.HARD, result.hard),
                (Count.DEGRADED, result.degraded),
                (Count.UPLOADED, sent and self._asking.hard),
            ):
                self._ledger.add(count, int(holds))
            if result.degraded:
                self.degraded[result.reason] += 1

        await self._outbox.put(result, taken, write(trace.here) if trace.travels else None)
        self._leave(sample)
