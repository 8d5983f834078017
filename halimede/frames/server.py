"""The cloud's side of an offload: a bounded queue before one model, a reply for every sample that can still use one.

It refuses rather than queues without end, computes nothing that nobody waits for any more, computes nothing twice, and
answers only on the reply topics of its own service, whatever response topic a request carries.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from dataclasses import dataclass

import msgspec
import structlog

from halimede import topics
from halimede.bus import Bus, Delivery, Packet
from halimede.errors import BusError, InvalidFieldError, TooLargeError
from halimede.frames.advertise import Advertiser
from halimede.frames.compute import ModelThread, Outcome, answer
from halimede.frames.pace import Pace
from halimede.frames.recent import Recent
from halimede.frames.seldom import Seldom
from halimede.inference import Model
from halimede.messages import Frame, Load, Reply

log = structlog.get_logger()

#: seconds that a sample without a deadline, or with a longer one, is kept at most
LONGEST_S = 600.0
MAX_CORRELATION = 64
REMEMBERED = 1024
#: a reply that takes more memory than this (bytes) is not remembered: its sample is computed again on a resend
REMEMBERED_BYTES = 64 * 1024
#: after breaking this many batches a frame is not tried again
STRIKES = 2


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of a cloud worker.

    ``queue`` and ``queue_bytes`` bound what waits, ``batch`` one model call, ``replies`` what waits for the broker's
    acknowledgement. ``horizon_s``: credits and batches are kept to what takes about this long, so that a slow model
    is known as slow before its queue is full of samples that will be too late.
    """

    queue: int = 64
    queue_bytes: int = 256 * 1024 * 1024
    batch: int = 32
    replies: int = 128
    horizon_s: float = 1.0


@dataclass(slots=True)
class ServerStats:
    """Counts since the start. ``refused``: no room; ``expired``: nobody waited any more; ``failed``: no prediction."""

    served: int = 0
    batches: int = 0
    refused: int = 0
    expired: int = 0
    failed: int = 0


@dataclass(slots=True, eq=False)
class _Job:
    """One sample in the queue or in the model. A resend replaces ``delivery``: the latest correlation is answered."""

    delivery: Delivery[Frame]
    until: float
    arrived: float
    size: int


_Key = tuple[str, bytes]


def weight(reply: Reply) -> int:
    """Return about how many bytes of memory a reply takes; without end for one that cannot be written."""
    prediction = reply.prediction
    if prediction is None:
        return 0
    try:
        value = len(msgspec.msgpack.encode(prediction.value)) * 4 if prediction.value is not None else 0
    except (TypeError, ValueError, OverflowError):
        return sys.maxsize
    return 32 * len(prediction.probabilities or []) + 256 * len(prediction.boxes or []) + value


