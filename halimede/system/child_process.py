"""Child processes: their start, waiting for their end without a thread, ending them, and their logs.

``bare_environment`` is the environment of children with untrusted code.
"""

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
#: bytes that ``tail`` returns, and ``last_line`` keeps, at most
TAIL_BYTES = 4096
#: seconds for which ``end_descendants`` waits
END_S = 2.0
#: state in ``/proc`` of a process that has ended and is not reaped
ZOMBIE = "Z"

#: environment variables that a child with untrusted code inherits: no credentials
INHERITED = frozenset({"LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR", "TZ"})
#: environment variables for few threads: idle ones would use address space, which is limited
THRIFTY = {"MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}


def spawn(command: Sequence[str], log: Path, variables: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a child that gets SIGTERM when this process ends. Its output is appended to ``log``. Raises OSError.

    The child leads its own process group, so that a terminal's Ctrl-C only reaches the parent. It inherits the
    environment, with these ``variables`` added or replaced.
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
    """End all children of this process by SIGKILL, and wait until they have ended.

    After ``adopt_orphans`` their descendants become children of this process, and end as well.
    """
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
    """End all descendants of a child that has called ``adopt_orphans``, by SIGKILL; blocks for up to END_S.

    The child itself is stopped before (SIGSTOP), and stays so: it can start no more processes. The caller ends it.
    Raises ProcessLookupError if the child has ended and is reaped.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + END_S
    while (descendants := _descendants(pid)) and time.monotonic() < deadline:
        for descendant in descendants:
            with contextlib.suppress(ProcessLookupError):
                os.kill(descendant, signal.SIGKILL)
        time.sleep(0.001)


def _descendants(pid: int) -> set[int]:
    """Return the ids of the descendants of a process that have not ended."""
    fields = {int(path.name): stat_fields(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    parents = {child: int(stat[1]) for child, stat in fields.items() if stat}
    tree, generation = {pid}, {pid}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation} - tree
        tree |= generation
    return {child for child in tree - {pid} if fields[child][0] != ZOMBIE}


async def reap(process: subprocess.Popen[bytes]) -> int:
    """Wait for a child's end, without a deadline; reap it, and return its exit code (negative: the signal).

    The child may have been started in another event loop.
    """
    await wait_exit(process.pid)
    return process.wait()


async def ended_within(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Wait for the end of a child that leads its process group; return its exit code (negative: the signal).

    After ``seconds`` the child is killed, and None returned. In any case, also if the caller is cancelled, the child is
    reaped and all other processes of its group are killed.
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
    """Return the environment variables of a child with untrusted code: no credentials, but the path of this package."""
    home = str(Path(__file__).parents[2])
    env = {name: value for name, value in os.environ.items() if name in INHERITED}
    return {**env, **THRIFTY, "PYTHONPATH": os.pathsep.join(filter(None, [home, env.get("PYTHONPATH", "")]))}


def memory_file() -> BinaryIO:
    """Return an anonymous file in memory. Unlike a pipe, it takes a child's output while nobody reads."""
    return os.fdopen(os.memfd_create("halimede"), "w+b")


async def wait_exit(pid: int) -> None:
    """Wait for the end of a process, without a deadline and without reaping it; at once if there is none."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return  # reaped already
    await wait_pidfd(pidfd)


async def wait_pidfd(pidfd: int) -> None:
    """Wait, without a deadline, for the end of the process of ``pidfd`` (``os.pidfd_open``); close it in any case."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(pidfd, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def stat_fields(pid: int) -> list[str]:
    """Return the fields of ``/proc/<pid>/stat`` after the command's name: state, parent, ...; empty without a process.

    ``pid`` may be a thread's id. The command's name may contain spaces and parentheses.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def rotate(log: Path) -> None:
    """Copy a log to ``rotated_path`` and truncate it: its writers have it open, and continue to append to it.

    Lines that are written between copying and truncating are lost. If the copy fails, as on a full disk, the log is
    truncated all the same, because it takes the space; then OSError is raised.
    """
    try:
        shutil.copyfile(log, rotated_path(log))
    finally:
        os.truncate(log, 0)


def rotated_path(log: Path) -> Path:
    """Return the path of the part of a log before its last rotation: ``<name>.1``."""
    return log.with_name(f"{log.name}.1")


def tail(log: Path) -> str:
    """Return the last TAIL_BYTES of a log; empty if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read(TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""


async def last_line(stream: asyncio.StreamReader) -> str:
    """Read a child's output to its end, without a deadline; return its last line, of at most TAIL_BYTES."""
    end = b""
    while data := await stream.read(TAIL_BYTES):
        end = (end + data)[-TAIL_BYTES:]
    return end.decode(errors="replace").strip().rpartition("\n")[2]
