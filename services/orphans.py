"""Workers outlive their LC (a restarted one adopts them). Here they get a parent meanwhile, and an end at the end.

This process is made a subreaper: whatever its children leave behind becomes its child, not init's. So a dead worker
never stays a zombie that looks alive to its LC, and nothing is left running when the system stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Collection
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.05

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Take in the orphans of all descendants from now on."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def children() -> set[int]:
    """Return the pids of this process's children, zombies included."""
    me = os.getpid()
    return {int(folder.name) for folder in Path("/proc").glob("[0-9]*") if _parent(folder) == me}


def reap(own: Collection[int | None]) -> None:
    """Take note of the end of children that nobody waits for; ``own`` are those that somebody does."""
    for pid in children() - set(own):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


async def end(own: Callable[[], Collection[int | None]], deadline_s: float, hurry: asyncio.Event) -> int:
    """End all orphans and what they leave behind: SIGTERM, then SIGKILL. Return how many there were."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + deadline_s
    asked: set[int] = set()
    while True:
        reap(own())
        left = children() - set(own())
        if not left:
            return len(asked)
        late = loop.time() >= give_up or hurry.is_set()
        for pid in left if late else left - asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        asked |= left
        await asyncio.sleep(POLL_S)


def _parent(folder: Path) -> int | None:
    """Return the parent's pid of a process; the command's name in between may hold spaces and parentheses."""
    try:
        return int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None
