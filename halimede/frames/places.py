"""Who is asked for a sample, and when: it waits until there is a place for it, and a worker with a free credit.

Bounds: ``window`` samples that are sent and not answered, ``waiters`` more that wait for that.
"""

from __future__ import annotations

import asyncio
import time

from halimede.bus import Bus
from halimede.frames.asks import Ask
from halimede.frames.channel import Channel
from halimede.frames.credits import Credits
from halimede.frames.reasons import OffloadError, Reason
from halimede.frames.way import Way


class Places:
    """The places for samples that are sent, and the queue before them. A place is had by ``choose``, until ``free``."""

    def __init__(self, bus: Bus, channel: Channel, credits_: Credits, way: Way, *, window: int, waiters: int) -> None:
        self._bus = bus
        self._channel = channel
        self._credits = credits_
        self._way = way
        self._window = window
        self._waiters = waiters
        self._taken = 0
        #: who waits, in the order of coming, to be told to look again
        self._waiting: dict[Ask, asyncio.Future[None]] = {}

    async def choose(self, ask: Ask) -> None:
        """Choose a worker with a free credit, or the shared topic when nobody advertises; wait for either.

        Takes a place for the sample, unless it is answered meanwhile. Raises OffloadError where waiting is in vain.
        """
        if self._find(ask):
            return
        if len(self._waiting) >= self._waiters:
            raise OffloadError(ask.lacks, "too many samples wait already")
        loop, began = asyncio.get_running_loop(), time.monotonic()
        try:
            while ask.reply is None and not self._find(ask):
                turn = self._waiting[ask] = loop.create_future()
                await turn
        finally:
            self._waiting.pop(ask, None)
            ask.waited(began)

    def free(self) -> None:
        """Give a place back."""
        self._taken -= 1
        self.wake()

    def wake(self) -> None:
        """Let those who wait look again, the newest first.

        Where more is asked than can be answered, the first in a queue would always be those that it made too late.
        """
        for turn in reversed(self._waiting.values()):
            if not turn.done():
                turn.set_result(None)

    def _find(self, ask: Ask) -> bool:
        """Choose without waiting; where that fails, note what is lacking."""
        now = asyncio.get_running_loop().time()
        if not self._bus.connected:
            ask.lacks = Reason.NO_CLOUD
        elif not self._way.room(len(ask.data), self._bus.owed):
            raise OffloadError(Reason.TOO_SLOW, "the way to the broker is full")
        elif self._taken >= self._window:
            ask.lacks = Reason.WINDOW_FULL
        elif worker := self._credits.pick(now):
            return self._chosen(ask, worker)
        elif not self._credits.known(now):
            if self._channel.anybody:
                return self._chosen(ask, "")
            ask.lacks = Reason.NO_CLOUD
        else:
            ask.lacks = Reason.SHED
        return False

    def _chosen(self, ask: Ask, worker: str) -> bool:
        ask.worker, ask.lacks = worker, Reason.DEADLINE
        self._credits.sent(worker)
        self._taken += 1
        return True
