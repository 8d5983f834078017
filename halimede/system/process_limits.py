"""Limits of this process for code that is not trusted: memory, processor time, a timer, files.

A child process that runs a user's code, or reads a user's file, sets them before it does so. They cannot be raised
again.
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

MAX_OPEN_FILES = 256
#: seconds of the clock for a second of processor time: other processes go first
CLOCK_FACTOR = 4
#: niceness of the processes of a training: no frame waits for them; and of those with a promised share of a core while
#: they start, until they keep that share themselves
LEAST_PRIORITY, START_PRIORITY = 19, 10
#: ``RLIMIT_NICE`` permits a niceness down to this number minus the limit
NICENESS_RANGE = 20


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What a process may use from now on, beyond its present use.

    ``seconds``: processor time of all its threads together; ``clock_s``: time of the clock; ``written_bytes``: of any
    file.
    """

    memory_bytes: int
    seconds: float
    clock_s: float
    written_bytes: int


def limit_process(limits: ProcessLimits) -> None:
    """Set the limits. After ``clock_s``, SIGALRM ends the process; its parent must not have it ignored."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime + limits.seconds) + 1
    limit_memory(limits.memory_bytes)
    _at_most(resource.RLIMIT_CPU, seconds, seconds + 1)  # SIGXCPU first: it differs from the signal of a lack of memory
    limit_files(limits.written_bytes)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a Python handler would only run after a library's call
    signal.setitimer(signal.ITIMER_REAL, limits.clock_s)


def limit_memory(more_bytes: int) -> None:
    """Limit the memory of this process, beyond its present use, and the number of its open files."""
    _at_most(resource.RLIMIT_AS, memory("VmSize") + more_bytes)
    _at_most(resource.RLIMIT_CORE, 0)
    _at_most(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)


def limit_files(written_bytes: int) -> None:
    """Limit the bytes of each file that this process writes."""
    _at_most(resource.RLIMIT_FSIZE, written_bytes)


@contextlib.contextmanager
def limited_time(seconds: float, clock_s: float) -> Iterator[None]:
    """End this process by SIGPROF or SIGALRM if the block takes more time of the processor, or of the clock."""
    for timer, number, limit in (
        (signal.ITIMER_PROF, signal.SIGPROF, seconds),
        (signal.ITIMER_REAL, signal.SIGALRM, clock_s),
    ):
        signal.signal(number, signal.SIG_DFL)
        signal.setitimer(timer, limit)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)


def run_in_background(cores: int, *, has_share: bool) -> None:
    """Run only while no other process needs the processor, on at most so many cores.

    ``has_share``: it is promised a share of a core. If nobody could raise its priority again, it keeps its niceness.
    Where the kernel schedules sessions (``sched_autogroup``), that holds for processes of this session: so a parent
    starts this process in its own session.
    """
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[-max(1, cores) :])
    idle = not has_share or can_raise_priority()
    os.sched_setscheduler(0, os.SCHED_IDLE if idle else os.SCHED_BATCH, os.sched_param(0))


def give_low_priority(pid: int, *, has_share: bool, keeps_share: bool) -> None:
    """Let a new process of a training, and all that it starts, go after the others of its session.

    ``has_share``: it is promised a share of a core; ``keeps_share``: it keeps the share itself as soon as it has
    started. It may have ended already.
    """
    with contextlib.suppress(ProcessLookupError):
        has_start = has_share and (keeps_share or not can_raise_priority())
        niceness = START_PRIORITY if has_start else LEAST_PRIORITY
        os.setpriority(os.PRIO_PROCESS, pid, max(niceness, os.getpriority(os.PRIO_PROCESS, pid)))


def can_raise_priority() -> bool:
    """Whether this process may bring itself, and those that it starts, back to ``START_PRIORITY`` from a lower one.

    The limit of niceness permits it, or a capability: not each process that has the capability may use it (in a user
    namespace it may not), so the calling thread tries it.
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


def memory(name: str) -> int:
    """Return one value of this process's memory statistics in bytes, such as ``VmSize``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _at_most(what: int, soft: int, hard: int | None = None) -> None:
    _, most = resource.getrlimit(what)
    wanted = soft if hard is None else hard
    hard = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(what, (min(soft, hard), hard))
