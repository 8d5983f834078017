"""A queue of keys to process (``WorkQueue``), as Kubernetes' controllers have it.

A key names something, such as a resource. It stands in the queue once, is never processed twice at a time, and is
retried after a failure. What a key needs is determined when it is processed, so any number of events before cause one
call. The queue is bounded by the number of keys.
"""

from __future__ import annotations

import asyncio
import contextlib
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

#: seconds until a failed key is processed again: the first time, and at most
FIRST_BACKOFF, LAST_BACKOFF = 1.0, 8.0
#: keys that are processed at a time, by default
WORKERS = 8
#: pause after a slow call, so that other keys are processed: a multiple of its duration, at most so many seconds
SPACING_FACTOR, LONGEST_SPACING = 10.0, 5.0
#: seconds by which the event loop's timers may fire too early
TICK = 1e-6


def has_come(when: float) -> bool:
    """Whether a time of the running event loop has come, to the precision of its timers."""
    return asyncio.get_running_loop().time() + TICK >= when


class WorkQueue(Generic[K]):
    """Calls ``work`` for each added key, while ``run`` runs.

    ``name``: in logs and metrics. ``spacing``: least seconds between two calls for a key that is added with
    ``spaced=True``; 0: no least time. ``workers``: keys that are processed at a time.

    ``work`` may raise: a HalimedeError is logged as one line, any other error is a bug and is logged with its
    traceback. In both cases the key is processed again after a growing delay, and other keys are not delayed.
    """

    def __init__(
        self, name: str, work: Callable[[K], Awaitable[None]], *, spacing: float = 0.0, workers: int = WORKERS
    ) -> None:
        self.name = name
        self._work = work
        self._workers = workers
        self._spacing = spacing
        #: when each waiting key is to be processed, by the event loop's time
        self._due: dict[K, float] = {}
        #: (due time, number of the entry, key); an entry may be outdated
        self._heap: list[tuple[float, int, K]] = []
        self._numbers = itertools.count()
        #: keys that are being processed
        self._active: set[K] = set()
        #: when the last call for a key began, and how long it took if calls are spaced
        self._last: dict[K, float] = {}
        self._took: dict[K, float] = {}
        #: consecutive failures
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()
        #: set while no key is due
        self._idle = asyncio.Event()
        #: durations (ms) of all calls, and the number of calls that raised
        self.times = Distribution()
        self.failed = 0

    @property
    def waiting(self) -> int:
        """The number of keys that are due now or later."""
        return len(self._due)

    async def let_pass(self, longest_s: float) -> None:
        """Wait until the processing of all keys that are due has begun, at most ``longest_s`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._idle.wait()

    def add(self, key: K, *, at: float = 0.0, spaced: bool = False, first: bool = False) -> None:
        """Have a key processed: as soon as possible, or at the event loop's time ``at``.

        ``spaced``: not sooner than ``spacing`` seconds after the beginning of its last call, and later still after a
        slow call. ``first``: before all keys that are due, because a user waits for it. If the key waits already, the
        earlier time holds.
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
        """Drop what is remembered of a key that no longer exists: times and failures."""
        self._last.pop(key, None)
        self._took.pop(key, None)
        self._failures.pop(key, None)

    async def run(self) -> None:
        """Process keys when they are due, until cancelled."""
        free = asyncio.Semaphore(self._workers)
        async with asyncio.TaskGroup() as group:
            while True:
                await free.acquire()
                key = await self._next()
                group.create_task(self._run(key), name=f"{self.name} {key}").add_done_callback(lambda _: free.release())

    async def _run(self, key: K) -> None:
        """Call ``work`` for a key, and record how that went."""
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
        """Wait for a key that is due and not being processed; mark it as being processed, and return it."""
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
            self._idle.set()
            try:
                async with asyncio.timeout_at(self._heap[0][0] if self._heap else None):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _retry(self, key: K) -> float:
        """Add a failed key again; return the delay in seconds."""
        self.failed += 1
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = exponential(failures, FIRST_BACKOFF, LAST_BACKOFF)
        self.add(key, at=asyncio.get_running_loop().time() + delay)
        return delay

    def _push(self, key: K, due: float) -> None:
        """Add an entry to the heap, and wake the loop."""
        heapq.heappush(self._heap, (due, next(self._numbers), key))
        self._idle.clear()
        self._wake.set()
