"""The queue of samples before a model, and the selection of its next batch.

Intakes bound the queue: they refuse samples or wait. It needs no bus and no model, and its callers pass the time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from halimede.offload.service_rate import ServiceRate
from halimede.pipeline.sample import Sample

#: most bytes of decoded pixels in one batch
BATCH_PIXELS = 256 * 1024 * 1024


class ModelQueue:
    """The queue before one model, and its consumers: one task for each of the model's sessions.

    ``rate`` is the model's service rate. ``delay_s``: seconds that a sample may wait for others of its batch, at most
    half of its remaining time.
    """

    def __init__(self, rate: ServiceRate, *, delay_s: float = 0.0) -> None:
        self.waiting: deque[Sample] = deque()
        self._rate = rate
        self.delay_s = delay_s
        #: idle consumers, and whether one of them waits for its batch to fill
        self._idle: deque[asyncio.Future[None]] = deque()
        self._filling = False
        self._arrival = asyncio.Event()

    def wake(self) -> None:
        """Wake one consumer."""
        if self._filling:
            self._arrival.set()
            return
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():  # the waiter may have been cancelled in this iteration of the event loop
                waiter.set_result(None)
                return

    async def arrival(self) -> None:
        """Wait until a batch is full or has waited long enough."""
        while not self.waiting or self._filling:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter
        if self.delay_s:
            await self._fill()

    async def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        first = self.waiting[0]
        until = first.accepted + min(self.delay_s, (first.until - first.accepted) / 2)
        self._filling = True
        try:
            while 0 < len(self.waiting) < self._rate.batch and (left := until - loop.time()) > 0:
                self._arrival.clear()
                try:
                    async with asyncio.timeout(left):
                        await self._arrival.wait()
                except TimeoutError:
                    break
        finally:
            self._filling = False

    def next(self, now: float, limit: int) -> tuple[list[Sample], list[Sample], list[Sample]]:
        """Remove and return the next batch of at most ``limit``, the expired and the hopeless samples.

        The deadline of an expired sample is over, or it is too old. The model cannot answer a hopeless sample before
        its deadline.
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
                if rate.hopeless(left_s):
                    hopeless.append(waiting.popleft())
                    continue
                shortest_s = min(shortest_s, left_s)
            pixels += sample.pixels
            if batch and (pixels > BATCH_PIXELS or rate.takes_ms(len(batch) + 1) > shortest_s * 1000):
                break
            batch.append(waiting.popleft())
        return batch, late, hopeless

    def put_back(self, batch: Sequence[Sample]) -> None:
        """Put a batch that was not run back at the front."""
        self.waiting.extendleft(reversed(batch))

    def withdraw(self, is_taken: Callable[[], bool]) -> Sample | None:
        """Remove and return the newest sample that a peer may run, if ``is_taken``; None: no such sample.

        The model runs older samples sooner, and the next sample always stays.
        """
        for position in range(len(self.waiting) - 1, 0, -1):
            sample = self.waiting[position]
            if not sample.stays and is_taken():
                del self.waiting[position]
                return sample
            if not sample.stays:
                break
        return None


class MemoryBudget:
    """Limits the memory of decoded frames to ``limit`` bytes; a larger frame is admitted alone.

    Callers that find too little free memory wait in the order of arrival.
    """

    def __init__(self, limit: int) -> None:
        self.taken = 0
        self._limit = limit
        self._lock = asyncio.Lock()
        self._given = asyncio.Event()

    def take_now(self, size: int) -> bool:
        """Take ``size`` bytes if they are free and no caller waits; return whether they were taken."""
        if self._lock.locked() or (self.taken and self.taken + size > self._limit):
            return False
        self.taken += size
        return True

    async def take(self, size: int) -> None:
        """Take ``size`` bytes as soon as they are free."""
        async with self._lock:
            while self.taken and self.taken + size > self._limit:
                self._given.clear()
                await self._given.wait()
            self.taken += size

    def give(self, size: int) -> None:
        """Give bytes back; a negative ``size`` takes more without waiting."""
        self.taken -= size
        self._given.set()