class CloudServer:
    """Answers the requests of one service with one model. ``run`` serves until cancelled; ``drain`` before that."""

    def __init__(
        self,
        bus: Bus,
        model: Model,
        thread: ModelThread,
        *,
        namespace: str,
        service: str,
        worker: str,
        limits: ServerLimits | None = None,
    ) -> None:
        self.stats = ServerStats()
        self._bus = bus
        self._model = model
        self._thread = thread
        self._ns = namespace
        self._service = service
        self._worker = worker
        self._limits = limits or ServerLimits()
        self._filters = (
            topics.REQUEST_TO.filter(ns=namespace, service=service, worker=worker),
            topics.REQUEST.filter(group=service, ns=namespace, service=service),
        )
        self._advertiser = Advertiser(bus, namespace=namespace, service=service, worker=worker, load=self._load)
        self._pace = Pace(queue=self._limits.queue, batch=self._limits.batch, horizon_s=self._limits.horizon_s)
        self._queue: deque[_Key] = deque()
        self._jobs: dict[_Key, _Job] = {}
        self._bytes = 0
        self._answered: Recent[_Key, Reply] = Recent(REMEMBERED)
        self._seldom = Seldom()
        self._strikes: Recent[bytes, int] = Recent(REMEMBERED)
        self._arrived = asyncio.Event()
        self._progress = asyncio.Event()
        self._replies = asyncio.Semaphore(self._limits.replies)
        self._senders: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Subscribe and serve until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for filter_ in self._filters:
                await self._bus.subscribe(filter_, self._take)
            group.create_task(self._work(), name="batches")
            group.create_task(self._advertiser.run(), name="load")

    async def drain(self, timeout_s: float) -> bool:
        """Take nothing new, answer what is here; return whether all was answered within ``timeout_s`` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._advertiser.withdraw()
                for filter_ in self._filters:
                    await self._bus.unsubscribe(filter_)
                while self._jobs or self._senders:
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            log.warning("not all requests were answered in time", left=len(self._jobs))
            return False
        return True

    # --- requests -------------------------------------------------------------------------------------------------

    async def _take(self, delivery: Delivery[Frame]) -> None:
        packet, frame = delivery.packet, delivery.body
        self._check_sender(packet)
        now = asyncio.get_running_loop().time()
        left = frame.deadline_ms / 1000
        until = now + (left if 0 < left < LONGEST_S else LONGEST_S)
        key = (packet.response_topic, frame.id)
        if done := self._answered.get(key):
            await self._reply(delivery, done)
        elif job := self._jobs.get(key):
            job.delivery, job.until = delivery, until
            self._bytes += len(frame.data) - job.size
            job.size = len(frame.data)
        elif (self._strikes.get(frame.id) or 0) >= STRIKES:
            await self._refuse(delivery, "quarantined", "the frame broke the model before")
        elif len(self._jobs) >= self._limits.queue or self._bytes + len(frame.data) > self._limits.queue_bytes:
            self.stats.refused += 1
            await self._refuse(delivery, "overloaded", f"{len(self._jobs)} samples wait")
        else:
            self._jobs[key] = _Job(delivery, until, now, len(frame.data))
            self._bytes += len(frame.data)
            self._queue.append(key)
            self._arrived.set()
            self._advertiser.touch()

    def _check_sender(self, packet: Packet) -> None:
        """Raise InvalidFieldError unless the answer would go to a worker of this service."""
        names = topics.REPLY.parse(packet.response_topic)
        if names is None or names["ns"] != self._ns or names["service"] != self._service:
            raise InvalidFieldError("response topic", packet.response_topic, "use the reply topic of this service")
        if not 0 < len(packet.correlation) <= MAX_CORRELATION:
            raise InvalidFieldError("correlation data", packet.correlation, f"send 1 to {MAX_CORRELATION} bytes")

    async def _work(self) -> None:
        """Batch what is waiting, never wait for more."""
        while True:
            await self._arrived.wait()
            batch = await self._next()
            if batch:
                frames = [self._jobs[key].delivery.body for key in batch]
                began = asyncio.get_running_loop().time()
                outcomes, calls = await self._thread.call(answer, self._model, frames, self._limits.batch)
                self._learn(outcomes, calls)
                for key, outcome in zip(batch, outcomes, strict=True):
                    await self._finish(key, outcome, began)
            if not self._queue:
                self._arrived.clear()

    async def _next(self) -> list[_Key]:
        """Take the next batch off the queue, dropping what nobody waits for any more."""
        now = asyncio.get_running_loop().time()
        batch: list[_Key] = []
        while self._queue and len(batch) < self._pace.batch:
            key = self._queue.popleft()
            if self._jobs[key].until <= now:
                self.stats.expired += 1
                # its asker counted the time from before the message travelled, and has given up
                self._forget(key)
            elif self._pace.hopeless(self._jobs[key].until - now):
                self.stats.expired += 1
                await self._refuse(self._forget(key), "expired", "no time left for the model")
            else:
                batch.append(key)
        return batch

    def _learn(self, outcomes: list[Outcome], calls: int) -> None:
        self.stats.batches += calls
        for samples, ms in {(outcome.batch, outcome.ms) for outcome in outcomes if outcome.batch}:
            self._pace.learn(samples, ms)

    def _load(self) -> Load:
        credits_ = max(0, self._pace.places - len(self._jobs))
        return Load(credits=credits_, service_ms=round(self._pace.service_ms, 1))

    async def _finish(self, key: _Key, outcome: Outcome, began: float) -> None:
        job = self._jobs[key]
        frame = job.delivery.body
        reply = Reply(
            id=frame.id,
            worker=self._worker,
            prediction=outcome.prediction,
            queue_ms=max(began - job.arrived, 0) * 1000,
            compute_ms=outcome.ms,
            batch=outcome.batch,
        )
        if outcome.prediction is not None:
            self.stats.served += 1
        else:
            self.stats.failed += 1
            reply.error, reply.message = self._blame(frame.id, outcome), outcome.error[:4096]
            self._seldom.warning("sample not answered", error=reply.error, message=reply.message[:256])
        if reply.error != "failed" and weight(reply) <= REMEMBERED_BYTES:
            self._answered.put(key, reply)
        await self._reply(self._forget(key), reply)

    def _blame(self, id_: bytes, outcome: Outcome) -> str:
        """Return the word for a failure; a frame that broke its batch often enough is not tried again."""
        if outcome.unfit:
            return "invalid"
        strikes = (self._strikes.get(id_) or 0) + 1
        self._strikes.put(id_, strikes)
        return "quarantined" if strikes >= STRIKES else "failed"

    def _forget(self, key: _Key) -> Delivery[Frame]:
        job = self._jobs.pop(key)
        self._bytes -= job.size
        self._advertiser.touch()
        self._progress.set()
        return job.delivery

    # --- replies --------------------------------------------------------------------------------------------------

    async def _refuse(self, to: Delivery[Frame], error: str, message: str) -> None:
        await self._reply(to, Reply(id=to.body.id, worker=self._worker, error=error, message=message))

    async def _reply(self, to: Delivery[Frame], reply: Reply) -> None:
        """Send a reply without waiting for its acknowledgement; waits only for a place among those under way."""
        await self._replies.acquire()
        task = self._group.create_task(self._send(to, reply), name="reply")
        self._senders.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._senders.discard(task)
        self._replies.release()
        self._progress.set()

    async def _send(self, to: Delivery[Frame], reply: Reply) -> None:
        try:
            await self._bus.reply(to, topics.REPLY, reply)
        except BusError as error:
            # its asker owns the retry: sent again, it gets this answer from memory
            log.info("reply not delivered", error=str(error))
        except (TooLargeError, TypeError, ValueError, OverflowError) as error:
            self._seldom.warning("prediction cannot be sent", error=str(error))
            failure = Reply(id=reply.id, worker=self._worker, error="failed", message="the prediction cannot be sent")
            try:
                await self._bus.reply(to, topics.REPLY, failure)
            except BusError as lost:
                log.info("reply not delivered", error=str(lost))
