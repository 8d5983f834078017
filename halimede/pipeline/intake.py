"""The two intakes of a pipeline: requests are refused under load, camera frames wait.

``RequestIntake`` takes the requests of other workers from a topic. It refuses requests when its bounded queue is full,
and computes no request twice or after its deadline. It replies only to reply topics of its own service, whatever
response topic a request has.

``FrameIntake`` takes frames from cameras, folders and callers. It waits for a free slot, and never refuses a frame
because of load; frames of cameras may have an age at which they are dropped. A frame is accepted once it is decoded and
prepared, so that an invalid frame is refused while its source still waits. The ledger counts it from then on until the
broker has acknowledged its result.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from halimede.bus import Bus, Delivery, Packet
from halimede.errors import DecodeError, shorten_middle
from halimede.frames.encodings import decode, find, measure
from halimede.frames.payloads import open_payload
from halimede.log import RateLimitedLogger
from halimede.messages import Count, Frame, Load, Reply
from halimede.mining import Miner, Verdict, is_ours, judge_sample
from halimede.offload.channel import MAX_CORRELATION, Channel
from halimede.offload.load_advertiser import LoadAdvertisement, LoadAdvertiser
from halimede.pipeline.escalation import Escalation
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.inference import prepare
from halimede.pipeline.model_queue import MemoryBudget
from halimede.pipeline.model_slot import LoadedModel
from halimede.pipeline.observer import IntakeMetrics
from halimede.pipeline.pipeline import Pipeline
from halimede.pipeline.responders import Key, ReplyResponder, RequestStats, ResultResponder
from halimede.pipeline.sample import Sample
from halimede.stats.ledger import Ledger
from halimede.system.lru import LruCache
from halimede.topic import Address
from halimede.tracing import CloudTimes, TraceBuffer, TraceContext, read
from halimede.tracing.steps import ARRIVE, DECODE, MINE, RECEIVE

log = structlog.get_logger()

#: a raw frame up to this size (bytes) is prepared on the event loop: a thread would cost more
INLINE_BYTES = 64 * 1024
#: the longest time in seconds for which a sample is kept, also without a deadline
LONGEST_S = 600.0
#: the most reply topics that are remembered
MAX_REQUESTERS = 4096


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds of a worker that answers requests.

    Attributes:
        queue, queue_bytes: samples without an answer, and their bytes.
        batch: samples in one call of the model.
        replies: replies without the broker's acknowledgement.
        horizon_s: credits and batches are limited to the samples that the model answers in about this time, so that
            a slow model is known before its queue is full of samples that will be late.
        delay_s: the longest wait of a sample for others in its batch.

    """

    queue: int = 64
    queue_bytes: int = 256 * 1024 * 1024
    batch: int = 32
    replies: int = 128
    horizon_s: float = 1.0
    delay_s: float = 0.0


