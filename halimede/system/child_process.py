"""Child processes: their start, their end without a thread or with their parent, and the logs that they append to."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
#: bytes of a log that is rotated
MAX_LOG = 10 * 1024 * 1024
#: bytes of a log's end
TAIL = 4096

_libc = ctypes.CDLL(None)


def spawn(command: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a child that ends with this process, by SIGTERM. Its output is appended to ``log``. Raises OSError.

    It leads a session of its own: a terminal's Ctrl-C is its parent's to act on.
    """
    parent = os.getpid()

    def after_fork() -> None:
        if not end_with_parent(parent, signal.SIGTERM):
            os._exit(1)

    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            start_new_session=True,
            preexec_fn=after_fork,  # noqa: PLW1509 - two system calls, both safe after a fork
        )


def end_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> bool:
    """Have this process signalled when its parent ends; return whether the parent is still there."""
    _libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    return os.getppid() == parent


async def exited(process: subprocess.Popen[bytes]) -> int:
    """Wait for a child's end, reap it, and return its exit code (negative: the signal). Bound to no event loop."""
    await wait_exit(process.pid)
    return process.wait()


async def wait_exit(pid: int) -> None:
    """Wait for a process's end, and do not reap it."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return  # reaped already
    await wait_pidfd(pidfd)


async def wait_pidfd(pidfd: int) -> None:
    """Wait for the end of a pidfd's process; close the pidfd in any case."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(pidfd, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def stat_fields(pid: int) -> list[str]:
    """Return the fields of ``/proc/<pid>/stat`` from the state on; none without such a process.

    The command's name before them may hold spaces and parentheses.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def rotate(log: Path) -> None:
    """Copy a log to ``<name>.1`` and empty it in place: its writers have it open, and append to whatever is there.

    The few lines that are written between copying and truncating are lost. Where there is no room for the copy, the
    log is what takes it: it is emptied all the same. Raises OSError.
    """
    try:
        shutil.copyfile(log, rotated(log))
    finally:
        os.truncate(log, 0)


def rotated(log: Path) -> Path:
    """Return where the earlier part of a log is."""
    return log.with_name(f"{log.name}.1")


def tail(log: Path) -> str:
    """Return the end of a log; nothing where it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            return file.read(TAIL).decode(errors="replace")
    except OSError:
        return ""
