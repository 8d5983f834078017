"""The edge loop: frame in, exactly one final result out, whatever becomes of the cloud.

A frame is accepted once it is decoded and prepared, so that what cannot be answered is refused while its source can
still be told. From then on it is counted in the ledger until the broker has taken its result. Hard samples go to the
cloud beside the loop, never in its way.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine

import structlog

from halimede.errors import DecodeError
from halimede.frames.compute import Outcome
from halimede.frames.encodings import measure
from halimede.frames.pace import Pace
from halimede.frames.payloads import open_payload
from halimede.frames.recent import Recent
from halimede.frames.slot import Slot
from halimede.frames.uploading_write import Uploads
from halimede.messages import Frame, Load
from halimede.mining import Miner
from halimede.mining.foresight import BEFORE
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.upload_policy.triage import Triage
from halimede.stats.ledger import Count, Latency, Ledger
from halimede.tracing import Book, EdgeTimes, Record
from halimede.tracing import Context as TraceContext
from halimede.tracing.steps import DECODE, RECEIVE
from halimede.worker.answering import Answering
from halimede.worker.asking import Asking, Asks, Keeps, Share
from halimede.worker.foresight import Foresight, spoken
from halimede.worker.glimpses import Glimpses
from halimede.worker.learning import Learning
from halimede.worker.limits import EdgeLimits, Owed
from halimede.worker.outbox import Outbox
from halimede.worker.preparing import Preparer
from halimede.worker.sample import Judged, Sample
from halimede.worker.settings import Settings
from halimede.worker.sharing import Sharing
from halimede.worker.turns import Turns

log = structlog.get_logger()


class EdgeLoop:
    """Takes frames (``offer``), answers them (``run``), and finishes what it has (``drain``)."""

    def __init__(
        self,
        settings: Settings,
        *,
        slot: Slot,
        miner: Miner,
        decoder: ModelThread,
        offload: Asks | None,
        outbox: Outbox,
        ledger: Ledger,
        limits: EdgeLimits | None = None,
        book: Book | None = None,
        glimpses: Glimpses | None = None,
        asking: Asking | None = None,
        share: Share | None = None,
        triage: Triage | None = None,
        keeper: Keeps | None = None,
        uploads: Uploads | None = None,
    ) -> None:
        self.times = EdgeTimes()
        self._offload = offload
        self._outbox = outbox
        self._ledger = ledger
        self._limits = limits or EdgeLimits()
        self._book = book or Book()
        self._share = share
        self._answering = Answering(
            settings,
            asks=offload,
            outbox=outbox,
            ledger=ledger,
            book=self._book,
            slot=slot,
            times=self.times,
            glimpses=glimpses,
            keeper=keeper,
            triage=triage,
            asking=asking or Asking(),
            leave=self._leave,
            taken=lambda sample: self._owed.settle(sample.frame.id),
            uploads=uploads,
        )
        self._foresight = Foresight(miner, decoder, ledger) if settings.hem_mode == BEFORE and triage else None
        self._miner = miner if self._foresight is None else spoken
        pace = Pace(queue=self._limits.inside, batch=self._limits.batch, horizon_s=self._limits.horizon_s)
        learning, preparer = Learning(ledger, self.times, self._book, pace), Preparer(decoder, self._limits.pixels)
        self._turns = Turns(slot, self._miner, preparer, pace, learning)
        self._sharing: Sharing | None = None
        if share:
            self._sharing = Sharing(
                share,
                answering=self._answering,
                turns=self._turns,
                miner=self._miner,
                beside=self._beside,
                conclude=self._conclude,
            )
        self._places = asyncio.Semaphore(self._limits.inside)
        self._patient = asyncio.Semaphore(self._limits.patient)
        self._seen: Recent[bytes, None] = Recent(self._limits.remembered)
        #: frames on their way in, and whom to tell when they are, where somebody waits
        self._entering: dict[bytes, asyncio.Event | None] = {}
        self._owed = Owed()
        self._group: asyncio.TaskGroup | None = None
        self._inside = 0
        self._left = asyncio.Event()
        self._closed = False

    @property
    def inside(self) -> int:
        """Frames accepted and not handed over yet."""
        return self._inside

    @property
    def degraded(self) -> Counter[str]:
        """Degraded answers by reason."""
        return self._answering.degraded

    def load(self) -> Load:
        """Return how much its own model has to do."""
        return self._turns.load()

    # --- frames in ------------------------------------------------------------------------------------------------

    async def offer(
        self,
        payload: bytes | memoryview,
        camera: str,
        *,
        id_: bytes | None = None,
        patient: bool = False,
        parent: TraceContext | None = None,
        answered: Callable[[], None] | None = None,
    ) -> None:
        """Accept a frame (see ``sources.Intake``). One that was accepted before is counted and dropped."""
        began = time.monotonic()
        try:
            frame = open_payload(payload, camera)
        except DecodeError:
            self._ledger.add(Count.REJECTED)
            raise
        frame.id = id_ or frame.id
        while frame.id in self._entering:  # a copy: if it is refused, or its source goes, this one counts
            entering = self._entering[frame.id] = self._entering[frame.id] or asyncio.Event()
            await entering.wait()
        if frame.id in self._seen:
            self._ledger.add(Count.DUPLICATE)
            if answered:
                self._owed.again(frame.id, answered)
            return
        self._seen.put(frame.id, None)
        if answered:
            self._owed.add(frame.id, answered)
        frame.captured_ns = frame.captured_ns or time.time_ns()
        self._entering[frame.id] = None
        try:
            await self._accept(frame, self._book.begin(frame.id, parent), began, patient=patient)
        except BaseException:
            self._seen.pop(frame.id)
            self._owed.forget(frame.id)
            raise
        finally:
            entered = self._entering.pop(frame.id)
            if entered:
                entered.set()

    async def _accept(self, frame: Frame, trace: Record, began: float, *, patient: bool) -> None:
        if patient:
            await self._patient.acquire()
        try:
            await self._places.acquire()
            received = time.monotonic()
            trace.step(RECEIVE, began, received, frame.camera, len(frame.data), frame.encoding)
            try:
                given = decision = None
                size = measure(frame)
                if self._foresight and self._group:
                    decision = self._answering.foreseen(frame, await self._foresight.look(frame, trace))
                up = decision is not None and decision.up
                if not up and not (self._group and self._sharing and self._sharing.elsewhere()):
                    given = self._turns.prepare_now(frame, size) or await self._turns.prepare(frame)
            except BaseException as error:
                self._answering.forget(decision)
                self._ledger.add(Count.REJECTED, int(isinstance(error, DecodeError)))
                self._places.release()
                raise
        except BaseException:
            if patient:
                self._patient.release()
            raise
        if self._closed:
            # never acknowledged: whoever hands this frame over is cancelled with its source
            await asyncio.get_running_loop().create_future()
        self._ledger.add(Count.ACCEPTED, int(frame.id not in self._owed))
        self._inside += 1
        ready = time.monotonic()
        sample = Sample(frame, asyncio.get_running_loop().time(), patient, trace, ready, decision=decision)
        if decision and up:
            self._beside(self._answering.ask(sample, Outcome(), decision), f"offload {frame.id.hex()}")
        elif given is None:
            assert self._sharing is not None  # noqa: S101  # it said so
            self._sharing.give(sample)
        else:
            trace.step(DECODE, received, ready)
            self.times.decode.record((ready - received) * 1000)
            model, array = given
            sample.version = model.version
            said = self._turns.at_once(sample, model, array) if self._unhurried else None
            if said:
                await self._conclude(sample, said)
            else:
                self._turns.put(sample, model, array)

    def pass_on(self) -> None:
        """Give to peers what waits here and would be done there sooner: they have said something new."""
        if self._sharing and self._group:
            self._sharing.pass_on()

    @property
    def _unhurried(self) -> bool:
        """Whether a frame may be answered as it comes: no peer may look at it, and its result does not have to wait."""
        return self._group is not None and self._sharing is None and self._outbox.at_hand

    # --- answers --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Answer accepted frames until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            while True:
                await self._turns.wait()
                for sample, judged in await self._turns.next():
                    await self._conclude(sample, judged)
                await asyncio.sleep(0)  # short models answer on this loop: others get their turn

    def _beside(self, work: Coroutine[None, None, None], name: str) -> None:
        assert self._group is not None  # noqa: S101  # ``run`` is at work
        self._group.create_task(work, name=name)

    async def _conclude(self, sample: Sample, judged: Judged) -> None:
        """Answer a sample whose model has spoken, or ask on beside the loop."""
        now = asyncio.get_running_loop().time()
        self._ledger.record(Latency.EDGE, (now - sample.accepted) * 1000)
        decision = self._answering.decide(sample, judged, now)
        if decision.up:
            self._beside(self._answering.ask(sample, judged.outcome, decision), f"offload {sample.frame.id.hex()}")
            return
        if decision.audit:
            self._beside(self._answering.audit(sample, judged.outcome, decision), f"audit {sample.frame.id.hex()}")
        await self._answering.alone(sample, judged.outcome, decision)

    def _leave(self, sample: Sample) -> None:
        """Take note that a sample's result is on its way out."""
        self._inside -= 1
        self._left.set()
        self._places.release()
        if sample.patient:
            self._patient.release()

    async def drain(self, timeout_s: float) -> bool:
        """Answer what is inside; return whether all results were taken within ``timeout_s`` seconds.

        In the last third the cloud is no longer waited for: an answer of the edge is better than none.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        patience = loop.call_at(until - timeout_s / 3, self._abandon)
        try:
            async with asyncio.timeout_at(until):
                while self._inside:
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            log.warning("not all frames were answered in time", left=self._inside)
        finally:
            patience.cancel()
        drained = await self._outbox.drain(max(until - loop.time(), 0))
        self._closed = True
        return drained and not self._inside

    def _abandon(self) -> None:
        for asked in filter(None, (self._offload, self._share)):
            asked.abandon()
