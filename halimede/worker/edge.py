"""The edge loop: frame in, exactly one final result out, whatever becomes of the cloud.

A frame is accepted once it is decoded and prepared, so that what cannot be answered is refused while its source can
still be told. From then on it is counted in the ledger until the broker has taken its result. Hard samples go to the
cloud beside the loop, never in its way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import structlog

from halimede.errors import DecodeError
from halimede.frames.compute import ModelThread, Outcome, prepare, run
from halimede.frames.encodings import find
from halimede.frames.offload import OffloadClient
from halimede.frames.pace import Pace
from halimede.frames.payloads import open_payload
from halimede.frames.reasons import OffloadError, Reason
from halimede.frames.recent import Recent
from halimede.frames.seldom import Seldom
from halimede.inference import Array, Model
from halimede.messages import Frame, Prediction, Reply, Result
from halimede.mining import Miner, Verdict, judge
from halimede.worker.ledger import Count, Latency, Ledger
from halimede.worker.outbox import Outbox
from halimede.worker.settings import Settings

log = structlog.get_logger()

#: a raw frame up to this size (bytes) is prepared on the event loop: a hop to a thread would cost more
INLINE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Bounds of an edge worker: frames inside, frames in one model call, seconds of one call, ids remembered.

    There is more room inside than hard samples can take up, so that easy ones always get through.
    """

    inside: int = 96
    batch: int = 16
    horizon_s: float = 0.05
    remembered: int = 65_536


@dataclass(slots=True, eq=False)
class _Sample:
    """An accepted frame. ``patient``: it gives back its place among the patient ones at the end."""

    frame: Frame
    array: Array
    accepted: float
    patient: bool


