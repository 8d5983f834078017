"""The cloud's side of an offload: a bounded queue before one model, a reply for every sample that can still use one.

It refuses rather than queues without end, computes nothing that nobody waits for any more, computes nothing twice, and
answers only on the reply topics of its own service, whatever response topic a request carries. This is its door; what
waits, who takes it to the model and what is answered have rooms of their own (``backlog``, ``batches``, ``answers``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from halimede.bus import Bus, Delivery
from halimede.errors import DecodeError
from halimede.frames.advertise import Advertiser, Advertises
from halimede.frames.answers import Answers
from halimede.frames.backlog import LONGEST_S, Backlog
from halimede.frames.batches import Batches
from halimede.frames.channel import Channel
from halimede.frames.deferring import Defers
from halimede.frames.encodings import measure
from halimede.frames.jobs import Job
from halimede.frames.limits import ServerLimits, ServerStats
from halimede.frames.pace import Pace
from halimede.frames.replies import Replies
from halimede.frames.seldom import Seldom
from halimede.frames.slot import Slot
from halimede.messages import Frame, Load
from halimede.tracing import Book, CloudTimes, read

log = structlog.get_logger()


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
        limits = limits or ServerLimits()
        seldom = Seldom()
        self._book = book or Book()
        self._bus = bus
        self._slot = slot
        self._channel = channel
        self._busy = busy or (lambda: False)
        self._defer = defer
        self._advertiser = advertiser or Advertiser(bus, channel, self.load)
        self._progress = asyncio.Event()
        self._pace = Pace(queue=limits.queue, batch=limits.batch, horizon_s=limits.horizon_s, lanes=slot.lanes)
        self._backlog = Backlog(limits, self._pace, changed=self._advertiser.touch, gone=self._progress.set)
        self._replies = Replies(
            bus,
            channel,
            most=limits.replies,
            times=self.times,
            book=self._book,
            seldom=seldom,
            progress=self._progress.set,
        )
        self._answers = Answers(
            self._backlog,
            channel,
            self._replies,
            defer=defer,
            stats=self.stats,
            book=self._book,
            seldom=seldom,
        )
        self._batches = Batches(
            self._backlog,
            slot,
            self._answers,
            pace=self._pace,
            limits=limits,
            stats=self.stats,
            times=self.times,
            book=self._book,
        )

    @property
    def waiting(self) -> int:
        """Samples taken and not answered yet."""
        return len(self._backlog.jobs)

    async def run(self) -> None:
        """Subscribe and serve until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._answers.start(group)
            self._batches.start(group)
            for filter_ in self._channel.requests:
                await self._bus.subscribe_now(filter_, self._take)
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
                while self._backlog.jobs or self._replies.under_way:
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            log.warning("not all requests were answered in time", left=self.waiting)
            return False
        finally:
            if patience:
                patience.cancel()
        return True

    def load(self) -> Load:
        """Return what it can take now."""
        waiting = self.waiting
        credits_ = max(0, self._pace.places - waiting)
        service_ms = round(self._pace.service_ms / self._slot.lanes, 1)
        return Load(credits=credits_, service_ms=service_ms, queued=waiting, tier=self._channel.tier)

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
            self._answers.unfit(delivery, str(error))
            return
        backlog, size = self._backlog, len(frame.data)
        if done := self._answers.given.get(key):
            self._replies.offer(delivery, done)
        elif (job := backlog.jobs.get(key)) and backlog.renew(job, delivery, until, pixels):
            return
        elif self._answers.quarantined(frame.id):
            self._answers.refuse(delivery, "quarantined", "the frame broke the model before")
        elif job or backlog.full(size) or self._late(until - now) or self._busy():
            self.stats.refused += 1
            self._answers.refuse(delivery, "overloaded", f"{len(backlog.jobs)} samples wait")
        else:
            trace = self._book.begin(frame.id, read(packet.properties))
            job = Job(delivery, until, now, size, pixels, trace, began, time.monotonic())
            job.received()
            backlog.add(key, job)
            self._batches.rouse()

    def _late(self, left_s: float) -> bool:
        """Whether a new sample would be answered too late, after those that the model has to see before it."""
        return self._pace.late(len(self._backlog.jobs) - self._answers.beyond, left_s - self._replies.way_back_s)
