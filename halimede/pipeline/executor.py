"""Runs model calls in a thread or on the event loop, and detects calls that do not return.

What runs on the event loop stops everything else in the process. So it is kept to models of this project (a user's code
may wait for anything), to calls that measurements say are short, and to so many samples at a time that nobody notices.

Nothing can end a thread but the end of its process. So a stuck call ends the process, and its supervisor restarts it.
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

#: milliseconds of CPU time that a sample may cost usually; twice that ends it
SHORT_MS = 0.3
#: milliseconds that no call may take for each of its samples, and calls in a row that have to keep to that
LONGEST_MS, ENOUGH = 2.0, 50
#: milliseconds for which a call may block the loop, and bytes of frames that it may read in them
BLOCK_MS, BLOCK_BYTES = 1.0, 4 * 1024 * 1024
#: weight of the newest call in the running mean
NEWEST = 0.1
#: milliseconds added to what a sample was measured to cost, which may be nothing
LEAST_MS = 0.001
#: checks in a row that have to find a call stuck: a process that was stopped for a while finds its clock ahead
CHECKS = 3


class ModelStuckError(HalimedeError):
    """A model call did not return. Only the end of the process ends its thread."""


class ModelThread:
    """The thread in which one model runs: models need not be thread-safe, and the event loop stays responsive.

    Leaving the block does not wait for a call under way. ``make`` makes another kind of thread, by its name.
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
        """Run ``work`` in the thread, after what was asked for earlier."""
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
        """Whether nothing runs or waits in the thread, as far as its callers know: then ``inline`` may be used."""
        return not self._calls and self._began is None and self._executor is not None

    @property
    def busy_s(self) -> float:
        """Seconds that the call under way has taken so far, 0 when there is none."""
        began = self._began
        return time.monotonic() - began if began is not None else 0.0

    async def watch(self, limit_s: float) -> None:
        """Run until cancelled; raise ModelStuckError when one call takes longer than ``limit_s`` seconds."""
        await watch(lambda: self.busy_s, limit_s)

    def inline(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` here and now, as a call of this thread's that ``watch`` sees. Only while it is ``idle``."""
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

    Use it with ``with``. ``busy_s``: seconds that the longest call under way has taken; ``text``: the line written to
    standard error before the process ends with ``code``. Where the loop still runs, ``watch`` comes first.
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
    """Decides from the CPU time of a model's calls so far whether they may run on the event loop. Pure.

    CPU time, because a busy machine that lets a call wait says nothing about the model. ``first_ms``: what one sample
    cost in a trial run; a model for which that is short may run on the loop from its first call on.
    """

    def __init__(self, first_ms: float | None = None) -> None:
        self._each_ms = SHORT_MS if first_ms is None else first_ms
        short = first_ms is not None and first_ms <= SHORT_MS
        self._in_a_row = ENOUGH if short else 0
        #: samples that one call on the event loop may answer; 0: none, calls belong in a thread
        self.max_samples = int(BLOCK_MS / (self._each_ms + LEAST_MS)) if short else 0

    def learn(self, samples: int, ms: float) -> None:
        """Take in one call: how many samples it answered, and the milliseconds of CPU time that it took."""
        each = ms / samples if samples > 1 else ms
        mean = self._each_ms = self._each_ms + NEWEST * (each - self._each_ms)
        self._in_a_row = self._in_a_row + 1 if each <= LONGEST_MS else 0
        if self._in_a_row < ENOUGH or mean > 2 * SHORT_MS:
            self.max_samples = 0
        elif self.max_samples or mean <= SHORT_MS:
            self.max_samples = int(BLOCK_MS / (mean + LEAST_MS))
