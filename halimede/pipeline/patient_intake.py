"""Takes frames from cameras, folders and callers: it waits for room, and never refuses for load.

A frame is accepted once it is decoded and prepared, so that what cannot be answered is refused while its source can
still be told. From then on it is counted in the ledger until the broker has taken its result.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from halimede.errors import DecodeError
from halimede.frames.encodings import decode, find, measure
from halimede.frames.payloads import open_payload
from halimede.frames.recent import Recent
from halimede.frames.seldom import Seldom
from halimede.inference import Array, Model
from halimede.messages import Frame
from halimede.mining import Miner, Verdict, judge_sample
from halimede.pipeline.escalation import Escalation
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.inference import prepare
from halimede.pipeline.model_slot import LoadedModel
from halimede.pipeline.observer import IntakeMetrics
from halimede.pipeline.pipeline import Pipeline
from halimede.pipeline.result_responder import ResultResponder
from halimede.pipeline.sample import Sample
from halimede.stats.ledger import Count, Ledger
from halimede.tracing import Book
from halimede.tracing import Context as TraceContext
from halimede.tracing.steps import DECODE, MINE, RECEIVE

log = structlog.get_logger()

#: a raw frame up to this size (bytes) is prepared on the event loop: a hop to a thread would cost more
INLINE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Bounds of an edge worker.

    There is more room inside than hard samples can take up, so that easy ones always get through: of ``patient`` ones,
    which could wait at their source, so many are let in.

    Attributes:
        inside: frames accepted that have no result yet.
        pixels: bytes of decoded frames that wait for the model: a picture may be a thousand times as large as its file.
        batch: frames in one call of the model; ``horizon_s``: seconds that one may take.
        remembered: ids of frames, by which repeated ones are known.

    """

    inside: int = 96
    patient: int = 16
    pixels: int = 256 * 1024 * 1024
    batch: int = 16
    horizon_s: float = 0.05
    remembered: int = 65_536


class MemoryBudget:
    """Memory of decoded frames: at most ``limit`` bytes are out at a time; a larger one is let in when it is alone.

    Whoever finds too little left waits, in the order of arrival.
    """

    def __init__(self, limit: int) -> None:
        self.taken = 0
        self._limit = limit
        self._turn = asyncio.Lock()
        self._given = asyncio.Event()

    def take_now(self, size: int) -> bool:
        """Take ``size`` bytes if there is room and nobody waits for some; return whether there was."""
        if self._turn.locked() or (self.taken and self.taken + size > self._limit):
            return False
        self.taken += size
        return True

    async def take(self, size: int) -> None:
        """Take ``size`` bytes, once there is room for them."""
        async with self._turn:
            while self.taken and self.taken + size > self._limit:
                self._given.clear()
                await self._given.wait()
            self.taken += size

    def give(self, size: int) -> None:
        """Give bytes back; a negative ``size`` takes more without waiting."""
        self.taken -= size
        self._given.set()


