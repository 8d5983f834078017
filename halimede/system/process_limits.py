"""Limits of a process that runs untrusted code: memory, time, size and number of files, priority.

A child process sets its limits before it runs a user's code or reads a user's file. It cannot raise them again.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: open files of a process with limited memory
MAX_OPEN_FILES = 256
#: seconds of the clock that callers allow for a second of processor time: other processes go first
CLOCK_FACTOR = 4
#: niceness of the processes of a training, so that no frame waits for them
LEAST_PRIORITY = 19
#: niceness of processes with a promised share of a core while they start: later they adjust it themselves
START_PRIORITY = 10
#: ``RLIMIT_NICE`` permits a niceness down to this number minus the limit
NICENESS_RANGE = 20


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What a process may use from now on, beyond its present use.

    Attributes:
        memory_bytes: address space.
        seconds: processor time of all its threads together.
        clock_s: seconds of the clock, above 0.
        written_bytes: bytes of each file that it writes.

    """

    memory_bytes: int
    seconds: float
    clock_s: float
    written_bytes: int


def limit_process(limits: ProcessLimits) -> None:
    """Set the limits of this process. SIGALRM ends it after ``clock_s``, SIGXCPU one to two seconds after ``seconds``.

    Beyond ``memory_bytes`` allocations fail; beyond ``written_bytes`` writes fail (OSError), or SIGXFSZ ends it. Open
    files and core dumps are limited as by ``limit_memory``.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime + limits.seconds) + 1
    limit_memory(limits.memory_bytes)
    _lower_limit(resource.RLIMIT_CPU, seconds, seconds + 1)  # SIGXCPU first: a lack of memory has another signal
    limit_file_size(limits.written_bytes)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a Python handler would only run after a library's call
    signal.setitimer(signal.ITIMER_REAL, limits.clock_s)


def limit_memory(more_bytes: int) -> None:
    """Let this process use at most ``more_bytes`` beyond its present address space.

    It also lets the process open at most ``MAX_OPEN_FILES`` files, and write no core dump.
    """
    _lower_limit(resource.RLIMIT_AS, memory_statistic("VmSize") + more_bytes)
    _lower_limit(resource.RLIMIT_CORE, 0)
    _lower_limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)


def limit_file_size(written_bytes: int) -> None:
    """Let this process write at most ``written_bytes`` to each file."""
    _lower_limit(resource.RLIMIT_FSIZE, written_bytes)


@contextlib.contextmanager
def limited_time(seconds: float, clock_s: float) -> Iterator[None]:
    """End the process if the block takes more than ``seconds`` of processor time (SIGPROF) or ``clock_s`` (SIGALRM).

    Both signals have their default action afterwards as well. Without nesting: a process has one timer of each kind.
    """
    timers = {signal.ITIMER_PROF: (signal.SIGPROF, seconds), signal.ITIMER_REAL: (signal.SIGALRM, clock_s)}
    for timer, (number, limit) in timers.items():
        signal.signal(number, signal.SIG_DFL)
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)


def run_in_background(cores: int, *, has_share: bool) -> None:
    """Run this process only while no other one needs the processor, on at most ``cores`` cores.

    ``has_share``: the process is promised a share of a core. So it becomes idle only if its priority can be raised
    again; else it only preempts no other process (``SCHED_BATCH``). Where the kernel schedules sessions
    (``sched_autogroup``), only processes of the same session count: so a process of a training stays in the session of
    its parent.
    """
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[-max(1, cores) :])
    is_idle = not has_share or can_raise_priority()
    os.sched_setscheduler(0, os.SCHED_IDLE if is_idle else os.SCHED_BATCH, os.sched_param(0))


def give_low_priority(pid: int, *, has_share: bool, keeps_share: bool) -> None:
    """Lower the priority of a new process of a training, and of all that it starts; nothing if it has ended already.

    ``has_share``: the process is promised a share of a core; ``keeps_share``: it adjusts its own priority to get the
    share, as soon as it has started.
    """
    with contextlib.suppress(ProcessLookupError):
        needs_start_priority = has_share and (keeps_share or not can_raise_priority())
        niceness = START_PRIORITY if needs_start_priority else LEAST_PRIORITY
        os.setpriority(os.PRIO_PROCESS, pid, max(niceness, os.getpriority(os.PRIO_PROCESS, pid)))


def can_raise_priority() -> bool:
    """Whether this process, and those that it starts, may raise a lower priority back to ``START_PRIORITY``.

    The limit of niceness permits it, or a capability. A process in a user namespace may have the capability but may not
    use it, so the calling thread tries.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NICE)
    if limit == resource.RLIM_INFINITY or limit >= NICENESS_RANGE - START_PRIORITY:
        return True
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, min(START_PRIORITY, niceness - 1))
    except PermissionError:
        return False
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    return True


def memory_statistic(name: str) -> int:
    """Return a value of this process's memory statistics in bytes: ``VmSize``, ``VmRSS``, ... of ``/proc``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _lower_limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Set a limit of ``resource`` (RLIMIT_...), never above its hard limit.

    ``soft``, ``hard``: the new soft and hard limit; ``hard`` None: that of ``soft``.
    """
    _, allowed = resource.getrlimit(kind)
    requested = soft if hard is None else hard
    hard = requested if allowed == resource.RLIM_INFINITY else min(requested, allowed)
    resource.setrlimit(kind, (min(soft, hard), hard))
