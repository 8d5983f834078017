"""The edge loop: frame in, exactly one final result out, whatever becomes of the cloud.

A frame is accepted once it is decoded and prepared, so that what cannot be answered is refused while its source can
still be told. From then on it is counted in the ledger until the broker has taken its result. Hard samples go to the
cloud beside the loop, never in its way.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import structlog

from halimede.errors import DecodeError
from halimede.frames.calls import calls
from halimede.frames.compute import ModelThread, Outcome
from halimede.frames.offload import OffloadClient
from halimede.frames.pace import Pace
from halimede.frames.payloads import open_payload
from halimede.frames.reasons import OffloadError, Reason
from halimede.frames.recent import Recent
from halimede.frames.seldom import Seldom
from halimede.frames.slot import Loaded, Slot
from halimede.inference import Array
from halimede.messages import Frame, Result
from halimede.mining import Miner
from halimede.tracing import Book, EdgeTimes, Record, write
from halimede.tracing import Context as TraceContext
from halimede.tracing.steps import DECODE, RECEIVE
from halimede.worker.glimpses import Glimpses
from halimede.worker.ledger import Count, Latency, Ledger
from halimede.worker.outbox import Outbox
from halimede.worker.preparing import Preparer
from halimede.worker.sample import Judged, Sample, answer_and_judge, judge_again
from halimede.worker.settings import Settings

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Bounds of an edge worker: frames inside, frames in one model call, seconds of one call, ids remembered.

    There is more room inside than hard samples can take up, so that easy ones always get through. ``pixels`` bounds
    the bytes of decoded frames that wait for the model: a picture may be a thousand times as large as its file.
    """

    inside: int = 96
    pixels: int = 256 * 1024 * 1024
    batch: int = 16
    horizon_s: float = 0.05
    remembered: int = 65_536