class PatientIntake:
    """Takes frames to ``pipeline``; see ``sources.Intake`` for ``offer``.

    ``miner`` judges frames before a model has seen them, in the thread of ``decoder``; None: predictions are judged.
    """

    drops_late = False
    gathers = False

    def __init__(
        self,
        pipeline: Pipeline,
        responder: ResultResponder,
        metrics: IntakeMetrics,
        *,
        ledger: Ledger,
        decoder: ModelThread,
        book: Book,
        limits: EdgeLimits,
        escalation: Escalation | None = None,
        miner: Miner | None = None,
    ) -> None:
        self.responder = responder
        self.metrics = metrics
        self.escalation = escalation
        self._pipeline = pipeline
        self._ledger = ledger
        self._decoder = decoder
        self._book = book
        self._miner = miner
        self._memory = MemoryBudget(limits.pixels)
        self._slots = asyncio.Semaphore(limits.inside)
        self._patient = asyncio.Semaphore(limits.patient)
        self._seen: Recent[bytes, None] = Recent(limits.remembered)
        #: frames on their way in, and what is set when they are, where somebody waits for that
        self._entering: dict[bytes, asyncio.Event | None] = {}
        self._seldom = Seldom()
        self._closed = False

    def close(self) -> None:
        """Accept nothing any more."""
        self._closed = True

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
        """Accept a frame. One that was accepted before is counted and dropped. Raises DecodeError."""
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
        acks = self.responder.pending_acks
        if frame.id in self._seen:
            self._ledger.add(Count.DUPLICATE)
            if answered and frame.id in acks:
                acks.add(frame.id, answered)
            elif answered:
                answered()
            return
        self._seen.put(frame.id, None)
        if answered:
            acks.add(frame.id, answered)
        frame.captured_ns = frame.captured_ns or time.time_ns()
        self._entering[frame.id] = None
        try:
            sample = await self._accept(frame, parent, began, patient=patient)
        except BaseException:
            self._seen.pop(frame.id)
            acks.forget(frame.id)
            raise
        finally:
            entered = self._entering.pop(frame.id)
            if entered:
                entered.set()
        self._pipeline.submit(sample)

    async def _accept(self, frame: Frame, parent: TraceContext | None, began: float, *, patient: bool) -> Sample:
        """Wait for room, mine or prepare a frame, and count it. Raises DecodeError."""
        if patient:
            await self._patient.acquire()
        try:
            await self._slots.acquire()
        except BaseException:
            if patient:
                self._patient.release()
            raise
        trace, received = self._book.begin(frame.id, parent), time.monotonic()
        trace.step((RECEIVE, began, received, frame.camera, len(frame.data), frame.encoding))
        now = asyncio.get_running_loop().time()
        until = now + frame.deadline_ms / 1000 if frame.deadline_ms else math.inf
        sample = Sample(frame, self, trace, now, until, received)
        sample.patient, sample.stays = patient, self._pipeline.peers is None
        sample.mined = self.escalation is not None
        self._pipeline.preparing += 1
        try:
            sample.pixels = measure(frame)
            if self._miner and self.escalation and self._pipeline.running:
                verdict = await self._mine(sample, self._miner)
                sample.decision = self.escalation.decide_unseen(sample, verdict, asyncio.get_running_loop().time())
            if self._is_for_model(sample):
                await self.prepare(sample)
        except BaseException as error:
            if sample.decision and self.escalation:
                self.escalation.forget(sample.decision)
            self._ledger.add(Count.REJECTED, int(isinstance(error, DecodeError)))
            self._release_slots(sample)
            raise
        finally:
            self._pipeline.preparing -= 1
        if self._closed:
            # never acknowledged: whoever hands this frame over is cancelled with its source
            await asyncio.get_running_loop().create_future()
        self._ledger.add(Count.ACCEPTED, int(frame.id not in self.responder.pending_acks))
        sample.accepted, sample.queued = asyncio.get_running_loop().time(), time.monotonic()
        if sample.input is not None:
            trace.step((DECODE, received, sample.queued))
            self.metrics.decode_ms.record((sample.queued - received) * 1000)
        return sample

    def _is_for_model(self, sample: Sample) -> bool:
        """Whether the model here is to look at a sample: it does not go up at once, and no peer would be sooner."""
        if sample.decision and sample.decision.ask and not sample.decision.audit:
            return False
        peers = self._pipeline.peers
        return not (peers and self._pipeline.running and peers.elsewhere())

    async def _mine(self, sample: Sample, miner: Miner) -> Verdict:
        """Judge a frame that no model has seen. Raises DecodeError."""
        began = time.monotonic()
        if _is_small(sample.frame):
            verdict = judge_sample(miner, decode(sample.frame))
        else:
            verdict = judge_sample(miner, await self._decoder.call(decode, sample.frame))
        if verdict.error:
            self._ledger.add(Count.MINING_ERRORS)
            self._seldom.warning("mining failed", error=verdict.error[:256])
        sample.trace.step((MINE, began, time.monotonic(), verdict.hard, 0.0))
        return verdict

    async def prepare(self, sample: Sample) -> None:
        """Make a sample the input of the model that it is given to, which holds it from now on. Raises DecodeError.

        What a canary cannot read is the current model's, if that can.
        """
        slot = self._pipeline.slot
        model = slot.choose(sample.frame.id)
        try:
            await self._prepare_for(model, sample)
        except DecodeError as error:
            current = slot.before(model)
            if current is None:
                raise
            await self._prepare_for(current, sample)
            slot.strike(model, str(error))

    async def _prepare_for(self, model: LoadedModel, sample: Sample) -> None:
        """Decode a sample for a model. Memory is taken before anything is decoded."""
        memory, frame, size = self._memory, sample.frame, sample.pixels
        model.hold()
        try:
            if not memory.take_now(size):
                await memory.take(size)
            try:
                if _is_small(frame):
                    array = _prepared(frame, model.model)
                else:
                    array = await self._decoder.call(_prepared, frame, model.model)
            except BaseException:
                memory.give(size)
                raise
        except BaseException:
            model.release()
            raise
        memory.give(size - array.nbytes)
        sample.input, sample.model = array, model

    def release_input(self, sample: Sample) -> None:
        """Take note that the model has seen a sample that was prepared for it, or never will."""
        if sample.input is None or sample.model is None:
            return
        self._memory.give(sample.input.nbytes)
        sample.model.release()
        sample.input = sample.model = None

    def leave(self, sample: Sample) -> None:
        """Take note that a sample has its answer."""
        self._release_slots(sample)

    def _release_slots(self, sample: Sample) -> None:
        self._slots.release()
        if sample.patient:
            self._patient.release()

    def expire(self, sample: Sample, *, hopeless: bool) -> None:
        """Do nothing: what was accepted from a camera is answered, however late."""


def _is_small(frame: Frame) -> bool:
    return frame.data.nbytes <= INLINE_BYTES and find(frame.encoding).cheap


def _prepared(frame: Frame, model: Model) -> Array:
    """Return a model's input of a frame. Raises DecodeError, whatever is wrong with it."""
    try:
        return prepare(model, frame)
    except DecodeError:
        raise
    except Exception as error:
        log.exception("frame not prepared", frame=frame.id.hex())
        raise DecodeError(f"pre-processing failed: {type(error).__name__}") from error
