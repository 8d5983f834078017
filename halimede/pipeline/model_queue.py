"""The queue of samples before a model, with the selection of the next batch; and the memory of decoded frames.

Intakes bound the queue: they refuse samples or wait. The queue needs no bus and no model.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence

from halimede.offload.service_rate import ServiceRate
from halimede.pipeline.sample import Sample

#: most bytes of decoded pixels in one batch
BATCH_PIXELS = 256 * 1024 * 1024


class ModelQueue:
    """The queue before one model, and its consumers: one task for each of the model's parallel calls.

    A consumer awaits ``arrival``, then calls ``next``. Who appends to ``waiting`` calls ``wake`` afterwards. ``rate``:
    the model's service rate, which determines the batch.

    Attributes:
        waiting: the samples, the oldest first.
        delay_s: seconds that a sample may wait for others of its batch, at most half of its time to its deadline.

    """

    def __init__(self, rate: ServiceRate, delay_s: float) -> None:
        self.waiting: deque[Sample] = deque()
        self._rate = rate
        self.delay_s = delay_s
        #: idle consumers, and whether one of them waits for its batch to fill
        self._idle: deque[asyncio.Future[None]] = deque()
        self._filling = False
        self._arrival = asyncio.Event()

    def wake(self) -> None:
        """Wake one idle consumer, or tell the one that fills its batch that a sample has come."""
        if self._filling:
            self._arrival.set()
            return
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():  # the waiter may have been cancelled in this iteration of the event loop
                waiter.set_result(None)
                return

    async def arrival(self) -> None:
        """Wait until there are samples, and until their batch is full or has waited for ``delay_s``."""
        while not self.waiting or self._filling:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter
        if self.delay_s:
            await self._fill()

    async def _fill(self) -> None:
        """Wait until the next batch is full, or its first sample has waited long enough."""
        loop = asyncio.get_running_loop()
        first = self.waiting[0]
        until = first.accepted + min(self.delay_s, (first.until - first.accepted) / 2)
        self._filling = True
        try:
            while 0 < len(self.waiting) < self._rate.batch and (left_s := until - loop.time()) > 0:
                self._arrival.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._arrival.wait()
        finally:
            self._filling = False

    def next(self, now: float, limit: int) -> tuple[list[Sample], list[Sample], list[Sample]]:
        """Remove and return the next batch of at most ``limit`` samples, then the expired and the hopeless samples.

        An expired sample is too old, or its deadline is over. A hopeless sample cannot be answered before its deadline.
        Deadlines count only for samples whose intake drops late ones. A batch also ends before its samples have too
        many pixels, or take longer than the shortest time that is left. ``now``: the time of the event loop.
        """
        waiting, rate = self.waiting, self._rate
        batch: list[Sample] = []
        late: list[Sample] = []
        hopeless: list[Sample] = []
        pixels, shortest_s = 0, float("inf")
        while waiting and len(batch) < limit:
            sample = waiting[0]
            if sample.stale_at <= now:
                late.append(waiting.popleft())
                continue
            if sample.intake.drops_late:
                left_s = sample.until - now
                if left_s <= 0:
                    late.append(waiting.popleft())
                    continue
                if rate.is_hopeless(left_s):
                    hopeless.append(waiting.popleft())
                    continue
                shortest_s = min(shortest_s, left_s)
            pixels += sample.pixels
            if batch and (pixels > BATCH_PIXELS or rate.takes_ms(len(batch) + 1) > shortest_s * 1000):
                break
            batch.append(waiting.popleft())
        return batch, late, hopeless

    def put_back(self, batch: Sequence[Sample]) -> None:
        """Put a batch that was not run back at the front of the queue."""
        self.waiting.extendleft(reversed(batch))

    def withdraw(self, reserve_peer: Callable[[], str | None]) -> Sample | None:
        """Remove and return the newest sample that a peer may run, if ``reserve_peer`` finds a peer; else None.

        The newest one gains most, because the model runs older samples sooner. The next sample always stays.
        """
        for position in range(len(self.waiting) - 1, 0, -1):
            sample = self.waiting[position]
            if not sample.stays and reserve_peer():
                del self.waiting[position]
                return sample
            if not sample.stays:
                break
        return None


class MemoryBudget:
    """Limits the memory of decoded frames to ``limit`` bytes; a larger frame is admitted alone. ``used``: bytes in use.

    Callers that find too little free memory wait in the order of arrival.
    """

    def __init__(self, limit: int) -> None:
        self.used = 0
        self._limit = limit
        self._lock = asyncio.Lock()
        self._release = asyncio.Event()

    def take_now(self, size: int) -> bool:
        """Take ``size`` bytes if they are free and no caller waits; return whether they were taken."""
        if self._lock.locked() or (self.used and self.used + size > self._limit):
            return False
        self.used += size
        return True

    async def take(self, size: int) -> None:
        """Take ``size`` bytes as soon as they are free; waits without a deadline."""
        async with self._lock:
            while self.used and self.used + size > self._limit:
                self._release.clear()
                await self._release.wait()
            self.used += size

    def give(self, size: int) -> None:
        """Give bytes back; a negative ``size`` takes more without waiting."""
        self.used -= size
        self._release.set()
