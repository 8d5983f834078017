"""The two intakes of a pipeline: ``RequestIntake`` refuses requests under load, ``FrameIntake`` lets frames wait.

Every request is decided at once, in the callback of its delivery: ``RequestIntake`` submits it, repeats the reply that
it has sent before, or refuses it. It refuses a request if the samples inside reach ``RequestLimits``, or if the model
needs too long for the samples before it or is too busy for other workers. It also refuses a frame that broke the model
before. A request is inside from its acceptance to its reply, and is dropped if it still waits at its deadline. A
request that arrives again while it is inside only renews frame, correlation data and deadline, so no request is
computed twice. Replies go only to reply topics of the own service.

Every frame has a caller that waits: its camera's, folder's or program's call of ``offer``. ``FrameIntake`` refuses no
frame because of load. The caller waits for a slot (``EdgeLimits.inside``), for memory, and until the frame is decoded
and prepared, so that it learns of an invalid frame. Then the frame is submitted to the pipeline, and ``offer`` returns.
The slot is free again when the frame has its answer. The source keeps the frame until the broker has acknowledged the
result, which ``ResultResponder`` tells it. A camera's frame may have an age at which it is dropped instead. After
``close``, a call of ``offer`` waits until it is cancelled, and the source keeps the frame.
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
from halimede.pipeline.responders import Key, ReplyResponder, ResultResponder
from halimede.pipeline.sample import Sample
from halimede.stats.ledger import Ledger
from halimede.system.lru import LruCache
from halimede.topic import Address
from halimede.tracing import TraceBuffer, TraceContext, read
from halimede.tracing.steps import ARRIVE, DECODE, MINE, RECEIVE

log = structlog.get_logger()

#: most bytes of a raw frame that is prepared on the event loop, because a thread would cost more
INLINE_BYTES = 64 * 1024
#: most seconds until the deadline of a request; a request without a deadline has so many
MAX_DEADLINE_S = 600.0
#: most reply topics that are remembered
MAX_REQUESTERS = 4096


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds of a worker that answers requests.

    Attributes:
        queue: most samples without an answer.
        queue_bytes: most bytes of samples without an answer.
        batch: most samples in one call of the model.
        replies: most replies without the broker's acknowledgement.
        horizon_s: credits and batches are limited to the samples that the model answers in about so many seconds: a
            slow model takes few samples, rather than a full queue of samples that will be late.
        delay_s: most seconds that a sample waits for others in its batch.

    """

    queue: int = 64
    queue_bytes: int = 256 * 1024 * 1024
    batch: int = 32
    replies: int = 128
    horizon_s: float = 1.0
    delay_s: float = 0.0


