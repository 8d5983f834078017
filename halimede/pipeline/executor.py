"""Runs model calls in a thread or on the event loop, and detects calls that do not return.

A call on the event loop blocks everything else in the process. So only models of this project run there (a user's code
may block without limit), only if their calls are measured as short, and only with few samples per call.

Only the end of its process ends a thread. So a stuck call ends the process, and its supervisor restarts it.
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
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from halimede.errors import HalimedeError

P = ParamSpec("P")
T = TypeVar("T")

#: milliseconds of CPU time per sample up to which calls run on the event loop; above twice that they stop doing so
SHORT_MS = 0.3
#: most milliseconds per sample of a single call, and consecutive calls that must stay below that
LONGEST_MS, ENOUGH = 2.0, 50
#: most milliseconds for which a call may block the loop, and most bytes of frames that it may read
BLOCK_MS, BLOCK_BYTES = 1.0, 4 * 1024 * 1024
#: weight of the newest call in the running mean
NEWEST = 0.1
#: milliseconds added to the measured cost of a sample, which may be 0
LEAST_MS = 0.001
#: consecutive checks that must find a call stuck: a process that was suspended finds its clock advanced
CHECKS = 3


class ModelStuckError(HalimedeError):
    """A model call did not return. Only the end of the process can end its thread."""


class ModelThread:
    """The thread in which one model runs: models need not be thread-safe, and the event loop stays responsive.

    Leaving the block does not wait for a running call. ``make`` creates another kind of executor, by its name.
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executor:
            self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = None

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` in the thread, after earlier calls."""
        if self._executor is None:
            raise RuntimeError("use the model's thread inside its `async with` block")
        loop = asyncio.get_running_loop()
        self._calls += 1
        try:
            return await loop.run_in_executor(self._executor, partial(self.inline, work, *args, **kwargs))
        finally:
            self._calls -= 1

    @property
    def idle(self) -> bool:
        """Whether the thread has no running or queued call of its callers: then ``inline`` may be used."""
        return not self._calls and self._began is None and self._executor is not None

    @property
    def busy_s(self) -> float:
        """Seconds since the start of the running call, 0 without one."""
        began = self._began
        return time.monotonic() - began if began is not None else 0.0

    async def watch(self, limit_s: float) -> None:
        """Run until cancelled; raise ModelStuckError when one call takes longer than ``limit_s`` seconds."""
        await watch(lambda: self.busy_s, limit_s)

    def inline(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` in the calling thread, as a call that ``watch`` observes. Only while ``idle``."""
        self._began = time.monotonic()
        try:
            return work(*args, **kwargs)
        finally:
            self._began = None


async def watch(busy_s: Callable[[], float], limit_s: float) -> None:
    """Run until cancelled; raise ModelStuckError when ``busy_s`` reports a call that takes longer than ``limit_s``."""
    while True:
        await asyncio.sleep(min(1.0, limit_s / 4))
        if busy_s() > limit_s:
            raise ModelStuckError(
                f"the model has not answered for {limit_s:g} s: mend its predict, or raise MODEL_TIMEOUT_S"
            )


class LoopWatchdog:
    """Ends the process from a thread when a call takes longer than ``limit_s``, also one that blocks the event loop.

    Use it with ``with``. ``busy_s`` returns the duration of the longest running call in seconds; ``text`` is the line
    written to standard error before the process ends with ``code``. While the event loop runs, ``watch`` reacts first.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        every = min(1.0, self._limit_s / 4)
        checks = 0
        while not self._stopped.wait(every):
            checks = checks + 1 if self._busy_s() > self._limit_s else 0
            if checks >= CHECKS:
                print(self._text, file=sys.stderr, flush=True)
                self._end(self._code)
                return


class InlinePolicy:
    """Decides from the CPU time of a model's earlier calls whether they may run on the event loop. Pure.

    It uses CPU time, because the duration of a call on a busy machine does not describe the model. ``first_ms`` is the
    cost of one sample in a trial run; if that is short, the model may run on the loop from its first call.
    """

    def __init__(self, first_ms: float | None = None) -> None:
        self._each_ms = SHORT_MS if first_ms is None else first_ms
        short = first_ms is not None and first_ms <= SHORT_MS
        self._in_a_row = ENOUGH if short else 0
        #: most samples of one call on the event loop; 0: calls run in a thread
        self.max_samples = int(BLOCK_MS / (self._each_ms + LEAST_MS)) if short else 0

    def learn(self, samples: int, ms: float) -> None:
        """Record one call: its number of samples, and its milliseconds of CPU time."""
        each = ms / samples if samples > 1 else ms
        mean = self._each_ms = self._each_ms + NEWEST * (each - self._each_ms)
        self._in_a_row = self._in_a_row + 1 if each <= LONGEST_MS else 0
        if self._in_a_row < ENOUGH or mean > 2 * SHORT_MS:
            self.max_samples = 0
        elif self.max_samples or mean <= SHORT_MS:
            self.max_samples = int(BLOCK_MS / (mean + LEAST_MS))
