"""A queue of keys to process: each key stands once, is never processed twice at a time, and is retried on failure.

What a key needs is determined when it is processed, so any number of events cause one call. The number of keys bounds
the queue.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import structlog

from halimede.errors import HalimedeError
from halimede.system.backoff import exponential
from halimede.tracing.latency import Distribution

K = TypeVar("K")
log = structlog.get_logger()

#: seconds
FIRST_BACKOFF, LAST_BACKOFF = 1.0, 8.0
WORKERS = 8
#: a slow key is spaced by this multiple of its last duration, at most by so many seconds, so that others are processed
SPACING_FACTOR, LONGEST_SPACING = 10.0, 5.0
#: the loop's timers may fire this much too early
TICK = 1e-6


def has_come(when: float) -> bool:
    """Whether a loop time has come, to the precision of its timers."""
    return asyncio.get_running_loop().time() + TICK >= when


class WorkQueue(Generic[K]):
    """Calls ``work`` for each added key. ``spacing``: seconds that ``add(..., spaced=True)`` keeps between two calls.
    ``workers``: keys that are processed at a time.

    ``work`` may raise: a HalimedeError is logged as one line, anything else is a bug and gets its traceback. In both
    cases the key is processed again after a growing delay, and other keys are not delayed.
    """

    def __init__(
        self, name: str, work: Callable[[K], Awaitable[None]], *, spacing: float = 0.0, workers: int = WORKERS
    ) -> None:
        self.name = name
        self._work = work
        self._workers = workers
        self._spacing = spacing
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._numbers = itertools.count()
        self._active: set[K] = set()
        self._last: dict[K, float] = {}
        #: duration of the last call, if calls are spaced
        self._took: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()
        #: durations (ms) of all calls, and the number that raised
        self.times = Distribution()
        self.failed = 0

    @property
    def waiting(self) -> int:
        """Keys that are due now or later."""
        return len(self._due)

    def add(self, key: K, *, at: float = 0.0, spaced: bool = False, first: bool = False) -> None:
        """Process a key soon, at a time, or (``spaced``) not sooner than ``spacing`` seconds after the last time.

        ``first``: before all keys that are due, because a user waits for it.
        """
        due = float("-inf") if first else max(at, asyncio.get_running_loop().time())
        if spaced and key in self._last:
            slow = min(LONGEST_SPACING, SPACING_FACTOR * self._took.get(key, 0.0))
            due = max(due, self._last[key] + max(self._spacing, slow))
        if due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        if key not in self._active:
            self._push(key, due)

    def forget(self, key: K) -> None:
        """Drop the records of a key that no longer exists."""
        self._last.pop(key, None)
        self._took.pop(key, None)
        self._failures.pop(key, None)

    async def run(self) -> None:
        """Process keys until cancelled."""
        free = asyncio.Semaphore(self._workers)
        async with asyncio.TaskGroup() as group:
            while True:
                await free.acquire()
                key = await self._next()
                group.create_task(self._run(key), name=f"{self.name} {key}").add_done_callback(lambda _: free.release())

    async def _run(self, key: K) -> None:
        began = asyncio.get_running_loop().time()
        try:
            await self._work(key)
        except HalimedeError as error:
            delay = self._retry(key)
            log.warning("work item failed", queue=self.name, key=str(key), error=str(error), again_s=delay)
        except Exception:
            delay = self._retry(key)
            log.exception("work item failed", queue=self.name, key=str(key), again_s=delay)
        else:
            self._failures.pop(key, None)
        finally:
            self._active.discard(key)
            took = asyncio.get_running_loop().time() - began
            self.times.record(took * 1000)
            if self._spacing:
                self._took[key] = took
        if key in self._due:
            self._push(key, self._due[key])

    async def _next(self) -> K:
        loop = asyncio.get_running_loop()
        while True:
            while self._heap and has_come(self._heap[0][0]):
                due, _, key = heapq.heappop(self._heap)
                # skip an entry that an earlier one replaced, or whose key is being processed
                if self._due.get(key) == due and key not in self._active:
                    del self._due[key]
                    self._active.add(key)
                    self._last[key] = loop.time()
                    return key
            self._wake.clear()
            try:
                async with asyncio.timeout_at(self._heap[0][0] if self._heap else None):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _retry(self, key: K) -> float:
        self.failed += 1
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = exponential(failures, FIRST_BACKOFF, LAST_BACKOFF)
        self.add(key, at=asyncio.get_running_loop().time() + delay)
        return delay

    def _push(self, key: K, due: float) -> None:
        heapq.heappush(self._heap, (due, next(self._numbers), key))
        self._wake.set()