class RequestIntake:
    """An ``Intake`` (sample) that takes the requests on a channel to ``pipeline``.

    Call ``run`` until it is cancelled, and ``stop`` before the pipeline is drained. ``limits``: None: the defaults.
    ``trace_buffer``: has the traces; None: a new one, without export. ``busy``: whether the model is too busy for
    samples of other workers; None: never. ``ledger``: counts requests to the next tier; None: nothing is counted.

    Attributes:
        escalation: requests the next tier; None: this tier is the last one.
        inside: the requests without an answer, each by its reply topic and frame id.
        ready: set when the worker has subscribed to its requests.
        responder: replies to the requests.
        stats: numbers of requests, those of the responder.
        times: distributions of durations, those of the responder.
        metrics: what is recorded of the samples.
        advertiser: publishes this worker's load; by default on the channel's load topic.

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
        self.escalation = escalation
        self.inside: dict[Key, Sample] = {}
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
            bus, channel, limit=self._limits.replies, trace_buffer=self._trace_buffer, ledger=ledger
        )
        self.stats, self.times = self.responder.stats, self.responder.times
        self.metrics = IntakeMetrics.in_cloud(self.times, ledger)
        self.advertiser = advertiser or LoadAdvertiser(bus, channel, self.load)

    async def run(self) -> None:
        """Subscribe to requests, and take them, send replies and advertise the load until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.responder.outbox.run(), name="replies")
            for filter_ in self._channel.requests:
                await self._bus.subscribe_now(filter_, self.take)
            self.ready.set()
            group.create_task(self.advertiser.run(), name="load")

    async def stop(self) -> None:
        """Withdraw the advertised load, and unsubscribe from requests. Those inside are still answered."""
        await self.advertiser.withdraw()
        for filter_ in self._channel.requests:
            await self._bus.unsubscribe(filter_)

    def load(self) -> Load:
        """Return this worker's load. A sample counts until it is answered, also by the next tier."""
        waiting = len(self.inside)
        capacity = min(self._pipeline.rate.capacity, self._limits.queue)
        service_ms = round(self._pipeline.load().service_ms, 1)
        credits_, tier = max(0, capacity - waiting), self._channel.tier
        return Load(credits=credits_, service_ms=service_ms, queued=waiting, places=capacity, tier=tier)

    def take(self, delivery: Delivery[Frame]) -> None:
        """Accept a request, renew one that is inside, repeat its remembered reply, or refuse it. Does not wait.

        Raises InvalidFieldError for a reply topic or correlation data that are not valid.
        """
        packet, frame = delivery.packet, delivery.body
        began, now = time.monotonic(), asyncio.get_running_loop().time()
        reply_to, correlation = self._requester(packet), packet.correlation
        left_s = min(frame.deadline_ms / 1000 or MAX_DEADLINE_S, MAX_DEADLINE_S)
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
        elif self.responder.is_quarantined(frame.id):
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
        """Return a request's reply topic, which is remembered.

        Raises InvalidFieldError if the topic or the correlation data are not valid.
        """
        address = self._requesters.get(packet.response_topic)
        if address is not None and 0 < len(packet.correlation) <= MAX_CORRELATION:
            return address
        address = self._channel.reply_address(packet)
        if len(self._requesters) >= MAX_REQUESTERS:
            self._requesters.clear()
        self._requesters[packet.response_topic] = address
        return address

    def _is_full(self, size: int, left_s: float) -> bool:
        """Whether a request of ``size`` bytes, with ``left_s`` seconds left, is refused.

        It exceeds the bounds, would be late, or the model is too busy for samples of other workers.
        """
        limits, pipeline = self._limits, self._pipeline
        return (
            len(self.inside) >= limits.queue
            or size > limits.queue_bytes - self._bytes
            or pipeline.rate.is_late(pipeline.inside - pipeline.delegated, left_s - self.responder.return_s)
            or (self._busy is not None and self._busy())
        )

    def leave(self, sample: Sample) -> None:
        """Free the room of a request that has its answer, or needs none."""
        assert sample.reply_to is not None  # noqa: S101  # requests always have a reply topic
        del self.inside[sample.reply_to.text, sample.frame.id]
        self._bytes -= sample.size
        self.advertiser.touch()

    def expire(self, sample: Sample, *, hopeless: bool) -> None:
        """Drop a request whose deadline is over, or (``hopeless``) too close for the model: then refuse it."""
        self.stats.expired += 1
        if hopeless:
            self.responder.refuse(sample, "expired", "no time left for the model")
        else:
            # the requester counts its deadline from before the transfer of the message, so it has already expired there
            self._trace_buffer.finish(sample.trace)
        self.leave(sample)

    async def prepare(self, sample: Sample) -> None:
        """Do nothing, because requests are decoded in their batch."""

    def release_input(self, sample: Sample) -> None:
        """Do nothing, because requests have no prepared input."""


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Bounds of an edge worker.

    Attributes:
        inside: most accepted frames without a result: more than hard samples can occupy, so that easy samples pass.
        patient: most of these frames whose source can wait, such as a folder.
        pixels: most bytes of decoded frames that wait for the model: a picture may be a thousand times as large as its
            file.
        batch: most frames in one call of the model.
        horizon_s: most seconds of a call, by the model's measured speed: this limits the frames in it.
        remembered: number of ids of frames that are kept to detect repeated ones.
        max_age_s: seconds from the arrival of a camera's frame until it is dropped if it still waits for the model;
            infinite: it is never dropped.

    """

    inside: int = 96
    patient: int = 16
    pixels: int = 64 * 1024 * 1024
    batch: int = 16
    horizon_s: float = 0.05
    remembered: int = 65_536
    max_age_s: float = math.inf


class FrameIntake:
    """An ``Intake`` (sample) that takes frames into ``pipeline``; their sources call ``offer``.

    ``ledger``: counts frames. ``decoder``: the thread that decodes large frames. ``trace_buffer``: has the traces.
    ``escalation``: requests the next tier; None: there is none, or (with a detector) not for frames. ``miner``: judges
    frames before inference, large ones and with user code in the thread of ``decoder``; None: predictions are judged.

    Attributes:
        responder: publishes the results, and acknowledges frames to their sources.
        metrics: what is recorded of the frames.

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
        self._accepted_ids: LruCache[bytes, None] = LruCache(limits.remembered)
        #: frames that are being accepted; an event if another caller waits for the end of that
        self._entering: dict[bytes, asyncio.Event | None] = {}
        self._limited_log = RateLimitedLogger()
        self._closed = False

    def close(self) -> None:
        """Accept no more frames: present and later calls of ``offer`` do not return."""
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
        """Accept a frame; return when it is accepted, or dropped because it was accepted before or is too old.

        ``payload``: a frame as the bus has it, or a picture file. ``camera``: the name of its source. ``id_``,
        ``file``: replace those in the payload, unless None or empty. ``patient``: the source can wait.
        ``parent``: the trace to continue; None: a new one. ``answered``: called when the source need not keep the frame
        any longer, after its result was published or it was dropped; None: nothing is. ``arrived``: loop time of its
        arrival, from which its age counts; infinite: it does not age. Raises DecodeError for an invalid frame.
        """
        began = time.monotonic()
        try:
            frame = open_payload(payload, camera)
        except DecodeError:
            self._ledger.add(Count.REJECTED)
            raise
        frame.id = id_ or frame.id
        frame.file = file or frame.file
        while frame.id in self._entering:  # a copy: it counts if the other is refused or its source disconnects
            entering = self._entering[frame.id] = self._entering[frame.id] or asyncio.Event()
            await entering.wait()
        if frame.id in self._accepted_ids:
            self._repeat(frame.id, answered)
            return
        self._accepted_ids.put(frame.id, None)
        if answered:
            self.responder.add_source(frame.id, answered)
        frame.captured_ns = frame.captured_ns or time.time_ns()
        self._entering[frame.id] = None
        try:
            sample = await self._accept(frame, parent, began, patient=patient, stale_at=arrived + self._max_age_s)
        except _StaleFrameError:
            self._skip(frame)
            return
        except BaseException:
            self._accepted_ids.pop(frame.id)
            self.responder.forget_sources(frame.id)
            raise
        finally:
            entered = self._entering.pop(frame.id)
            if entered:
                entered.set()
        if answered is None:
            self._ledger.add(Count.ACCEPTED)  # otherwise with its answer: a frame that its source keeps cannot be lost
        self._pipeline.submit(sample)

    def _repeat(self, id_: bytes, answered: Callable[[], None] | None) -> None:
        """Count a frame that was accepted before; ``answered`` is called when the first one's source is told."""
        self._ledger.add(Count.DUPLICATE)
        if answered:
            self.responder.rejoin_source(id_, answered)

    def _skip(self, frame: Frame) -> None:
        """Count a frame that is too old, and acknowledge it to its source."""
        self._ledger.add(Count.SKIPPED)
        self.responder.acknowledge(frame.id)

    async def _accept(
        self, frame: Frame, parent: TraceContext | None, began: float, *, patient: bool, stale_at: float
    ) -> Sample:
        """Return a frame as a sample, after waiting for a slot and mining or preparing it.

        ``parent``, ``patient``: as of ``offer``. ``began``: monotonic time of its arrival. ``stale_at``: loop time from
        which it is too old. Raises DecodeError, and _StaleFrameError if it became too old.
        """
        if patient:
            await self._patient.acquire()
        try:
            await self._slots.acquire()
        except BaseException:
            if patient:
                self._patient.release()
            raise
        # the sample has its slots, which ``leave`` frees
        trace, received = self._trace_buffer.begin(frame.id, parent), time.monotonic()
        trace.step((RECEIVE, began, received, frame.camera, len(frame.data), frame.encoding, frame.file))
        now, deadline_s = asyncio.get_running_loop().time(), frame.deadline_ms / 1000 or math.inf
        sample = Sample(frame, self, trace, now, now + deadline_s, received)
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
        # its times count from now, after mining and preparation
        sample.accepted, sample.queued = asyncio.get_running_loop().time(), time.monotonic()
        sample.until = sample.accepted + deadline_s
        if sample.input is not None:
            trace.step((DECODE, received, sample.queued, sample.scale))
            self.metrics.decode_ms.record((sample.queued - received) * 1000)
        return sample

    def _is_for_model(self, sample: Sample) -> bool:
        """Whether this worker's model runs a sample: it is not uploaded at once, and no peer is sooner.

        If a peer is sooner, this reserves it: the sample counts as sent to the peer from now on.
        """
        if sample.decision and sample.decision.up:
            return False
        peers = self._pipeline.peers
        return not (peers and self._pipeline.running and peers.reserve_peer())

    async def _mine(self, sample: Sample, miner: Miner) -> Verdict:
        """Return the verdict of mining on a frame before inference, and record it. Raises DecodeError."""
        began = time.monotonic()
        if is_ours(miner) and _is_small(sample.frame):
            verdict = _judge(miner, sample.frame)
        else:
            verdict = await self._decoder.call(_judge, miner, sample.frame)
        if verdict.error:
            self._ledger.add(Count.MINING_ERRORS)
            self._limited_log.warning("mining failed", error=shorten_middle(verdict.error))
        sample.trace.step((MINE, began, time.monotonic(), verdict.hard, 0.0))
        return verdict

    async def prepare(self, sample: Sample) -> None:
        """Prepare a sample for its model, which stays open until the input is released.

        Waits for memory. If the canary cannot read the sample, the current model gets it, which is a strike against the
        canary. Raises DecodeError, and _StaleFrameError if the frame becomes too old.
        """
        slot = self._pipeline.slot
        model = slot.choose(sample.frame.id)
        try:
            await self._prepare_for(model, sample)
        except DecodeError as error:
            current = slot.fallback(model)
            if current is None:
                raise
            await self._prepare_for(current, sample)
            slot.strike(model, str(error))

    async def _prepare_for(self, model: LoadedModel, sample: Sample) -> None:
        """Decode a sample for a model. Memory is reserved before decoding. Raises DecodeError and _StaleFrameError."""
        memory, frame, size = self._memory, sample.frame, sample.pixels
        model.acquire()
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
        """Release the prepared input of a sample, its memory, and the model that it was prepared for."""
        if sample.input is None:
            return
        assert sample.model is not None  # noqa: S101  # both are set at once
        self._memory.give(sample.input.nbytes)
        sample.model.release()
        sample.input = sample.model = None

    def leave(self, sample: Sample) -> None:
        """Release the slots of a sample that has its answer, or was refused."""
        self._slots.release()
        if sample.patient:
            self._patient.release()

    def expire(self, sample: Sample, *, hopeless: bool) -> None:  # noqa: ARG002  # frames are never hopeless
        """Drop a frame that is too old, and acknowledge it to its source. Frames without a maximum age never are."""
        if sample.decision and self.escalation:
            self.escalation.forget(sample.decision)
        self._trace_buffer.finish(sample.trace)
        self.release_input(sample)
        self.leave(sample)
        self._skip(sample.frame)


class _StaleFrameError(Exception):
    """A frame became too old while it waited to be accepted."""


def _is_small(frame: Frame) -> bool:
    """Whether a frame is so cheap to decode that it needs no thread."""
    return frame.data.nbytes <= INLINE_BYTES and find(frame.encoding).cheap


def _judge(miner: Miner, frame: Frame) -> Verdict:
    """Return the verdict of mining on a frame before inference. Raises DecodeError."""
    return judge_sample(miner, decode(frame))
