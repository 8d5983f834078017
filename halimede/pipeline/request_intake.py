"""Takes requests from other workers: a request topic that refuses instead of waiting.

It refuses rather than queues without end, lets nothing be computed twice or that nobody waits for any more, and answers
only on the reply topics of its own service, whatever response topic a request carries.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from halimede.bus import Bus, Delivery, Packet
from halimede.errors import DecodeError
from halimede.frames.advertise import Advertiser, Advertises
from halimede.frames.channel import MAX_CORRELATION, Channel
from halimede.frames.encodings import measure
from halimede.messages import Frame, Load, Reply
from halimede.pipeline.escalation import Escalation
from halimede.pipeline.observer import IntakeMetrics
from halimede.pipeline.pipeline import Pipeline
from halimede.pipeline.reply_responder import Key, ReplyResponder, RequestStats
from halimede.pipeline.sample import Sample
from halimede.stats.ledger import Ledger
from halimede.topic import Address
from halimede.tracing import Book, CloudTimes, read
from halimede.tracing.steps import ARRIVE

#: seconds that a sample without a deadline, or with a longer one, is kept at most
LONGEST_S = 600.0
#: reply topics that are remembered
MAX_REQUESTERS = 4096


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds of a worker that answers requests.

    Attributes:
        queue, queue_bytes: samples that are inside, and their bytes.
        batch: samples in one call of the model.
        replies: replies that wait for the broker's acknowledgement.
        horizon_s: credits and batches are kept to what takes about this long, so that a slow model is known as slow
            before its queue is full of samples that will be too late.
        delay_s: how long a sample may wait for others to be batched with.

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
        advertiser: publishes what this worker can take; None: it does so itself, on the channel's load topic.
        busy: whether the model has too much to do for others' samples just now.
        escalation: asks a next tier; None: this is the last one. ``ledger`` counts that.

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
        book: Book | None = None,
        advertiser: Advertises | None = None,
        busy: Callable[[], bool] | None = None,
        escalation: Escalation | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.stats = RequestStats()
        self.times = CloudTimes()
        self.metrics = IntakeMetrics.in_cloud(self.times, ledger)
        self.escalation = escalation
        #: requests that have no answer yet
        self.inside: dict[Key, Sample] = {}
        self._bus = bus
        self._channel = channel
        self._pipeline = pipeline
        self._limits = limits or RequestLimits()
        self._book = book or Book()
        self._busy = busy
        self._bytes = 0
        #: reply topics that were checked: the same few come with every request
        self._requesters: dict[str, Address[Reply]] = {}
        self.responder = ReplyResponder(
            bus,
            channel,
            limit=self._limits.replies,
            times=self.times,
            stats=self.stats,
            book=self._book,
            ledger=ledger,
        )
        self.advertiser = advertiser or Advertiser(bus, channel, self.load)

    async def run(self) -> None:
        """Subscribe to requests and take them until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.responder.outbox.run(), name="replies")
            for filter_ in self._channel.requests:
                await self._bus.subscribe_now(filter_, self.take)
            group.create_task(self.advertiser.run(), name="load")

    async def stop(self) -> None:
        """Take nothing new."""
        await self.advertiser.withdraw()
        for filter_ in self._channel.requests:
            await self._bus.unsubscribe(filter_)

    def load(self) -> Load:
        """Return what this worker can take now. A sample counts until it is answered, also by the next tier."""
        waiting = len(self.inside)
        credits_ = max(0, min(self._pipeline.rate.places, self._limits.queue) - waiting)
        service_ms = round(self._pipeline.load().service_ms, 1)
        return Load(credits=credits_, service_ms=service_ms, queued=waiting, tier=self._channel.tier)

    def take(self, delivery: Delivery[Frame]) -> None:
        """Take a request, answer it from memory, or refuse it. Raises InvalidFieldError for one nobody may answer."""
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
            # sent again: the newest correlation is answered
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
            trace = self._book.begin(frame.id, read(packet.properties) if packet.properties else None)
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
        """Return where a request is answered. Raises InvalidFieldError unless that is a worker of this channel."""
        known = self._requesters.get(packet.response_topic)
        if known is not None and 0 < len(packet.correlation) <= MAX_CORRELATION:
            return known
        address = self._channel.reply_address(packet)
        if len(self._requesters) >= MAX_REQUESTERS:
            self._requesters.clear()
        self._requesters[packet.response_topic] = address
        return address

    def _is_full(self, size: int, left_s: float) -> bool:
        """Whether a new request has no room, or would be answered too late after those that the model sees before."""
        limits, pipeline = self._limits, self._pipeline
        return (
            len(self.inside) >= limits.queue
            or size > limits.queue_bytes - self._bytes
            or pipeline.rate.late(pipeline.inside - pipeline.elsewhere, left_s - self.responder.return_s)
            or (self._busy is not None and self._busy())
        )

    def leave(self, sample: Sample) -> None:
        """Take note that a request has its answer, or needs none."""
        assert sample.reply_to is not None  # noqa: S101  # it is a request
        del self.inside[sample.reply_to.text, sample.frame.id]
        self._bytes -= sample.size
        self.advertiser.touch()

    def expire(self, sample: Sample, *, hopeless: bool) -> None:
        """Let a request go whose time is up, or too short for the model."""
        self.stats.expired += 1
        if hopeless:
            self.responder.refuse(sample, "expired", "no time left for the model")
        else:
            # its requester counted the time from before the message travelled, and has given up
            self._book.done(sample.trace)
        self.leave(sample)

    async def prepare(self, sample: Sample) -> None:
        """Nothing to do: requests are decoded in their batch."""

    def release_input(self, sample: Sample) -> None:
        """Nothing to do: requests are decoded in their batch."""
