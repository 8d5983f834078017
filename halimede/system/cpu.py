"""The number of cores that this process may use, by the scheduler and by the quota of its control group."""

from __future__ import annotations

import math
import os
from pathlib import Path

#: quota and period in microseconds: of cgroup version 2, then of version 1
LIMIT = Path("/sys/fs/cgroup/cpu.max")
QUOTA, PERIOD = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def cores() -> int:
    """Return how many computing calls may usefully run at a time: at least 1."""
    return allowed(len(os.sched_getaffinity(0)), _text(LIMIT) or f"{_text(QUOTA)} {_text(PERIOD)}")


def allowed(scheduled: int, limit: str) -> int:
    """Return the lower of ``scheduled`` cores and a limit ``<quota> <period>``; other text means no limit."""
    quota, _, period = limit.strip().partition(" ")
    try:
        share = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return max(1, scheduled)
    return max(1, min(scheduled, math.ceil(share))) if share > 0 else max(1, scheduled)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
