"""The processes of ``halimede up``: its children, which it restarts (``Child``), and the workers of its LCs.

A child ends with its parent, even if the parent is killed. The terminal's Ctrl-C does not reach it: the parent decides
the order of stops.

Workers outlive their LC, and the next LC of the node adopts them. The system's process is a subreaper: an orphan (a
process whose parent has ended) of its children becomes its own child, not init's. So a dead worker never stays a
zombie that its LC takes for alive, and no process is left when the system stops.

Workers of an earlier system that was killed are no descendants of this one. They are found by a variable that LCs put
into their environment. Those of a node without an LC are strays, and are ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from halimede import programs
from halimede.errors import HalimedeError
from halimede.system.backoff import Backoff
from halimede.system.child_process import reap, spawn, stat_fields, tail

#: seconds: the pause before the first restart, the longest one, and the run time after which pauses begin anew
FIRST_PAUSE, LONGEST_PAUSE, GOOD_RUN = 0.2, 10.0, 10.0
#: last lines of a child's log that are shown if it does not start
LINES = 3
#: exit code of a service if its user must change something
USER_ERROR = 2
#: option of the system call ``prctl``
PR_SET_CHILD_SUBREAPER = 36
#: seconds between two looks at processes that are being ended
POLL_S = 0.05
#: variable in a worker's environment: its node's folder, a space, and a record by which an LC finds it
RECORD_VARIABLE = "HALIMEDE_PROCESS"
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def usable(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a HalimedeError that names the file (else ``path``) and says what to do."""
    try:
        yield
    except OSError as error:
        raise HalimedeError(
            f"{error.filename or path} cannot be used ({error.strerror}): "
            "move it, free some space, or choose another folder with HALIMEDE_HOME or --home"
        ) from error


@dataclass(frozen=True, slots=True)
class Exit:
    """The unexpected end of a child, or its failed start. ``str`` gives the text for the user.

    Attributes:
        name: of the child.
        code: exit code; negative: the signal that ended it; 0 after a failed start.
        pause: seconds until the restart.
        reason: why the process could not be started; empty: it was started and has ended.

    """

    name: str
    code: int
    pause: float
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"{self.name} could not be started ({self.reason}); retrying in {self.pause:g} s"
        how = f"exit code {self.code}" if self.code >= 0 else f"signal {signal.Signals(-self.code).name}"
        return f"{self.name} ended ({how}); restarting it in {self.pause:g} s"


class Child:
    """Keeps a command running with growing pauses: ``run`` starts it again and again, until ``stop``.

    ``command``: program and arguments. Its output is appended to ``log``. ``died`` is called at each unexpected end.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, died: Callable[[Child, Exit], None]) -> None:
        self.name = name
        self.log = log
        #: number of unexpected ends
        self.restarts = 0
        self._command = command
        self._died = died
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The process id; None while no process runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def run(self) -> None:
        """Start the command, and restart it, until ``stop``. Raises HalimedeError if the log cannot be made."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        with usable(self.log):
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.touch()
        while not self._stopping.is_set():
            started = loop.time()
            code, reason = 0, ""
            try:
                self._process = spawn(self._command, self.log, programs.child_variables())
                code = await reap(self._process)
            except (OSError, subprocess.SubprocessError) as error:  # no process or no file to be had: for now
                reason = str(error)
            if self._stopping.is_set():
                return
            if loop.time() - started > GOOD_RUN:
                backoff.reset()
            self.restarts += 1
            pause = backoff.fail()
            self._died(self, Exit(self.name, code, pause, reason))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()

    async def stop(self, deadline_s: float, hurry: asyncio.Event) -> None:
        """End the process and wait for its end: SIGTERM, then SIGKILL after ``deadline_s`` or once ``hurry`` is set."""
        self._stopping.set()
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        end, hurry_set = asyncio.ensure_future(reap(process)), asyncio.ensure_future(hurry.wait())
        await asyncio.wait([end, hurry_set], timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        if not end.done():
            process.kill()
        await end
        hurry_set.cancel()

    def log_tail(self) -> str:
        """Return the last three lines of the log, which contain the error; empty for an empty log."""
        return "\n".join(tail(self.log).strip().splitlines()[-LINES:])


def become_subreaper() -> None:
    """Make this process the parent of its descendants' orphans from now on. Raises OSError."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def children() -> set[int]:
    """Return the pids of this process's children, including those that have ended and are not reaped."""
    me = os.getpid()
    return {int(folder.name) for folder in Path("/proc").glob("[0-9]*") if _parent(int(folder.name)) == me}


def reap_orphans(own: Collection[int | None]) -> None:
    """Reap the children that have ended, except those with a pid in ``own``, for which other code waits."""
    for pid in children() - set(own):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


async def end_orphans(own: Callable[[], Collection[int | None]], deadline_s: float, hurry: asyncio.Event) -> int:
    """End all children except those that ``own`` returns, and what their end makes children of this process.

    They get SIGTERM, and SIGKILL after ``deadline_s`` or once ``hurry`` is set. Waits for all; returns their number.
    """

    def orphans() -> set[int]:
        reap_orphans(own())
        return children() - set(own())

    return await _end(orphans, os.kill, deadline_s, hurry)


async def end_strays(home: Path, nodes: Collection[str], deadline_s: float, hurry: asyncio.Event) -> int:
    """End the stray workers of this home, except those of ``nodes``: with the signals and waits of ``end_orphans``.

    Return their number.
    """
    return await _end(partial(strays, home, nodes), partial(_signal, home), deadline_s, hurry)


async def _end(
    find: Callable[[], set[int]], send: Callable[[int, signal.Signals], None], deadline_s: float, hurry: asyncio.Event
) -> int:
    """Signal processes by ``send`` until ``find`` returns none; return the number of signalled ones."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + deadline_s
    signalled: set[int] = set()
    while pids := find():
        late = loop.time() >= give_up or hurry.is_set()
        for pid in pids if late else pids - signalled:
            with contextlib.suppress(ProcessLookupError):
                send(pid, signal.SIGKILL if late else signal.SIGTERM)
        signalled |= pids
        await asyncio.sleep(POLL_S)
    return len(signalled)


def strays(home: Path, excluded: Collection[str]) -> set[int]:
    """Return the pids of the workers below ``home`` whose node has no running LC and is not in ``excluded``."""
    nodes: dict[str, set[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        node = _node(int(folder.name), home)
        if node is not None and node not in excluded:
            nodes.setdefault(node, set()).add(int(folder.name))
    return {pid for node, pids in nodes.items() if not _has_lc(home, node) for pid in pids}


def _node(pid: int, home: Path) -> str | None:
    """Return the name of the node whose worker a process is; None: it is no worker below ``home``."""
    prefix = f"{RECORD_VARIABLE}={home / 'nodes'}/".encode()
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    record = next((variable for variable in variables if variable.startswith(prefix)), None)
    return record[len(prefix) :].split(b" ")[0].decode(errors="replace") if record else None


def _has_lc(home: Path, node: str) -> bool:
    """Whether an LC runs for a node: it holds the lock on ``lc.lock``. A user may have started it."""
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


def _signal(home: Path, pid: int, number: signal.Signals) -> None:
    """Send a signal to a worker of this home; nothing if another process has its pid now."""
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            if _node(pid, home) is not None:  # read after the pidfd is open: the pid cannot be reused now
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def _parent(pid: int) -> int | None:
    """Return the pid of a process's parent; None: there is no such process."""
    fields = stat_fields(pid)
    return int(fields[1]) if fields else None
