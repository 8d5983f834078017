"""An event loop whose clock jumps: hours of timeouts and back-off pass in milliseconds, always in the same order.

Nothing ever sleeps. When no callback is ready the clock moves on to the next timer. Work in threads (SQLite, hashing)
still takes the time that it takes: while some is under way the clock stands.

``pytest.mark.simulated`` runs the async tests and fixtures of a file, or one test, on it (``tests/conftest.py``).
``simulate`` runs a coroutine within a test that is no coroutine itself.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

from tests.waiting import eventually as eventually  # noqa: PLC0414 - tests of either kind of time wait by it
from tests.waiting import patience

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: turns of the loop, and simulated seconds, that one simulation may take
MAX_STEPS = 2_000_000
MAX_SECONDS = 7 * 24 * 3600.0
#: real seconds to wait for a thread before calling it a deadlock
PATIENCE = patience(10.0)


class SimulationError(AssertionError):
    """The simulation cannot or may not go on: everything waits for ever, or it takes too many steps."""


class _JumpingSelector(selectors.DefaultSelector):
    """Advances the clock of its loop where another selector would sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.steps = 0
        self.stopped = False
        self.busy_threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.steps += 1
        if not self.stopped and (self.steps > MAX_STEPS or self.now > MAX_SECONDS):
            self.stopped = True  # once: what is left has to be cancelled and to end
            raise SimulationError(f"no end after {self.steps} steps and {self.now:.0f} simulated seconds")
        if self.busy_threads or timeout is None:
            ready = super().select(PATIENCE if timeout != 0 else 0)
            if not ready and timeout != 0:
                raise SimulationError("everything waits, and nothing is left to happen")
            return ready
        ready = super().select(0)
        if not ready:
            self.now += timeout
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """The loop of one simulation. ``time()`` starts at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def suspend(self, seconds: float) -> None:
        """Let time pass in which nothing runs, as for a process that is stopped."""
        self._jumping.now += seconds

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._jumping.busy_threads += 1
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        """Join the threads in real time: since Python 3.12 there is a deadline, to which simulated time would jump."""
        self._jumping.busy_threads += 1
        await super().shutdown_default_executor(*args)

    def _thread_done(self, _: asyncio.Future[Any]) -> None:
        self._jumping.busy_threads -= 1


def suspend(seconds: float) -> None:
    """Suspend the simulation that runs: see ``SimulatedLoop.suspend``."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    loop.suspend(seconds)


def simulate(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in simulated time; raise SimulationError if it cannot or may not go on."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)


async def eventually_in_real_time(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait for what a thread that is not the loop's does, such as one that writes files; fail at the deadline.

    Simulated time alone would be over before such a thread has begun. It goes on slowly here, for what the loop does.
    """
    deadline = time.monotonic() + patience(timeout_s)
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"did not come true within {patience(timeout_s):g} s of real time")
        await asyncio.to_thread(time.sleep, 0.005)
        await asyncio.sleep(0.05)
