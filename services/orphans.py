"""Workers outlive their LC (a restarted one adopts them). Here they get a parent meanwhile, and an end at the end.

This process is made a subreaper: whatever its children leave behind becomes its child, not init's. So a dead worker
never stays a zombie that looks alive to its LC, and nothing is left running when the system stops.

Workers of an earlier system that was killed are no descendants of ours. They are found by the mark that LCs put into
their environment: those of a node that is run again are its LC's to adopt, the others nobody's.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import signal
from collections.abc import Callable, Collection
from pathlib import Path

from halimede.system.child_process import stat_fields

PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.05
#: in a worker's environment: the folder of its node, a space, and what only LCs read
MARK = "HALIMEDE_PROCESS"

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Take in the orphans of all descendants from now on."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def children() -> set[int]:
    """Return the pids of this process's children, zombies included."""
    me = os.getpid()
    return {int(folder.name) for folder in Path("/proc").glob("[0-9]*") if _parent(int(folder.name)) == me}


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


async def end_strays(home: Path, kept: Collection[str], deadline_s: float, hurry: asyncio.Event) -> int:
    """End the workers of this home's nodes other than ``kept``: SIGTERM, then SIGKILL. Return how many there were."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + deadline_s
    asked: set[int] = set()
    while left := strays(home, kept):
        late = loop.time() >= give_up or hurry.is_set()
        for pid in left if late else left - asked:
            _signal(pid, home, signal.SIGKILL if late else signal.SIGTERM)
        asked |= left
        await asyncio.sleep(POLL_S)
    return len(asked)


def strays(home: Path, kept: Collection[str]) -> set[int]:
    """Return the processes of this home's nodes other than ``kept`` and those that have an LC of their own."""
    nodes: dict[str, set[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        node = _node(int(folder.name), home)
        if node is not None and node not in kept:
            nodes.setdefault(node, set()).add(int(folder.name))
    return {pid for node, pids in nodes.items() if not _has_lc(home, node) for pid in pids}


def _node(pid: int, home: Path) -> str | None:
    """Return the node of this home that a process works for; None: it is none of its workers."""
    prefix = f"{MARK}={home / 'nodes'}/".encode()
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    mark = next((variable for variable in variables if variable.startswith(prefix)), None)
    return mark[len(prefix) :].split(b" ")[0].decode(errors="replace") if mark else None


def _has_lc(home: Path, node: str) -> bool:
    """Whether somebody runs an LC there by hand: it holds its lock."""
    try:
        handle = os.open(home / "nodes" / node / "lc.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _signal(pid: int, home: Path, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            if _node(pid, home) is not None:  # read after the pidfd is open: it cannot become another process now
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def _parent(pid: int) -> int | None:
    fields = stat_fields(pid)
    return int(fields[1]) if fields else None
