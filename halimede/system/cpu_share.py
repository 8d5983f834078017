"""Gives background processes, such as a training, a promised share of a core, also if others use all cores.

Background processes compute when no other process needs the processor (``SCHED_IDLE``). If they wait for a core and get
less than the share, their weight is raised until they get it, and lowered again as soon as they get more. They always
have less weight than processes of the usual niceness, and do not preempt them when they wake up (``SCHED_BATCH``).

A level is a niceness (0 to 19), or ``IDLE_LEVEL`` for ``SCHED_IDLE``: the higher the level, the less a process gets. A
process that may not raise its priority never becomes idle, since it could not return: it keeps one level.
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

#: seconds from one adjustment to the next
PERIOD_S = 2.0
#: seconds over which the share is promised
WINDOW_S = 60.0
#: seconds between two updates of ``CpuShare.trouble``
REPORT_S = 10.0
#: one level changes the weight of a process by this factor
NICE_FACTOR = 1.25
#: most levels of one adjustment
MOST_LEVELS = 6
#: the level after all niceness: ``SCHED_IDLE``
IDLE_LEVEL = LEAST_PRIORITY + 1
#: processes that always compute on each core, next to which the share is kept: others would cost frames too much
MOST_COMPETITORS = 2
#: multiple of the share that processes get while they got less than it over the window: so they catch up
CATCH_UP = 1.5
#: below this part of the share a promise counts as broken: processor time is measured in hundredths of a second
TOLERANCE = 0.9
#: part of a period: processes that waited for a core for longer need more than they get
WAITS = 0.5
#: the kernel's units of processor time in a second
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Period:
    """What processes got from one adjustment to the next.

    ``seconds``: of the clock; ``computed_s``: seconds of processor time, of all processes together; ``waits``: they had
    more to compute: a thread besides the observing one was runnable at the end, or a thread waited for a core for more
    than WAITS of the period.
    """

    seconds: float
    computed_s: float
    waits: bool


@dataclass
class ShareKeeper:
    """Decides from periods at which level processes run, and whether they get their share of a core.

    Periods in which they neither needed nor used the share do not count.

    Attributes:
        share: the promised part of a core, above 0.
        level: the level for the next period.
        can_raise: this process may give the processes a higher priority again.

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
        # so many levels change the computed time to the target; at least one tick, because 0 has no logarithm
        levels = math.log(max(period.computed_s, 0.01) / target_s) / math.log(NICE_FACTOR)
        levels = max(-MOST_LEVELS, min(MOST_LEVELS, round(levels)))
        self.level = max(self.strongest_level, min(self.weakest_level, self.level + levels))

    @property
    def strongest_level(self) -> int:
        """The level that is enough for the share next to MOST_COMPETITORS processes of niceness 0 on each core.

        A niceness, or for a share below 0.7 % IDLE_LEVEL.
        """
        level = round(-math.log(MOST_COMPETITORS * self.share) / math.log(NICE_FACTOR))
        return max(0, min(IDLE_LEVEL, level))

    @property
    def weakest_level(self) -> int:
        """The level while the processes get enough: idle only if they can leave that again."""
        return IDLE_LEVEL if self.can_raise else max(START_PRIORITY, self.strongest_level)

    @property
    def window_s(self) -> float:
        """The seconds of the periods that count: about WINDOW_S, or fewer at the beginning."""
        return sum(period.seconds for period in self._window)

    @property
    def rate(self) -> float:
        """The part of a core that the processes got in the periods that count, of which there is at least one."""
        return sum(period.computed_s for period in self._window) / self.window_s

    @property
    def is_starved(self) -> bool:
        """Whether the processes got less than their share over a whole window."""
        return self.window_s >= WINDOW_S - PERIOD_S and self.rate < TOLERANCE * self.share


class CpuShare:
    """Keeps the promised share of a core for this process and its descendants, while ``run`` runs.

    ``share``: the part of a core, above 0, that all of them get together.
    """

    def __init__(self, share: float) -> None:
        self._keeper = ShareKeeper(share)
        self._waited_s: dict[int, float] = {}
        self._is_permitted = True
        #: why the promise is not kept; empty: it is
        self.trouble = ""

    async def run(self) -> None:
        """Observe the processes every PERIOD_S and adjust their level, until cancelled."""
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
        """Return why the promise is not kept, as a message for the user; empty if it is kept."""
        if not self._keeper.is_starved:
            return ""
        share, rate = 100 * self._keeper.share, 100 * self._keeper.rate
        cause = "other processes need all cores"
        if not self._is_permitted:
            cause += ", and the kernel does not let it raise its priority (RLIMIT_NICE)"
        return f"it got {rate:.1f} % of a core in the last minute, {share:g} % are promised: {cause}"


@dataclass(frozen=True, slots=True)
class CpuUse:
    """What this process and its descendants used, as ``_observe`` found it.

    Attributes:
        computed_s: seconds of processor time since the start of each process, of all together.
        waited_s: seconds since the last observation for which a thread waited for a core: the longest of all threads.
        own_waited_s: the same of the observing thread.
        is_runnable: another thread than the observing one computes, or waits for a core now.

    """

    computed_s: float
    waited_s: float
    own_waited_s: float
    is_runnable: bool


def _observe(waited_s: dict[int, float]) -> CpuUse:
    """Return what this process and its descendants used.

    ``waited_s``: the seconds that each thread has waited for a core so far, by its id; it is brought up to date.
    """
    computed_s, is_runnable = 0.0, False
    own, before = threading.get_native_id(), dict(waited_s)
    waited_s.clear()
    for pid in _tree(os.getpid()):
        if fields := stat_fields(pid):
            computed_s += sum(map(int, fields[11:15])) / TICKS  # utime, stime, and those of its reaped children
        for thread in _threads(pid):
            with contextlib.suppress(OSError):
                waited_s[thread] = int(Path(f"/proc/{thread}/schedstat").read_text().split()[1]) / 1e9
            is_runnable |= thread != own and stat_fields(thread)[:1] == ["R"]
    more_s = {thread: total_s - before.get(thread, 0.0) for thread, total_s in waited_s.items()}
    return CpuUse(computed_s, max(more_s.values(), default=0.0), more_s.get(own, 0.0), is_runnable)


def _set_level(pid: int, level: int) -> None:
    """Set the level of the threads of a process. The process that calls is never idle: it serves the others.

    Raises PermissionError if this process may not raise the priority.
    """
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
    """Yield the ids of a process and of its descendants."""
    pids = [pid]
    while pids:
        yield (parent := pids.pop())
        for thread in _threads(parent):
            with contextlib.suppress(OSError):
                pids += map(int, Path(f"/proc/{parent}/task/{thread}/children").read_text().split())


def _threads(pid: int) -> list[int]:
    """Return the ids of the threads of a process; none if it has ended."""
    try:
        return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
