"""What a process sets for itself by ``prctl(2)``: its end with its parent, and the adoption of orphans.

Short-lived child processes import this module, so it imports little: no asyncio.
"""

from __future__ import annotations

import ctypes
import os
import signal

#: options of prctl(2)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

_libc = ctypes.CDLL(None)


def end_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> bool:
    """Let the kernel send this process the signal ``number`` when its parent, of id ``parent``, ends.

    Returns whether the parent is still alive: if not, no signal will come.
    """
    _libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    return os.getppid() == parent


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends: ``child_process.end_children`` ends them."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
