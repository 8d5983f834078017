"""Runs model calls in a thread or on the event loop, and detects calls that do not return.

``ModelThread`` is the thread. A call on the event loop (inline) blocks everything else in the process. So only models
without user code run there, only if their calls are measured as short, and only with few samples in a call:
``InlinePolicy`` decides.

Only the end of its process ends a thread. So a stuck call ends the process, and its supervisor restarts it:
``LoopWatchdog`` and ``watch`` detect stuck calls.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, Self, TypeVar

from halimede.errors import HalimedeError

P = ParamSpec("P")
T = TypeVar("T")

#: mean milliseconds of CPU time for a sample up to which calls run on the event loop; above twice that they stop
SHORT_MS = 0.3
#: most milliseconds for a sample in a single call, and number of calls in a row that must stay below that
LONG_MS, SHORT_CALLS = 2.0, 50
#: most milliseconds for which a call may block the loop, and most bytes of frames that it may decode
BLOCK_MS, BLOCK_BYTES = 1.0, 4 * 1024 * 1024
#: weight of the newest call in the running mean
NEW_WEIGHT = 0.1
#: milliseconds added to the measured cost of a sample, which may be 0
ADDED_MS = 0.001
#: checks in a row that must find a call stuck, because the clock of a suspended process jumps
STUCK_CHECKS = 3


class ModelStuckError(HalimedeError):
    """A model call did not return in time. Only the end of the process can end its thread."""


class ModelThread:
    """The thread in which one model runs, within an ``async with`` block: models need not be thread-safe.

    The end of the block does not wait for a running call. ``name``: of the thread. ``make``: makes the executor for a
    name; None: a ThreadPoolExecutor with one thread.
    """

    def __init__(self, name: str = "model", make: Callable[[str], Executor] | None = None) -> None:
        self._name = name
        self._make = make or partial(ThreadPoolExecutor, 1)
        self._executor: Executor | None = None
        self._began: float | None = None
        self._calls = 0

    async def __aenter__(self) -> Self:
        self._executor = self._make(self._name)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._executor:
            self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = None

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what ``work`` returns, or raise what it raises; it runs in the thread, after earlier calls.

        Raises RuntimeError outside the ``async with`` block.
        """
        if self._executor is None:
            raise RuntimeError("use the model's thread inside its `async with` block")
        loop = asyncio.get_running_loop()
        self._calls += 1
        try:
            return await loop.run_in_executor(self._executor, partial(self.run_watched, work, *args, **kwargs))
        finally:
            self._calls -= 1

    @property
    def idle(self) -> bool:
        """Whether the thread has no running or queued call. Only then ``run_watched`` may be called."""
        return not self._calls and self._began is None and self._executor is not None

    @property
    def busy_s(self) -> float:
        """Seconds since the start of the running call; 0 without one."""
        began = self._began
        return time.monotonic() - began if began is not None else 0.0

    async def watch(self, limit_s: float) -> None:
        """Run until cancelled. Raises ModelStuckError when a call takes longer than ``limit_s`` seconds."""
        await watch(lambda: self.busy_s, limit_s)

    def run_watched(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what ``work`` returns; it runs in the calling thread, as a call that counts in ``busy_s``.

        Call it only while ``idle``.
        """
        self._began = time.monotonic()
        try:
            return work(*args, **kwargs)
        finally:
            self._began = None


def check_interval_s(limit_s: float) -> float:
    """Return the seconds between two checks: a stuck call is noticed soon after its limit."""
    return min(1.0, limit_s / 4)


async def watch(busy_s: Callable[[], float], limit_s: float) -> None:
    """Run until cancelled. Raises ModelStuckError when ``busy_s`` returns more than ``limit_s`` seconds."""
    while True:
        await asyncio.sleep(check_interval_s(limit_s))
        if busy_s() > limit_s:
            raise ModelStuckError(
                f"the model has not answered for {limit_s:g} s: mend its predict, or raise MODEL_TIMEOUT_S"
            )


class LoopWatchdog:
    """Ends the process from a thread when a model call blocks the event loop for longer than ``limit_s`` seconds.

    It works within a ``with`` block. While the event loop runs, ``watch`` reacts first. ``busy_s``: returns the seconds
    of the longest running call. ``text``: the line that is written to standard error before the process ends with the
    exit code ``code``. ``end``: ends the process.
    """

    def __init__(
        self,
        busy_s: Callable[[], float],
        limit_s: float,
        *,
        text: str,
        code: int,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._busy_s = busy_s
        self._limit_s = limit_s
        self._text = text
        self._code = code
        self._end = end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        """Check until the end of the block, in the watchdog's thread."""
        checks = 0
        while not self._stopped.wait(check_interval_s(self._limit_s)):
            checks = checks + 1 if self._busy_s() > self._limit_s else 0
            if checks >= STUCK_CHECKS:
                print(self._text, file=sys.stderr, flush=True)
                self._end(self._code)
                return


class InlinePolicy:
    """Decides from the CPU time of a model's earlier calls whether the next ones may run on the event loop. Pure.

    CPU time counts, because the duration of a call on a busy machine does not describe the model. ``first_ms``:
    milliseconds of one sample in a trial run; if they are few, the model may run on the loop from its first call; None:
    there was no trial run.
    """

    def __init__(self, first_ms: float | None = None) -> None:
        self._mean_ms = SHORT_MS if first_ms is None else first_ms
        short = first_ms is not None and first_ms <= SHORT_MS
        self._in_a_row = SHORT_CALLS if short else 0
        #: most samples of one call on the event loop; 0: calls run in a thread
        self.max_samples = int(BLOCK_MS / (self._mean_ms + ADDED_MS)) if short else 0

    def learn(self, samples: int, ms: float) -> None:
        """Record one call with a number of samples, which took ``ms`` milliseconds of CPU time."""
        sample_ms = ms / max(1, samples)
        mean = self._mean_ms = self._mean_ms + NEW_WEIGHT * (sample_ms - self._mean_ms)
        self._in_a_row = self._in_a_row + 1 if sample_ms <= LONG_MS else 0
        if self._in_a_row < SHORT_CALLS or mean > 2 * SHORT_MS:
            self.max_samples = 0
        elif self.max_samples or mean <= SHORT_MS:
            self.max_samples = int(BLOCK_MS / (mean + ADDED_MS))
