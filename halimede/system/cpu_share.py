"""Gives processes that go after all others a promised share of a core, also if other processes use all cores.

They compute when no other process needs the processor (``SCHED_IDLE``). If they wait for a core and get less than the
share, their weight is raised until they get it, and lowered again as soon as they get more. They always have less
weight than processes of the usual niceness, and do not preempt them when they wake up (``SCHED_BATCH``). A process that
may not raise its priority never becomes idle, since it could not leave that again: it has the same low weight all the
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from halimede.system.child_process import stat_fields
from halimede.system.process_limits import LEAST_PRIORITY, START_PRIORITY, can_raise_priority

#: seconds from one adjustment to the next, over which the share is promised, and until a changed figure is reported
PERIOD_S, WINDOW_S, REPORT_S = 2.0, 60.0, 10.0
#: one level of niceness changes the weight of a process by this factor; levels of one adjustment
NICE_FACTOR, MOST_LEVELS = 1.25, 6
#: the level after all niceness: ``SCHED_IDLE``
IDLE_LEVEL = LEAST_PRIORITY + 1
#: processes that always compute on each core, next to which the share is kept: others would cost frames too much
MOST_COMPETITORS = 2
#: what processes get while they are behind over the window, in multiples of their share: they catch up
CATCH_UP = 1.5
#: a promise counts as broken below this part of it: processor time is measured in hundredths of a second
TOLERANCE = 0.9
#: share of a period: processes that waited for a core for longer need more than they get
WAITS = 0.5
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Period:
    """What processes got in a period: seconds of the clock, of processor time, and whether they needed more."""

    seconds: float
    computed_s: float
    waits: bool


@dataclass
class ShareKeeper:
    """Decides at which level processes run, and whether they get their share of a core. Pure.

    Periods in which they neither needed nor used the share do not count. ``can_raise``: whether this process may raise
    their level again.
    """

    share: float
    level: int = IDLE_LEVEL
    can_raise: bool = True
    _window: deque[Period] = field(default_factory=deque)

    def observe(self, period: Period) -> None:
        """Count a period, and set the level for the next one."""
        target_s = self.share * period.seconds
        if not period.waits and period.computed_s < target_s:
            self.level = min(self.weakest_level, self.level + 1)
            return
        self._window.append(period)
        while self.window_s - self._window[0].seconds >= WINDOW_S:
            self._window.popleft()
        if self.rate < self.share:
            target_s *= CATCH_UP
        levels = math.log(max(period.computed_s, 0.01) / target_s) / math.log(NICE_FACTOR)
        levels = max(-MOST_LEVELS, min(MOST_LEVELS, round(levels)))
        self.level = max(self.strongest_level, min(self.weakest_level, self.level + levels))

    @property
    def strongest_level(self) -> int:
        """The niceness whose weight is enough for the share among the competitors; usual processes have 0."""
        level = round(-math.log(MOST_COMPETITORS * self.share) / math.log(NICE_FACTOR))
        return max(0, min(IDLE_LEVEL, level))

    @property
    def weakest_level(self) -> int:
        """The level while they get enough: idle only if there is a return."""
        return IDLE_LEVEL if self.can_raise else max(START_PRIORITY, self.strongest_level)

    @property
    def window_s(self) -> float:
        """The seconds that count."""
        return sum(period.seconds for period in self._window)

    @property
    def rate(self) -> float:
        """The share of a core that they got in the window."""
        return sum(period.computed_s for period in self._window) / self.window_s

    @property
    def is_starved(self) -> bool:
        """Whether they got less than their share over a whole window."""
        return self.window_s >= WINDOW_S - PERIOD_S and self.rate < TOLERANCE * self.share


class CpuShare:
    """Keeps the share of a core of this process and its descendants: ``run`` until cancelled."""

    def __init__(self, share: float) -> None:
        self._keeper = ShareKeeper(share)
        self._waited_s: dict[int, float] = {}
        self._is_permitted = True
        #: why the promise is not kept; empty: it is
        self.trouble = ""

    async def run(self) -> None:
        """Observe and adjust the processes."""
        self._keeper.can_raise = can_raise_priority()  # before the first adjustment
        began, computed_s = time.monotonic(), _observe(self._waited_s).computed_s
        reported = began
        while True:
            await asyncio.sleep(PERIOD_S)
            now, use = time.monotonic(), _observe(self._waited_s)
            seconds = min(now - began, PERIOD_S + use.own_waited_s)  # without the time for which it was stopped
            waits = use.is_runnable or use.waited_s > WAITS * seconds
            self._keeper.observe(Period(seconds, max(0.0, use.computed_s - computed_s), waits))
            began, computed_s = now, use.computed_s
            self._adjust()
            if now - reported >= REPORT_S:
                reported, self.trouble = now, self._trouble()

    def _adjust(self) -> None:
        """Set the level of all threads, as far as this process may."""
        try:
            for pid in _tree(os.getpid()):
                _set_level(pid, self._keeper.level)
        except PermissionError:
            self._is_permitted = False

    def _trouble(self) -> str:
        if not self._keeper.is_starved:
            return ""
        share, rate = 100 * self._keeper.share, 100 * self._keeper.rate
        cause = "other processes need all cores"
        if not self._is_permitted:
            cause += ", and the kernel does not let it raise its priority (RLIMIT_NICE)"
        return f"it got {rate:.1f} % of a core in the last minute, {share:g} % are promised: {cause}"


@dataclass(frozen=True, slots=True)
class CpuUse:
    """What processes used: all processor time, and how long a thread waited for a core since the last observation.

    ``own_waited_s``: the observing thread, ``waited_s``: the one that waited longest. ``is_runnable``: another thread
    computes, or waits for a core now.
    """

    computed_s: float
    waited_s: float
    own_waited_s: float
    is_runnable: bool


def _observe(waited_s: dict[int, float]) -> CpuUse:
    """Return what this process and its descendants use; ``waited_s`` has the waiting of each thread so far."""
    computed_s, is_runnable = 0.0, False
    own, before = threading.get_native_id(), dict(waited_s)
    waited_s.clear()
    for pid in _tree(os.getpid()):
        if fields := stat_fields(pid):
            computed_s += sum(map(int, fields[11:15])) / TICKS
        for thread in _threads(pid):
            with contextlib.suppress(OSError):
                waited_s[thread] = int(Path(f"/proc/{thread}/schedstat").read_text().split()[1]) / 1e9
            is_runnable |= thread != own and stat_fields(thread)[:1] == ["R"]
    more_s = {thread: total_s - before.get(thread, 0.0) for thread, total_s in waited_s.items()}
    return CpuUse(computed_s, max(more_s.values(), default=0.0), more_s.get(own, 0.0), is_runnable)


def _set_level(pid: int, level: int) -> None:
    """Set the level of the threads of a process; this one itself, which serves the others, is never idle."""
    idle = level == IDLE_LEVEL and pid != os.getpid()
    policy = os.SCHED_IDLE if idle else os.SCHED_BATCH
    niceness = min(level, LEAST_PRIORITY)
    for thread in _threads(pid):
        with contextlib.suppress(ProcessLookupError):
            if os.sched_getscheduler(thread) != policy:
                os.sched_setscheduler(thread, policy, os.sched_param(0))
            if not idle and os.getpriority(os.PRIO_PROCESS, thread) != niceness:
                os.setpriority(os.PRIO_PROCESS, thread, niceness)


def _tree(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    pids = [pid]
    while pids:
        yield (parent := pids.pop())
        for thread in _threads(parent):
            with contextlib.suppress(OSError):
                pids += map(int, Path(f"/proc/{parent}/task/{thread}/children").read_text().split())


def _threads(pid: int) -> list[int]:
    """Return the threads of a process; none if it has ended."""
    try:
        return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
