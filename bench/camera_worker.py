"""The edge worker of bench.camera as it is, with a clock on each call of its event loop: one process.

It writes a JSON line for each line that it reads: the calls since the line before. Its standard input's end is its own.
A call's time by the clock has in it what other processes did meanwhile on a busy machine; its processor time has not.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from halimede.worker.main import main

#: milliseconds of a call from which it counts as long
LONG_MS = 5.0


@dataclass
class LoopCalls:
    """What calls of the event loop took; ``name`` is the one with the most processor time."""

    calls: int = 0
    long_calls: int = 0
    longest_ms: float = 0.0
    longest_cpu_ms: float = 0.0
    name: str = ""

    def add(self, wall_s: float, cpu_s: float, handle: asyncio.Handle) -> None:
        """Count a call."""
        self.calls += 1
        self.longest_ms = max(self.longest_ms, wall_s * 1000)
        self.long_calls += cpu_s * 1000 > LONG_MS
        if cpu_s * 1000 > self.longest_cpu_ms:
            self.longest_cpu_ms, self.name = cpu_s * 1000, name_of(handle)


def name_of(handle: Any) -> str:
    """Return what a handle of asyncio calls: a task's coroutine, or a function."""
    callback = handle._callback  # noqa: SLF001  # asyncio shows it in its own debug mode alone
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return str(getattr(task.get_coro(), "__qualname__", task.get_name()))
    return str(getattr(callback, "__qualname__", callback))


class LoopProbe:
    """Times all calls of all event loops in this process."""

    def __init__(self) -> None:
        self._present = LoopCalls()

    def install(self) -> None:
        """Begin."""
        run = asyncio.Handle._run  # noqa: SLF001

        def timed(handle: asyncio.Handle) -> None:
            wall, cpu = time.perf_counter(), time.thread_time()
            run(handle)
            self._present.add(time.perf_counter() - wall, time.thread_time() - cpu, handle)

        asyncio.Handle._run = timed  # type: ignore[method-assign]  # noqa: SLF001

    def take(self) -> LoopCalls:
        """Return the calls so far, and begin anew."""
        calls, self._present = self._present, LoopCalls()
        return calls

    def report(self) -> None:
        """Answer each line of standard input; end the worker with the last one."""
        for _ in sys.stdin:
            print(json.dumps(asdict(self.take())), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    probe = LoopProbe()
    probe.install()
    threading.Thread(target=probe.report, name="input", daemon=True).start()
    raise SystemExit(main("edge"))