class EdgeLoop:
    """Takes frames (``offer``), answers them (``run``), and finishes what it has (``drain``)."""

    def __init__(
        self,
        settings: Settings,
        *,
        model: Model,
        miner: Miner,
        threads: tuple[ModelThread, ModelThread],
        offload: OffloadClient,
        outbox: Outbox,
        ledger: Ledger,
        limits: EdgeLimits | None = None,
    ) -> None:
        self._settings = settings
        self._model = model
        self._miner = miner
        #: decoding has a thread of its own: the next frame is decoded while the model answers this one
        self._decoder, self._thread = threads
        self._offload = offload
        self._outbox = outbox
        self._ledger = ledger
        self._limits = limits or EdgeLimits()
        self._pace = Pace(queue=self._limits.inside, batch=self._limits.batch, horizon_s=self._limits.horizon_s)
        self._places = asyncio.Semaphore(self._limits.inside)
        self._patient = asyncio.Semaphore(max(1, offload.window // 2))
        self._seen: Recent[bytes, None] = Recent(self._limits.remembered)
        self._seldom = Seldom()
        self._queue: deque[_Sample] = deque()
        self._arrived = asyncio.Event()
        self._inside = 0
        self._left = asyncio.Event()
        self._closed = False

    # --- frames in ------------------------------------------------------------------------------------------------

    async def offer(
        self, payload: bytes | memoryview, camera: str, *, id_: bytes | None = None, patient: bool = False
    ) -> None:
        """Accept a frame (see ``sources.Intake``). One that was accepted before is counted and dropped."""
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
            await self._accept(frame, patient=patient)
        except BaseException:
            self._seen.pop(frame.id)
            raise

    async def _accept(self, frame: Frame, *, patient: bool) -> None:
        if patient:
            await self._patient.acquire()
        try:
            await self._places.acquire()
            try:
                array = await self._prepare(frame)
            except BaseException:
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
        self._queue.append(_Sample(frame, array, asyncio.get_running_loop().time(), patient))
        self._arrived.set()

    async def _prepare(self, frame: Frame) -> Array:
        """Decode a frame and make it the model's input. Raises DecodeError, whatever is wrong with it."""
        try:
            if find(frame.encoding).cheap and len(frame.data) <= INLINE_BYTES:
                return prepare(self._model, frame)
            return await self._decoder.call(prepare, self._model, frame)
        except DecodeError:
            self._ledger.add(Count.REJECTED)
            raise
        except Exception as error:
            self._ledger.add(Count.REJECTED)
            log.exception("frame not prepared", id=frame.id.hex())
            raise DecodeError(f"pre-processing failed: {type(error).__name__}") from error

    # --- answers --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Answer accepted frames until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._arrived.wait()
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._pace.batch))]
                arrays = [sample.array for sample in batch]
                for sample, (outcome, verdict) in zip(batch, await self._judge(arrays), strict=True):
                    now = asyncio.get_running_loop().time()
                    self._ledger.record(Latency.EDGE, (now - sample.accepted) * 1000)
                    if verdict.hard:
                        group.create_task(self._ask_cloud(sample, outcome), name=f"offload {sample.frame.id.hex()}")
                    else:
                        await self._finish(sample, self._result(sample, outcome, hard=False))
                if not self._queue:
                    self._arrived.clear()

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

    async def _judge(self, arrays: Sequence[Array]) -> list[tuple[Outcome, Verdict]]:
        answers = await self._thread.call(_answer_and_judge, self._model, self._miner, arrays)
        for outcome, verdict in answers:
            if outcome.prediction is None:
                self._seldom.warning("small model failed", error=outcome.error[:256])
            elif verdict.error:
                self._ledger.add(Count.MINING_ERRORS)
                self._seldom.warning("mining failed", error=verdict.error[:256])
        for samples, ms in {(outcome.batch, outcome.ms) for outcome, _ in answers}:
            self._pace.learn(samples, ms)
        return answers

    async def _ask_cloud(self, sample: _Sample, outcome: Outcome) -> None:
        """Get the cloud's answer to a hard sample, or say why the edge's own stands."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        frame = msgspec.structs.replace(sample.frame, edge=outcome.prediction)
        reason = Reason.ERROR
        sent = False
        try:
            reply = await self._offload.ask(frame, self._time_left(sample, began))
        except OffloadError as error:
            reason, sent = error.reason, error.sent
            log.debug("sample degraded", id=frame.id.hex(), reason=reason, detail=error.detail[:256])
        except Exception:
            # a defect in the offload must not cost the sample its answer
            log.exception("offload failed", id=frame.id.hex())
        else:
            self._ledger.record(Latency.OFFLOAD, (loop.time() - began) * 1000)
            await self._finish(sample, self._result(sample, outcome, hard=True, reply=reply, began=began), sent=True)
            return
        result = self._result(sample, outcome, hard=True, began=began)
        result.degraded, result.reason = True, reason
        await self._finish(sample, result, sent=sent)

    def _time_left(self, sample: _Sample, now: float) -> float:
        """Seconds for the offload: the service's, or less where the camera wants its answer earlier."""
        own = sample.frame.deadline_ms / 1000
        return min(self._settings.deadline_s, own - (now - sample.accepted)) if own else self._settings.deadline_s

    def _result(
        self, sample: _Sample, outcome: Outcome, *, hard: bool, reply: Reply | None = None, began: float | None = None
    ) -> Result:
        now = asyncio.get_running_loop().time()
        edge = outcome.prediction
        final = (reply.prediction if reply else edge) or Prediction()
        frame = sample.frame
        return Result(
            id=frame.id.hex(),
            service=self._settings.service,
            camera=frame.camera,
            sequence=frame.sequence,
            by="cloud" if reply else "edge",
            hard=hard,
            label=final.label,
            score=final.score,
            prediction=final,
            edge=edge if reply else None,
            worker=reply.worker if reply else self._settings.worker,
            node=self._settings.node,
            total_ms=(now - sample.accepted) * 1000,
            edge_ms=outcome.ms,
            offload_ms=(now - began) * 1000 if began is not None else 0.0,
        )

    async def _finish(self, sample: _Sample, result: Result, *, sent: bool = False) -> None:
        """Hand a result over. It is counted once the broker has taken it, so that counts never run ahead."""

        def taken() -> None:
            self._ledger.add(Count.ANSWERED)
            for count, holds in (
                (Count.CLOUD, result.by == "cloud"),
                (Count.HARD, result.hard),
                (Count.DEGRADED, result.degraded),
                (Count.UPLOADED, sent),
            ):
                self._ledger.add(count, int(holds))

        await self._outbox.put(result, taken)
        self._inside -= 1
        self._left.set()
        self._places.release()
        if sample.patient:
            self._patient.release()


def _answer_and_judge(model: Model, miner: Miner, arrays: Sequence[Array]) -> list[tuple[Outcome, Verdict]]:
    """Runs in the model's thread. What the small model cannot answer is the cloud's to answer, hence hard."""
    outcomes, _ = run(model, arrays, len(arrays))
    unanswered = Verdict(hard=True)
    return [(o, judge(miner, o.prediction) if o.prediction is not None else unanswered) for o in outcomes]