class RequestIntake:
    """Takes the requests on a channel to ``pipeline``. ``run`` until cancelled; ``stop`` before the pipeline's drain.

    Attributes:
        advertiser: publishes this worker's load; None: the intake does so itself, on the channel's load topic.
        busy: whether the model is too busy for samples of other workers.
        escalation: requests a next tier; None: this is the last one. ``ledger`` counts those requests.

    """

    drops_late = True
    gathers = True

    def __init__(
        self,
        bus: Bus,
        channel: Channel,
        pipeline: Pipeline,
        *,
        limits: RequestLimits | None = None,
        trace_buffer: TraceBuffer | None = None,
        advertiser: LoadAdvertisement | None = None,
        busy: Callable[[], bool] | None = None,
        escalation: Escalation | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.stats = RequestStats()
        self.times = CloudTimes()
        self.metrics = IntakeMetrics.in_cloud(self.times, ledger)
        self.escalation = escalation
        #: requests without an answer
        self.inside: dict[Key, Sample] = {}
        #: set once requests reach this worker
        self.ready = asyncio.Event()
        self._bus = bus
        self._channel = channel
        self._pipeline = pipeline
        self._limits = limits or RequestLimits()
        self._trace_buffer = trace_buffer or TraceBuffer()
        self._busy = busy
        self._bytes = 0
        #: verified reply topics: requests use the same few topics again
        self._requesters: dict[str, Address[Reply]] = {}
        self.responder = ReplyResponder(
            bus,
            channel,
            limit=self._limits.replies,
            times=self.times,
            stats=self.stats,
            trace_buffer=self._trace_buffer,
            ledger=ledger,
        )
        self.advertiser = advertiser or LoadAdvertiser(bus, channel, self.load)

    async def run(self) -> None:
        """Subscribe to requests and take them until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.responder.outbox.run(), name="replies")
            for filter_ in self._channel.requests:
                await self._bus.subscribe_now(filter_, self.take)
            self.ready.set()
            group.create_task(self.advertiser.run(), name="load")

    async def stop(self) -> None:
        """Stop accepting requests."""
        await self.advertiser.withdraw()
        for filter_ in self._channel.requests:
            await self._bus.unsubscribe(filter_)

    def load(self) -> Load:
        """Return this worker's free capacity. A sample counts until it is answered, also by the next tier."""
        waiting = len(self.inside)
        places = min(self._pipeline.rate.places, self._limits.queue)
        service_ms = round(self._pipeline.load().service_ms, 1)
        credits_, tier = max(0, places - waiting), self._channel.tier
        return Load(credits=credits_, service_ms=service_ms, queued=waiting, places=places, tier=tier)

    def take(self, delivery: Delivery[Frame]) -> None:
        """Accept a request, repeat its remembered reply, or refuse it. Raises InvalidFieldError (reply topic)."""
        packet, frame = delivery.packet, delivery.body
        began, now = time.monotonic(), asyncio.get_running_loop().time()
        reply_to, correlation = self._requester(packet), packet.correlation
        left_s = frame.deadline_ms / 1000
        left_s = left_s if 0 < left_s < LONGEST_S else LONGEST_S
        try:
            pixels = measure(frame)
        except DecodeError as error:
            self.responder.reject_unfit(reply_to, correlation, frame.id, str(error))
            return
        key, size = (reply_to.text, frame.id), len(frame.data)
        sample = self.inside.get(key)
        if reply := self.responder.remembered.get(key):
            self.responder.repeat(reply_to, correlation, reply)
        elif sample and size - sample.size <= self._limits.queue_bytes - self._bytes:
            # a repeated request: the reply has the newest correlation data
            self._bytes += size - sample.size
            sample.frame, sample.correlation, sample.until = frame, correlation, now + left_s
            sample.size, sample.pixels = size, pixels
        elif self.responder.quarantined(frame.id):
            message = "the frame broke the model before"
            self.responder.reject(reply_to, correlation, frame.id, "quarantined", message)
        elif sample or self._is_full(size, left_s):
            self.stats.refused += 1
            message = f"{len(self.inside)} samples wait"
            self.responder.reject(reply_to, correlation, frame.id, "overloaded", message)
        else:
            trace = self._trace_buffer.begin(frame.id, read(packet.properties) if packet.properties else None)
            queued = time.monotonic()
            trace.step((ARRIVE, began, queued, frame.worker, size, frame.encoding))
            sample = Sample(frame, self, trace, now, now + left_s, queued)
            sample.began, sample.size, sample.pixels = began, size, pixels
            sample.reply_to, sample.correlation, sample.mined = reply_to, correlation, self.escalation is not None
            self.inside[key] = sample
            self._bytes += size
            self.advertiser.touch()
            self._pipeline.submit(sample)

    def _requester(self, packet: Packet) -> Address[Reply]:
        """Return a request's reply topic. Raises InvalidFieldError unless a worker of this channel owns it."""
        known = self._requesters.get(packet.response_topic)
        if known is not None and 0 < len(packet.correlation) <= MAX_CORRELATION:
            return known
        address = self._channel.reply_address(packet)
        if len(self._requesters) >= MAX_REQUESTERS:
            self._requesters.clear()
        self._requesters[packet.response_topic] = address
        return address

    def _is_full(self, size: int, left_s: float) -> bool:
        """Whether a new request exceeds the bounds, or the requests before it would make its answer late."""
        limits, pipeline = self._limits, self._pipeline
        return (
            len(self.inside) >= limits.queue
            or size > limits.queue_bytes - self._bytes
            or pipeline.rate.late(pipeline.inside - pipeline.elsewhere, left_s - self.responder.return_s)
            or (self._busy is not None and self._busy())
        )

    def leave(self, sample: Sample) -> None:
        """Release a request that has its answer, or needs none."""
        assert sample.reply_to is not None  # noqa: S101  # requests always have a reply topic
        del self.inside[sample.reply_to.text, sample.frame.id]
        self._bytes -= sample.size
        self.advertiser.touch()

    def expire(self, sample: Sample, *, hopeless: bool) -> None:
        """Drop a request whose deadline is over, or too close for the model."""
        self.stats.expired += 1
        if hopeless:
            self.responder.refuse(sample, "expired", "no time left for the model")
        else:
            # the requester counts its deadline from before the transfer of the message, so it has already expired there
            self._trace_buffer.done(sample.trace)
        self.leave(sample)

    async def prepare(self, sample: Sample) -> None:
        """Nothing to do: requests are decoded in their batch."""

    def release_input(self, sample: Sample) -> None:
        """Nothing to do: requests are decoded in their batch."""


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Bounds of an edge worker.

    There are more slots than hard samples can occupy, so that easy samples always pass. ``patient`` limits the samples
    whose source can wait.

    Attributes:
        inside: accepted frames without a result.
        pixels: bytes of decoded frames that wait for the model: a picture may be a thousand times as large as its
            file.
        batch: frames in one call of the model; ``horizon_s``: the longest time of a call in seconds.
        remembered: ids of frames that are kept to detect repeated ones.
        max_age_s: seconds from the arrival of a camera's frame until it is dropped if it still waits for the model.

    """

    inside: int = 96
    patient: int = 16
    pixels: int = 64 * 1024 * 1024
    batch: int = 16
    horizon_s: float = 0.05
    remembered: int = 65_536
    max_age_s: float = math.inf


class FrameIntake:
    """Takes frames into ``pipeline``; see ``FrameSink`` for ``offer``.

    ``miner`` judges frames before inference, in the thread of ``decoder``; None: predictions are judged.
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
        trace_buffer: TraceBuffer,
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
        self._trace_buffer = trace_buffer
        self._miner = miner
        self._max_age_s = limits.max_age_s
        self._memory = MemoryBudget(limits.pixels)
        self._slots = asyncio.Semaphore(limits.inside)
        self._patient = asyncio.Semaphore(limits.patient)
        self._seen: LruCache[bytes, None] = LruCache(limits.remembered)
        #: frames that are being accepted; an event if another caller waits for the end of that
        self._entering: dict[bytes, asyncio.Event | None] = {}
        self._limited_log = RateLimitedLogger()
        self._closed = False

    def close(self) -> None:
        """Stop accepting frames."""
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
        file: str = "",
        arrived: float = math.inf,
    ) -> None:
        """Accept a frame. One that was accepted before, or is too old, is counted and dropped. Raises DecodeError."""
        began = time.monotonic()
        try:
            frame = open_payload(payload, camera)
        except DecodeError:
            self._ledger.add(Count.REJECTED)
            raise
        frame.id = id_ or frame.id
        if file:
            frame.file = file
        while frame.id in self._entering:  # a copy: it counts if the other is refused or its source disconnects
            entering = self._entering[frame.id] = self._entering[frame.id] or asyncio.Event()
            await entering.wait()
        if frame.id in self._seen:
            self._repeat(frame.id, answered)
            return
        self._seen.put(frame.id, None)
        acks = self.responder.pending_acks
        if answered:
            acks.setdefault(frame.id, []).append(answered)
        frame.captured_ns = frame.captured_ns or time.time_ns()
        self._entering[frame.id] = None
        try:
            sample = await self._accept(frame, parent, began, patient=patient, stale_at=arrived + self._max_age_s)
        except _StaleFrameError:
            self._skip(frame)
            return
        except BaseException:
            self._seen.pop(frame.id)
            acks.pop(frame.id, None)
            raise
        finally:
            entered = self._entering.pop(frame.id)
            if entered:
                entered.set()
        self._pipeline.submit(sample)

    def _repeat(self, id_: bytes, answered: Callable[[], None] | None) -> None:
        """Count a frame that was accepted before; its source acknowledges it with the first one."""
        self._ledger.add(Count.DUPLICATE)
        acks = self.responder.pending_acks
        if answered and id_ in acks:
            acks[id_].append(answered)
        elif answered:
            answered()

    def _skip(self, frame: Frame) -> None:
        """Count a frame that is too old, and let its source acknowledge it."""
        self._ledger.add(Count.SKIPPED)
        for answered in self.responder.pending_acks.pop(frame.id, ()):
            answered()

    async def _accept(
        self, frame: Frame, parent: TraceContext | None, began: float, *, patient: bool, stale_at: float
    ) -> Sample:
        """Wait for a slot, mine or prepare a frame, and count it. Raises DecodeError and _StaleFrameError."""
        if patient:
            await self._patient.acquire()
        try:
            await self._slots.acquire()
        except BaseException:
            if patient:
                self._patient.release()
            raise
        trace, received = self._trace_buffer.begin(frame.id, parent), time.monotonic()
        trace.step((RECEIVE, began, received, frame.camera, len(frame.data), frame.encoding, frame.file))
        now = asyncio.get_running_loop().time()
        until = now + frame.deadline_ms / 1000 if frame.deadline_ms else math.inf
        sample = Sample(frame, self, trace, now, until, received)
        sample.patient, sample.stays = patient, self._pipeline.peers is None
        sample.mined, sample.stale_at = self.escalation is not None, stale_at
        self._pipeline.preparing += 1
        try:
            if stale_at <= now:
                raise _StaleFrameError
            sample.pixels = measure(frame)
            if self._miner and self.escalation and self._pipeline.running:
                verdict = await self._mine(sample, self._miner)
                sample.decision = self.escalation.decide_unseen(sample, verdict, asyncio.get_running_loop().time())
            if self._is_for_model(sample):
                await self.prepare(sample)
            if self._closed:
                # never acknowledge: the source cancels the caller when it stops
                await asyncio.get_running_loop().create_future()
        except BaseException as error:
            if sample.decision and self.escalation:
                self.escalation.forget(sample.decision)
            self._ledger.add(Count.REJECTED, int(isinstance(error, DecodeError)))
            self.release_input(sample)
            self.leave(sample)
            raise
        finally:
            self._pipeline.preparing -= 1
        self._ledger.add(Count.ACCEPTED, int(frame.id not in self.responder.pending_acks))
        sample.accepted, sample.queued = asyncio.get_running_loop().time(), time.monotonic()
        if frame.deadline_ms:
            sample.until = sample.accepted + frame.deadline_ms / 1000
        if sample.input is not None:
            trace.step((DECODE, received, sample.queued, sample.scale))
            self.metrics.decode_ms.record((sample.queued - received) * 1000)
        return sample

    def _is_for_model(self, sample: Sample) -> bool:
        """Whether this worker's model runs a sample: it is not uploaded at once, and no peer is sooner."""
        if sample.decision and sample.decision.up:
            return False
        peers = self._pipeline.peers
        return not (peers and self._pipeline.running and peers.elsewhere())

    async def _mine(self, sample: Sample, miner: Miner) -> Verdict:
        """Mine a frame before inference. Raises DecodeError."""
        began = time.monotonic()
        if is_ours(miner) and _is_small(sample.frame):
            verdict = _judged(miner, sample.frame)
        else:
            verdict = await self._decoder.call(_judged, miner, sample.frame)
        if verdict.error:
            self._ledger.add(Count.MINING_ERRORS)
            self._limited_log.warning("mining failed", error=shorten_middle(verdict.error, 256))
        sample.trace.step((MINE, began, time.monotonic(), verdict.hard, 0.0))
        return verdict

    async def prepare(self, sample: Sample) -> None:
        """Prepare a sample for its model, which then holds it. Raises DecodeError.

        If the canary cannot read it, the current model receives it, provided that one can.
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
        """Decode a sample for a model. Memory is reserved before decoding. Raises DecodeError and _StaleFrameError."""
        memory, frame, size = self._memory, sample.frame, sample.pixels
        model.hold()
        try:
            if not memory.take_now(size):
                await memory.take(size)
            try:
                if sample.stale_at <= asyncio.get_running_loop().time():
                    raise _StaleFrameError
                if _is_small(frame):
                    prepared = prepare(model.model, frame)
                else:
                    prepared = await self._decoder.call(prepare, model.model, frame)
            except BaseException:
                memory.give(size)
                raise
        except BaseException:
            model.release()
            raise
        memory.give(size - prepared.array.nbytes)
        sample.input, sample.scale, sample.model = prepared.array, prepared.scale, model

    def release_input(self, sample: Sample) -> None:
        """Release the prepared input of a sample."""
        if sample.input is None or sample.model is None:
            return
        self._memory.give(sample.input.nbytes)
        sample.model.release()
        sample.input = sample.model = None

    def leave(self, sample: Sample) -> None:
        """Release the slots of a sample that has its answer, or was refused."""
        self._slots.release()
        if sample.patient:
            self._patient.release()

    def expire(self, sample: Sample, *, hopeless: bool) -> None:  # noqa: ARG002  # frames are never hopeless
        """Drop a frame that is too old. Without a maximum age, frames are answered, however late."""
        if sample.decision and self.escalation:
            self.escalation.forget(sample.decision)
        self._trace_buffer.done(sample.trace)
        self.release_input(sample)
        self.leave(sample)
        self._skip(sample.frame)


class _StaleFrameError(Exception):
    """A frame became too old while it waited to be accepted."""


def _is_small(frame: Frame) -> bool:
    return frame.data.nbytes <= INLINE_BYTES and find(frame.encoding).cheap


def _judged(miner: Miner, frame: Frame) -> Verdict:
    """Mine a frame before inference. Raises DecodeError."""
    return judge_sample(miner, decode(frame))
