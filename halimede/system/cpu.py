"""The number of cores that this process may use, by the scheduler and by the quota of its control group."""

from __future__ import annotations

import math
import os
from pathlib import Path

#: quota and period in microseconds, as ``<quota> <period>``: in cgroups of version 2
LIMIT = Path("/sys/fs/cgroup/cpu.max")
#: the same in cgroups of version 1
QUOTA, PERIOD = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def cores() -> int:
    """Return the number of cores that this process may use: at least 1; a part of a core counts as one."""
    return limited_cores(len(os.sched_getaffinity(0)), _text(LIMIT) or f"{_text(QUOTA)} {_text(PERIOD)}")


def limited_cores(scheduled: int, limit: str) -> int:
    """Return the lower of ``scheduled`` cores and a limit ``<quota> <period>``, at least 1.

    Other text (``max``) and a quota that is not above 0 mean no limit.
    """
    quota, _, period = limit.strip().partition(" ")
    try:
        share = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        share = 0
    return max(1, min(scheduled, math.ceil(share)) if share > 0 else scheduled)


def _text(path: Path) -> str:
    """Return the content of a file; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
