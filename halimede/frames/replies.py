"""Replies on their way to those who asked: not waited for, bounded in number, and timed.

How long the broker takes to acknowledge one is what the way back costs: who asks on has to have his answer before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

import structlog

from halimede.bus import Bus, Delivery
from halimede.bus.port import PUBLISH_TIMEOUT
from halimede.bus.reasons import FAILURE, NO_SUBSCRIBER, REASONS
from halimede.errors import BusError, TooLargeError
from halimede.frames.channel import Channel
from halimede.frames.jobs import Job
from halimede.frames.seldom import Seldom
from halimede.messages import Frame, Reply
from halimede.tracing import Book, CloudTimes, write

log = structlog.get_logger()

#: seconds that the way back is taken to cost at least, and the weight of the newest one in the running mean
LEAST_S, NEWEST = 0.01, 0.2


class Posted(NamedTuple):
    """A reply that has left, at ``began`` (monotonic)."""

    began: float
    reply: Reply
    job: Job | None


class Replies:
    """Sends replies on a channel, ``most`` at a time; ``progress`` is called when one has gone.

    ``times`` and ``book`` get what becomes of each.
    """

    def __init__(
        self,
        bus: Bus,
        channel: Channel,
        *,
        most: int,
        times: CloudTimes,
        book: Book,
        seldom: Seldom,
        progress: Callable[[], None],
    ) -> None:
        self._bus = bus
        self._channel = channel
        self._times = times
        self._book = book
        self._seldom = seldom
        self._progress = progress
        self._most = most
        self._room = asyncio.Event()
        self._senders: set[asyncio.Task[None]] = set()
        #: replies that have left: what becomes of them is looked at when the broker says so, or when it is too late
        self._posted: dict[asyncio.Future[int], Posted] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._acknowledged_s = 0.0

    @property
    def under_way(self) -> int:
        """Replies that the broker has not taken yet."""
        return len(self._senders) + len(self._posted)

    @property
    def way_back_s(self) -> float:
        """Seconds to leave for a reply: its way through the broker, and as much for the request's way here."""
        return max(LEAST_S, 2 * self._acknowledged_s)

    def start(self, group: asyncio.TaskGroup) -> None:
        """Send from now on, in tasks of this group."""
        self._group = group

    async def send(self, to: Delivery[Frame], reply: Reply, job: Job | None = None) -> None:
        """Send a reply without waiting for its acknowledgement; waits only for a place among those under way."""
        while self.full:
            self._room.clear()
            await self._room.wait()
        self.offer(to, reply, job)

    def offer(self, to: Delivery[Frame], reply: Reply, job: Job | None = None) -> bool:
        """Send a reply if there is a place for it; return whether there was.

        Whoever did not get one asks again: as many as may be under way are not acknowledged, and more of them would
        only take memory.
        """
        if self.full:
            if job:
                self._book.done(job.trace)
            return False
        if not self._post(to, reply, job):
            task = self._group.create_task(self._send(to, reply, job), name="reply")
            self._senders.add(task)
            task.add_done_callback(self._sent)
        return True

    @property
    def full(self) -> bool:
        """Whether as many are under way as may be."""
        return len(self._posted) + len(self._senders) >= self._most

    def _post(self, to: Delivery[Frame], reply: Reply, job: Job | None) -> bool:
        """Send a reply without a task of its own, where it can leave at once; return whether it has."""
        properties = write(job.trace.here) if job and job.trace.travels else None
        began = time.monotonic()
        try:
            answer = self._bus.post_reply(to, self._channel.reply, reply, properties=properties)
        except (BusError, TooLargeError, TypeError, ValueError, OverflowError, RecursionError):
            return False  # the long way says what is wrong
        if answer is None:
            return False
        self._posted[answer] = Posted(began, reply, job)
        answer.add_done_callback(self._taken)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(PUBLISH_TIMEOUT, self._sweep)
        return True

    def _taken(self, answer: asyncio.Future[int]) -> None:
        """The broker has acknowledged a reply, or the connection is gone."""
        posted = self._posted.pop(answer, None)
        if posted is None:
            return
        error = answer.exception()
        if error is None and answer.result() < FAILURE:
            self._acknowledged_s += NEWEST * (time.monotonic() - posted.began - self._acknowledged_s)
            self._over(posted, heard=answer.result() != NO_SUBSCRIBER)
        else:
            why = str(error) if error else REASONS.get(answer.result(), "refused")
            log.info("reply not delivered", error=why)
            self._over(posted, heard=False)

    def _sweep(self) -> None:
        """Give up what the broker has not acknowledged in time."""
        self._sweeping = None
        now = time.monotonic()
        for answer, posted in list(self._posted.items()):
            if now - posted.began < PUBLISH_TIMEOUT:
                break
            del self._posted[answer]
            log.info("reply not delivered", error=f"no acknowledgement within {PUBLISH_TIMEOUT:g} s")
            self._over(posted, heard=False)
        if self._posted:
            self._sweeping = asyncio.get_running_loop().call_later(PUBLISH_TIMEOUT / 4, self._sweep)

    def _over(self, posted: Posted, *, heard: bool) -> None:
        if posted.job:
            posted.job.replied(posted.began, posted.reply, self._times, heard=heard)
            self._book.done(posted.job.trace)
        self._room.set()
        self._progress()

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._senders.discard(task)
        self._room.set()
        self._progress()

    async def _send(self, to: Delivery[Frame], reply: Reply, job: Job | None) -> None:
        began = time.monotonic()
        heard = await self._deliver(to, reply, write(job.trace.here) if job and job.trace.travels else None)
        if job:
            job.replied(began, reply, self._times, heard=heard)
            self._book.done(job.trace)

    async def _deliver(self, to: Delivery[Frame], reply: Reply, properties: dict[str, str] | None) -> bool:
        """Publish a reply, or that it cannot be written; return whether anybody heard it."""
        clock = asyncio.get_running_loop()
        began = clock.time()
        try:
            heard = await self._bus.reply(to, self._channel.reply, reply, properties=properties)
        except BusError as error:
            # its asker owns the retry: sent again, it gets this answer from memory
            log.info("reply not delivered", error=str(error))
        except (TooLargeError, TypeError, ValueError, OverflowError, RecursionError) as error:
            self._seldom.warning("prediction cannot be sent", error=str(error))
            worker = self._channel.worker
            failure = Reply(id=reply.id, worker=worker, error="failed", message="the prediction cannot be sent")
            try:
                return await self._bus.reply(to, self._channel.reply, failure, properties=properties)
            except BusError as lost:
                log.info("reply not delivered", error=str(lost))
        else:
            self._acknowledged_s += NEWEST * (clock.time() - began - self._acknowledged_s)
            return heard
        return False
