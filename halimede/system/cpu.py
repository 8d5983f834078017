"""How many cores this process may use: what the scheduler lets it have, and what its control group pays for."""

from __future__ import annotations

import math
import os
from pathlib import Path

#: of version 2, then of version 1: quota and period in microseconds
LIMIT = Path("/sys/fs/cgroup/cpu.max")
QUOTA, PERIOD = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def cores() -> int:
    """Return how many calls that compute are worth making at a time: at least 1."""
    return allowed(len(os.sched_getaffinity(0)), _text(LIMIT) or f"{_text(QUOTA)} {_text(PERIOD)}")


def allowed(scheduled: int, limit: str) -> int:
    """Return the fewer of ``scheduled`` cores and those of a limit, ``<quota> <period>``; what is no limit is none."""
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
