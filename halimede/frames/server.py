"""The cloud's side of an offload: a bounded queue before one model, a reply for every sample that can still use one.

It refuses rather than queues without end, computes nothing that nobody waits for any more, computes nothing twice, and
answers only on the reply topics of its own service, whatever response topic a request carries.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import ParamSpec

import structlog

from halimede.bus import Bus, Delivery
from halimede.errors import DecodeError
from halimede.frames.advertise import Advertiser, Advertises
from halimede.frames.calls import calls
from halimede.frames.channel import Channel
from halimede.frames.compute import Outcome
from halimede.frames.deferring import Defers, passed_on
from halimede.frames.encodings import measure
from halimede.frames.jobs import Job, Key, weight
from halimede.frames.lanes import Lanes
from halimede.frames.limits import ServerLimits, ServerStats
from halimede.frames.pace import Pace
from halimede.frames.reasons import OffloadError, Reason
from halimede.frames.recent import Recent
from halimede.frames.replies import Replies
from halimede.frames.seldom import Seldom
from halimede.frames.slot import Slot
from halimede.messages import Frame, Load, Reply
from halimede.tracing import Book, CloudTimes, read

P = ParamSpec("P")
log = structlog.get_logger()

#: seconds that a sample without a deadline, or with a longer one, is kept at most
LONGEST_S = 600.0
REMEMBERED = 1024
#: a reply that takes more memory than this (bytes) is not remembered: its sample is computed again on a resend
REMEMBERED_BYTES = 64 * 1024
#: after breaking this many batches a frame is not tried again
STRIKES = 2


class CloudServer:
    """Answers the requests on a channel with the model in ``slot``.

    ``advertiser``: who says what it can take; none: it does so itself, on the channel's load topic. ``busy``: whether
    its model has too much to do for others' samples just now. ``defer``: whom it asks itself about what is hard.
    ``run`` serves until cancelled; ``drain`` before that.
    """

    def __init__(
        self,
        bus: Bus,
        slot: Slot,
        channel: Channel,
        *,
        limits: ServerLimits | None = None,
        book: Book | None = None,
        advertiser: Advertises | None = None,
        busy: Callable[[], bool] | None = None,
        defer: Defers | None = None,
    ) -> None:
        self.stats = ServerStats()
        self.times = CloudTimes()
        self._book = book or Book()
        self._bus = bus
        self._slot = slot
        self._channel = channel
        self._worker = channel.worker
        self._limits = limits or ServerLimits()
        self._busy = busy or (lambda: False)
        self._defer = defer
        self._advertiser = advertiser or Advertiser(bus, channel, self.load)
        self._pace = Pace(
            queue=self._limits.queue, batch=self._limits.batch, horizon_s=self._limits.horizon_s, lanes=slot.lanes
        )
        self._queue: deque[Key] = deque()
        self._jobs: dict[Key, Job] = {}
        self._bytes = 0
        #: model calls that are under way; samples that this tier's model has seen and the next one is asked about
        self._calling = self._beyond = 0
        self._answered: Recent[Key, Reply] = Recent(REMEMBERED)
        self._seldom = Seldom()
        self._strikes: Recent[bytes, int] = Recent(REMEMBERED)
        self._lanes = Lanes()
        #: this turn of the loop ends with answers (``_answer_now``)
        self._answering = False
        self._progress = asyncio.Event()
        self._replies = Replies(
            bus,
            channel,
            most=self._limits.replies,
            times=self.times,
            book=self._book,
            seldom=self._seldom,
            progress=self._progress.set,
        )

    @property
    def waiting(self) -> int:
        """Samples taken and not answered yet."""
        return len(self._jobs)

    async def run(self) -> None:
        """Subscribe and serve until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._replies.start(group)
            for filter_ in self._channel.requests:
                await self._bus.subscribe_now(filter_, self._take)
            for lane in range(self._slot.lanes):
                group.create_task(self._work(), name=f"batches {lane}")
            group.create_task(self._advertiser.run(), name="load")

    async def drain(self, timeout_s: float) -> bool:
        """Take nothing new, answer what is here; return whether all was answered within ``timeout_s`` seconds.

        In the last third nobody else is waited for: the own answer is better than none.
        """
        loop = asyncio.get_running_loop()
        patience = loop.call_later(timeout_s * 2 / 3, self._defer.abandon) if self._defer else None
        try:
            async with asyncio.timeout(timeout_s):
                await self._advertiser.withdraw()
                for filter_ in self._channel.requests:
                    await self._bus.unsubscribe(filter_)
                while self._jobs or self._replies.under_way:
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            log.warning("not all requests were answered in time", left=len(self._jobs))
            return False
        finally:
            if patience:
                patience.cancel()
        return True

    # --- requests -------------------------------------------------------------------------------------------------

    def _take(self, delivery: Delivery[Frame]) -> None:
        packet, frame = delivery.packet, delivery.body
        self._channel.check(packet)
        began = time.monotonic()
        now = asyncio.get_running_loop().time()
        left = frame.deadline_ms / 1000
        until = now + (left if 0 < left < LONGEST_S else LONGEST_S)
        key = (packet.response_topic, frame.id)
        try:
            pixels = measure(frame)
        except DecodeError as error:
            self._blame(frame.id, Outcome(error=str(error), unfit=True))
            self._refuse(delivery, "invalid", str(error))
            return
        if done := self._answered.get(key):
            self._replies.offer(delivery, done)
        elif (job := self._jobs.get(key)) and (more := len(frame.data) - job.size) <= self._room_bytes:
            self._bytes += more
            job.delivery, job.until, job.size, job.pixels = delivery, until, len(frame.data), pixels
        elif (self._strikes.get(frame.id) or 0) >= STRIKES:
            self._refuse(delivery, "quarantined", "the frame broke the model before")
        elif job or self._full(len(frame.data)) or self._late(until - now) or self._busy():
            self.stats.refused += 1
            self._refuse(delivery, "overloaded", f"{len(self._jobs)} samples wait")
        else:
            trace = self._book.begin(frame.id, read(packet.properties))
            job = Job(delivery, until, now, len(frame.data), pixels, trace, began, time.monotonic())
            self._jobs[key] = job
            job.received()
            self._bytes += len(frame.data)
            self._queue.append(key)
            self._rouse()
            self._advertiser.touch()

    def _rouse(self) -> None:
        """See to it that what waits is answered: in this very turn of the loop, where the model is that short."""
        if self._answering:
            return
        if self._slot.turn and not (self._defer or self._limits.delay_s or self._calling or self._replies.full):
            self._answering = True
            self._soon(self._answer_now)
        else:
            self._lanes.rouse()

    def _answer_now(self) -> None:
        """Answer what waits without a task: as many samples as keep nobody waiting."""
        self._answering = False
        batch = self._next()
        if batch:
            frames = [self._jobs[key].delivery.body for key in batch]
            began, batched = asyncio.get_running_loop().time(), time.monotonic()
            answered = self._slot.answer_now(frames, self._limits.batch)
            if answered is None:  # these take longer
                self._queue.extendleft(reversed(batch))
                self._lanes.rouse()
                return
            outcomes, made, version = answered
            self.stats.batches += made
            self._soon(self._learn, [self._jobs[key] for key in batch], outcomes, batched)  # once the replies are out
            for key, outcome in zip(batch, outcomes, strict=True):
                self._finish_now(key, self._reply(key, outcome, began, version))
        if self._queue:
            self._rouse()

    def _soon(self, work: Callable[P, None], *given: P.args, **named: P.kwargs) -> None:
        """Have something done in the next turn of the loop, after what leaves in this one."""

        def run() -> None:
            try:
                work(*given, **named)
            except Exception as error:  # noqa: BLE001 (as in a lane a defect ends the server, and no sample is lost)
                self._group.create_task(_fail(error), name="defect")

        asyncio.get_running_loop().call_soon(run)

    def _late(self, left_s: float) -> bool:
        """Whether a new sample would be answered too late, after those that the model has to see before it."""
        return self._pace.late(len(self._jobs) - self._beyond, left_s - self._replies.way_back_s)

    def _full(self, size: int) -> bool:
        return len(self._jobs) >= self._limits.queue or size > self._room_bytes

    @property
    def _room_bytes(self) -> int:
        return self._limits.queue_bytes - self._bytes

    async def _work(self) -> None:
        """Batch what is waiting; wait for more only where that is wanted."""
        arrived = asyncio.Event()
        while True:
            if not self._queue:
                await self._lanes.wait(arrived)
            self._lanes.look(arrived)
            if self._limits.delay_s and self._queue:
                await self._fill(arrived)
            batch = self._next()
            self._lanes.looked(arrived, left=bool(self._queue))
            if batch:
                self._calling += 1
                frames = [self._jobs[key].delivery.body for key in batch]
                began, batched = asyncio.get_running_loop().time(), time.monotonic()
                try:
                    answered, made = await self._slot.answer(frames, self._limits.batch)
                finally:
                    self._calling -= 1
                self.stats.batches += made
                self._learn([self._jobs[key] for key in batch], [outcome for outcome, _ in answered], batched)
                for key, (outcome, version) in zip(batch, answered, strict=True):
                    await self._conclude(key, self._reply(key, outcome, began, version), outcome)
            if self._queue:
                await asyncio.sleep(0)  # short models answer on this loop: others get their turn

    async def _fill(self, arrived: asyncio.Event) -> None:
        """Wait until a batch is full, or its first sample has waited as long as it may: at most half of its time."""
        clock = asyncio.get_running_loop()
        first = self._jobs[self._queue[0]]
        until = first.arrived + min(self._limits.delay_s, (first.until - first.arrived) / 2)
        while 0 < len(self._queue) < self._pace.batch and (left := until - clock.time()) > 0:
            arrived.clear()
            try:
                async with asyncio.timeout(left):
                    await arrived.wait()
            except TimeoutError:
                break

    def _next(self) -> list[Key]:
        """Take the next batch off the queue, dropping what nobody waits for any more."""
        now = asyncio.get_running_loop().time()
        batch: list[Key] = []
        pixels, shortest = 0, LONGEST_S
        free = max(1, self._slot.lanes - self._calling)  # those who have nothing to do share what is there
        most = min(self._pace.batch, self._slot.turn or -(-len(self._queue) // free))
        while self._queue and len(batch) < most:
            key = self._queue[0]
            job = self._jobs[key]
            left = job.until - now
            if left <= 0:
                # its asker counted the time from before the message travelled, and has given up
                self._book.done(self._forget(key).trace)
            elif self._pace.hopeless(left):
                self._refuse(job.delivery, "expired", "no time left for the model", self._forget(key))
            else:
                pixels, shortest = pixels + job.pixels, min(shortest, left)
                if batch and (pixels > self._limits.pixels or self._pace.takes_ms(len(batch) + 1) > shortest * 1000):
                    break
                batch.append(self._queue.popleft())
                continue
            self.stats.expired += 1
            self._queue.popleft()
        return batch

    def _learn(self, jobs: list[Job], outcomes: list[Outcome], batched: float) -> None:
        """Note how long it took: for the pace, for the times, and in each sample's trace."""
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.computed(batched, outcome, self.times)
        for call in calls(zip((job.trace for job in jobs), outcomes, strict=True)):
            self._pace.learn(call.samples, call.ms)
            self.times.batch.record(call.samples)
            self.times.compute.record(call.ms)
            self._book.batch(call.began, call.ended, call.records)

    def load(self) -> Load:
        """Return what it can take now."""
        credits_ = max(0, self._pace.places - len(self._jobs))
        service_ms = round(self._pace.service_ms / self._slot.lanes, 1)
        return Load(credits=credits_, service_ms=service_ms, queued=len(self._jobs), tier=self._channel.tier)

    def _reply(self, key: Key, outcome: Outcome, began: float, version: str) -> Reply:
        """Return what the own model makes of a sample."""
        job = self._jobs[key]
        reply = Reply(
            id=job.delivery.body.id,
            worker=self._worker,
            prediction=outcome.prediction,
            queue_ms=max(began - job.arrived, 0) * 1000,
            compute_ms=outcome.ms,
            batch=outcome.batch,
            model=version,
            tier=self._channel.tier,
        )
        if outcome.prediction is not None:
            self.stats.served += 1
        else:
            reply.error, reply.message = self._blame(reply.id, outcome), outcome.error[:4096]
        return reply

    async def _conclude(self, key: Key, reply: Reply, outcome: Outcome) -> None:
        """Answer a sample, or ask on beside the batches. A frame that is itself to blame is nobody else's to answer."""
        if self._defer and not outcome.unfit:
            job = self._jobs[key]
            until = job.until - self._replies.way_back_s
            choice = self._defer.choose(job.delivery.body, outcome.prediction, until, job.trace)
            reply.reason = choice.reason
            if choice.ask:
                self._group.create_task(self._ask(choice.ask, key, reply), name=f"defer {reply.id.hex()}")
                return
        await self._finish(key, reply)

    async def _ask(self, ask: Callable[[], Awaitable[Reply | None]], key: Key, own: Reply) -> None:
        """Get the next tier's answer in the time that is left; where none comes, the own one stands and says why."""
        self._beyond += 1
        try:
            beyond = await ask()
            own = passed_on(own, beyond) if beyond else own
        except OffloadError as error:
            own.reason = error.reason
            log.debug("answered by this tier", frame=own.id.hex(), reason=error.reason, detail=error.detail[:256])
        except Exception:
            # a defect in asking on must not cost the sample its answer
            log.exception("asking the next tier failed", frame=own.id.hex())
            own.reason = Reason.ERROR
        finally:
            self._beyond -= 1
        await self._finish(key, own)

    async def _finish(self, key: Key, reply: Reply) -> None:
        done = self._finished(key, reply)
        await self._replies.send(done.delivery, reply, done)

    def _finish_now(self, key: Key, reply: Reply) -> None:
        done = self._finished(key, reply)
        if self._replies.full:
            self._group.create_task(self._replies.send(done.delivery, reply, done), name=f"reply {reply.id.hex()}")
        else:
            self._replies.offer(done.delivery, reply, done)

    def _finished(self, key: Key, reply: Reply) -> Job:
        """A sample has its answer, which is remembered for whoever asks again."""
        if reply.error:
            self._seldom.warning("sample not answered", error=reply.error, message=reply.message[:256])
        if reply.error != "failed" and weight(reply.prediction) <= REMEMBERED_BYTES:
            self._answered.put(key, reply)
        return self._forget(key)

    def _blame(self, id_: bytes, outcome: Outcome) -> str:
        """Count a failure and return the word for it; a frame that broke its batch often is not tried again."""
        self.stats.failed += 1
        if outcome.unfit:
            self.stats.unfit += 1
            return "invalid"
        strikes = (self._strikes.get(id_) or 0) + 1
        self._strikes.put(id_, strikes)
        return "quarantined" if strikes >= STRIKES else "failed"

    def _forget(self, key: Key) -> Job:
        job = self._jobs.pop(key)
        self._bytes -= job.size
        self._advertiser.touch()
        self._progress.set()
        return job

    def _refuse(self, to: Delivery[Frame], error: str, message: str, job: Job | None = None) -> None:
        self._replies.offer(to, Reply(id=to.body.id, worker=self._worker, error=error, message=message), job)


async def _fail(error: Exception) -> None:
    raise error