class EdgeLoop:
    """Takes frames (``offer``), answers them (``run``), and finishes what it has (``drain``)."""

    def __init__(
        self,
        settings: Settings,
        *,
        slot: Slot,
        miner: Miner,
        decoder: ModelThread,
        offload: OffloadClient,
        outbox: Outbox,
        ledger: Ledger,
        limits: EdgeLimits | None = None,
        book: Book | None = None,
        glimpses: Glimpses | None = None,
    ) -> None:
        self.times = EdgeTimes()
        #: degraded answers by reason
        self.degraded: Counter[str] = Counter()
        self._settings = settings
        self._slot = slot
        self._miner = miner
        self._offload = offload
        self._outbox = outbox
        self._ledger = ledger
        self._limits = limits or EdgeLimits()
        self._book = book or Book()
        self._glimpses = glimpses
        self._preparer = Preparer(decoder, self._limits.pixels)
        self._pace = Pace(queue=self._limits.inside, batch=self._limits.batch, horizon_s=self._limits.horizon_s)
        self._places = asyncio.Semaphore(self._limits.inside)
        self._patient = asyncio.Semaphore(max(1, offload.window // 2))
        self._seen: Recent[bytes, None] = Recent(self._limits.remembered)
        self._seldom = Seldom()
        #: what waits for its model, each with what that model gets
        self._queue: deque[tuple[Sample, Array, Loaded]] = deque()
        self._arrived = asyncio.Event()
        self._inside = 0
        self._left = asyncio.Event()
        self._closed = False

    @property
    def inside(self) -> int:
        """Frames accepted and not handed over yet."""
        return self._inside

    # --- frames in ------------------------------------------------------------------------------------------------

    async def offer(
        self,
        payload: bytes | memoryview,
        camera: str,
        *,
        id_: bytes | None = None,
        patient: bool = False,
        parent: TraceContext | None = None,
    ) -> None:
        """Accept a frame (see ``sources.Intake``). One that was accepted before is counted and dropped."""
        began = time.monotonic()
        try:
            frame = open_payload(payload, camera)
        except DecodeError:
            self._ledger.add(Count.REJECTED)
            raise
        frame.id = id_ or frame.id
        if frame.id in self._seen:
            self._ledger.add(Count.DUPLICATE)
            return
        self._seen.put(frame.id, None)
        try:
            await self._accept(frame, self._book.begin(frame.id, parent), began, patient=patient)
        except BaseException:
            self._seen.pop(frame.id)
            raise

    async def _accept(self, frame: Frame, trace: Record, began: float, *, patient: bool) -> None:
        if patient:
            await self._patient.acquire()
        try:
            await self._places.acquire()
            received = time.monotonic()
            trace.step(RECEIVE, began, received, frame.camera, len(frame.data), frame.encoding)
            try:
                model, array = await self._preparer.begin(frame, self._slot)
            except BaseException as error:
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
        self._ledger.add(Count.ACCEPTED)
        self._inside += 1
        ready = time.monotonic()
        trace.step(DECODE, received, ready)
        self.times.decode.record((ready - received) * 1000)
        now = asyncio.get_running_loop().time()
        self._queue.append((Sample(frame, now, patient, trace, ready, model.version), array, model))
        self._arrived.set()

    # --- answers --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Answer accepted frames until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._arrived.wait()
                for sample, judged in await self._next():
                    now = asyncio.get_running_loop().time()
                    self._ledger.record(Latency.EDGE, (now - sample.accepted) * 1000)
                    if judged.verdict.hard:
                        asking = self._ask_cloud(sample, judged.outcome)
                        group.create_task(asking, name=f"offload {sample.frame.id.hex()}")
                    else:
                        result = sample.result(self._settings, judged.outcome, now, hard=False)
                        await self._finish(sample, result)
                if not self._queue:
                    self._arrived.clear()

    async def _next(self) -> list[tuple[Sample, Judged]]:
        """Run each model on what waits for it. Pixels are let go here: a sample may wait for the cloud without them."""
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._pace.batch))]
        parts: dict[Loaded, list[tuple[Sample, Array]]] = {}
        for sample, array, model in batch:
            parts.setdefault(model, []).append((sample, array))
        said: dict[Sample, Judged] = {}
        for model, waiting in parts.items():
            arrays = [array for _, array in waiting]
            judged = await model.thread.call(answer_and_judge, model.model, self._miner, arrays)
            for array in arrays:
                self._preparer.done(array)
            model.release(len(arrays))
            model.learn([each.outcome for each in judged])
            said.update(zip((sample for sample, _ in waiting), judged, strict=True))
            await judge_again(self._slot, model, self._miner, said, [sample for sample, _ in waiting])
        answered = [(sample, said[sample]) for sample, _, _ in batch]
        self._learn(answered)
        return answered

    async def drain(self, timeout_s: float) -> bool:
        """Answer what is inside; return whether all results were taken within ``timeout_s`` seconds.

        In the last third the cloud is no longer waited for: an answer of the edge is better than none.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        patience = loop.call_at(until - timeout_s / 3, self._offload.abandon)
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

    def _learn(self, answered: Sequence[tuple[Sample, Judged]]) -> None:
        """Note how the model and mining fared, and how long they took."""
        for sample, said in answered:
            if said.outcome.prediction is None:
                self._seldom.warning("small model failed", error=said.outcome.error[:256])
            elif said.verdict.error:
                self._ledger.add(Count.MINING_ERRORS)
                self._seldom.warning("mining failed", error=said.verdict.error[:256])
            sample.judged(said, self.times)
        for call in calls((sample.trace, said.outcome) for sample, said in answered):
            self._pace.learn(call.samples, call.ms)
            self.times.batch.record(call.samples)
            self.times.model.record(call.ms)
            self._book.batch(call.began, call.ended, call.records)

    async def _ask_cloud(self, sample: Sample, outcome: Outcome) -> None:
        """Get the cloud's answer to a hard sample, or say why the edge's own stands."""
        loop = asyncio.get_running_loop()
        began, asked = loop.time(), time.monotonic()
        frame = msgspec.structs.replace(sample.frame, edge=outcome.prediction)
        reason = Reason.ERROR
        sent, reply = False, None
        try:
            reply = await self._offload.ask(frame, self._time_left(sample, began), sample.trace)
        except OffloadError as error:
            reason, sent = error.reason, error.sent
            log.debug("sample degraded", frame=frame.id.hex(), reason=reason, detail=error.detail[:256])
        except Exception:
            # a defect in the offload must not cost the sample its answer
            log.exception("offload failed", frame=frame.id.hex())
        else:
            sent = True
            self._ledger.record(Latency.OFFLOAD, (loop.time() - began) * 1000)
            self.times.offload.record((loop.time() - began) * 1000)
        now = loop.time()
        result = sample.result(self._settings, outcome, now, hard=True, reply=reply, offloaded=began)
        if reply is None:
            result.degraded, result.reason = True, reason
        sample.offloaded(asked, reply, reason, sent=sent)
        await self._finish(sample, result, sent=sent)
        if self._glimpses:
            self._glimpses.offer(sample.frame, outcome.prediction, result)

    def _time_left(self, sample: Sample, now: float) -> float:
        """Seconds for the offload: the service's, or less where the camera wants its answer earlier."""
        own = sample.frame.deadline_ms / 1000
        return min(self._settings.deadline_s, own - (now - sample.accepted)) if own else self._settings.deadline_s

    async def _finish(self, sample: Sample, result: Result, *, sent: bool = False) -> None:
        """Hand a result over. It is counted once the broker has taken it, so that counts never run ahead."""
        began, trace = time.monotonic(), sample.trace

        def taken() -> None:
            sample.answered(began, result)
            self._book.done(trace)
            self._ledger.add(Count.ANSWERED)
            for count, holds in (
                (Count.CLOUD, result.by == "cloud"),
                (Count.HARD, result.hard),
                (Count.DEGRADED, result.degraded),
                (Count.UPLOADED, sent),
            ):
                self._ledger.add(count, int(holds))
            if result.degraded:
                self.degraded[result.reason] += 1

        await self._outbox.put(result, taken, write(trace.here) if trace.travels else None)
        self._inside -= 1
        self._left.set()
        self._places.release()
        if sample.patient:
            self._patient.release()
