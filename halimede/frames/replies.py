"""Replies on their way to those who asked: not waited for, bounded in number, and timed.

How long the broker takes to acknowledge one is what the way back costs: who asks on has to have his answer before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from halimede.bus import Bus, Delivery
from halimede.errors import BusError, TooLargeError
from halimede.frames.channel import Channel
from halimede.frames.jobs import Job
from halimede.frames.seldom import Seldom
from halimede.messages import Frame, Reply
from halimede.tracing import Book, CloudTimes, write

log = structlog.get_logger()

#: seconds that the way back is taken to cost at least, and the weight of the newest one in the running mean
LEAST_S, NEWEST = 0.01, 0.2


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
        self._places = asyncio.Semaphore(most)
        self._senders: set[asyncio.Task[None]] = set()
        self._acknowledged_s = 0.0

    @property
    def under_way(self) -> int:
        """Replies that the broker has not taken yet."""
        return len(self._senders)

    @property
    def way_back_s(self) -> float:
        """Seconds to leave for a reply: its way through the broker, and as much for the request's way here."""
        return max(LEAST_S, 2 * self._acknowledged_s)

    def start(self, group: asyncio.TaskGroup) -> None:
        """Send from now on, in tasks of this group."""
        self._group = group

    async def send(self, to: Delivery[Frame], reply: Reply, job: Job | None = None) -> None:
        """Send a reply without waiting for its acknowledgement; waits only for a place among those under way."""
        await self._places.acquire()
        task = self._group.create_task(self._send(to, reply, job), name="reply")
        self._senders.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._senders.discard(task)
        self._places.release()
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
        except (TooLargeError, TypeError, ValueError, OverflowError) as error:
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
