"""Child processes: start, wait for the end without a thread, and logs that they append to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from halimede.system.prctl import end_with_parent

#: bytes of a log at which it is rotated
MAX_LOG = 10 * 1024 * 1024
#: bytes that ``tail`` returns
TAIL = 4096
#: seconds until all descendants of a child have ended; state of one that has, in ``/proc``
END_S, ZOMBIE = 2.0, "Z"

#: environment variables that a child with untrusted code inherits: no credentials
INHERITED = frozenset({"LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR", "TZ"})
#: idle threads would use address space, which is limited
ALONE = {"MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}


def spawn(command: Sequence[str], log: Path, variables: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a child that ends with this process, by SIGTERM. Its output is appended to ``log``. Raises OSError.

    It leads its own process group, so that a terminal's Ctrl-C only reaches the parent. It inherits the environment,
    with these ``variables`` added or replaced.
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
            env={**os.environ, **(variables or {})},
            process_group=0,
            preexec_fn=after_fork,  # noqa: PLW1509 - two system calls, both safe after a fork
        )


def end_children() -> None:
    """End all children of this process by SIGKILL, and their descendants after ``adopt_orphans``."""
    own = str(os.getpid())
    with contextlib.suppress(ChildProcessError):  # there is none any more
        while True:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
            for path in Path("/proc").glob("[0-9]*"):
                if stat_fields(int(path.name))[1:2] == [own]:
                    os.kill(int(path.name), signal.SIGKILL)
            os.waitpid(-1, 0)


def end_descendants(pid: int) -> None:
    """End all descendants of a child that has called ``adopt_orphans``, by SIGKILL, and stop the child itself.

    The child does not run meanwhile: so it starts no others, and none is left to the parent of this process.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + END_S
    while (found := _descendants(pid)) and time.monotonic() < deadline:
        for each in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.001)


def _descendants(pid: int) -> set[int]:
    """Return the descendants of a process that run."""
    fields = {int(path.name): stat_fields(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    parents = {each: int(found[1]) for each, found in fields.items() if found}
    tree, more = {pid}, {pid}
    while more:
        more = {each for each, parent in parents.items() if parent in more} - tree
        tree |= more
    return {each for each in tree - {pid} if fields[each][0] != ZOMBIE}


async def exited(process: subprocess.Popen[bytes]) -> int:
    """Wait for a child's end, reap it, and return its exit code (negative: the signal). Bound to no event loop."""
    await wait_exit(process.pid)
    return process.wait()


async def ended_within(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Wait for the end of a child that leads its group, and reap it; None: it was killed at the deadline.

    Its group ends in any case, also if the caller is cancelled.
    """
    try:
        async with asyncio.timeout(seconds):
            await wait_exit(child.pid)
    except TimeoutError:
        return None
    finally:
        # the child was not reaped yet, so no other process can have its group id
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return child.returncode


def bare_environment() -> dict[str, str]:
    """Return the environment of a child with untrusted code: no credentials, and it finds this package."""
    home = str(Path(__file__).parents[2])
    kept = {name: value for name, value in os.environ.items() if name in INHERITED}
    return {**kept, **ALONE, "PYTHONPATH": os.pathsep.join(filter(None, [home, kept.get("PYTHONPATH", "")]))}


def memory_file() -> BinaryIO:
    """Return an anonymous file: unlike a pipe, a child can fill it while nobody reads."""
    return os.fdopen(os.memfd_create("halimede"), "w+b")


async def wait_exit(pid: int) -> None:
    """Wait for the end of a process without reaping it."""
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
    """Return the fields of ``/proc/<pid>/stat`` after the command's name; empty without such a process.

    The name itself may contain spaces and parentheses.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def rotate(log: Path) -> None:
    """Copy a log to ``<name>.1`` and truncate it: its writers have it open, and continue to append to it.

    Lines that are written between copying and truncating are lost. If the disk has no space for the copy, the log is
    truncated all the same, because it takes that space. Raises OSError.
    """
    try:
        shutil.copyfile(log, rotated(log))
    finally:
        os.truncate(log, 0)


def rotated(log: Path) -> Path:
    """Return the path of the earlier part of a log."""
    return log.with_name(f"{log.name}.1")


def tail(log: Path) -> str:
    """Return the end of a log; empty if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            return file.read(TAIL).decode(errors="replace")
    except OSError:
        return ""
