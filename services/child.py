"""One child process that shall always run: started again with back-off when it dies, stopped when it is told to.

It ends with its parent, even when that is killed, and it does not hear the terminal's Ctrl-C: the parent decides who
stops when.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from halimede.system.backoff import Backoff
from services.runfile import usable

PR_SET_PDEATHSIG = 1
#: seconds: the pause before the first restart, the longest one, and how long a run counts as a good one
FIRST_PAUSE, LONGEST_PAUSE, GOOD_RUN = 0.2, 10.0, 10.0
#: a log that is longer is rotated; one earlier part is kept
MAX_LOG = 10 * 1024 * 1024
#: what a service exits with when its user has to change something
USER_ERROR = 2

_libc = ctypes.CDLL(None)
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Exit:
    """A child died though nobody stopped it; it is started again after ``pause`` seconds."""

    name: str
    code: int
    pause: float

    def __str__(self) -> str:
        how = f"exit code {self.code}" if self.code >= 0 else f"signal {signal.Signals(-self.code).name}"
        return f"{self.name} ended ({how}); starting it again in {self.pause:g} s"


class Child:
    """``python -m <module> <arguments>``, kept running by ``run`` until ``stop``; its output goes to ``log``."""

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], log: Path, died: Callable[[Child, Exit], None]
    ) -> None:
        self.name = name
        self.log = log
        self.restarts = 0
        self._command = [sys.executable, "-m", module, *arguments]
        self._died = died
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The process id, None while it does not run."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def run(self) -> None:
        """Keep it running until ``stop``."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while not self._stopping.is_set():
            started = loop.time()
            with usable(self.log):
                self._process = self._spawn()
            code = await _exited(self._process)
            if self._stopping.is_set():
                return
            if loop.time() - started > GOOD_RUN:
                backoff.reset()
            self.restarts += 1
            pause = backoff.fail()
            self._died(self, Exit(self.name, code, pause))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()

    async def stop(self, deadline_s: float, hurry: asyncio.Event) -> None:
        """End it: SIGTERM, then SIGKILL after ``deadline_s`` or as soon as ``hurry`` is set."""
        self._stopping.set()
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        gone, hurried = asyncio.ensure_future(_exited(process)), asyncio.ensure_future(hurry.wait())
        await asyncio.wait([gone, hurried], timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        if not gone.done():
            process.kill()
        await gone
        hurried.cancel()

    def last_words(self, lines: int = 3) -> str:
        """Return the end of its log: why it does not run."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
                return "\n".join(file.read().decode(errors="replace").strip().splitlines()[-lines:])
        except OSError:
            return ""

    def _spawn(self) -> subprocess.Popen[bytes]:
        # the services are no part of the wheel: they are found beside this file
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
                preexec_fn=_end_with(os.getpid()),  # noqa: PLW1509 - two system calls, both safe after a fork
            )


def rotate(log: Path) -> None:
    """Put a long log aside while it is written: its writers hold it open, and append to whatever is there.

    The few lines that are written between copying and truncating are lost. When there is no room for the copy, the
    log is what takes it: then it is truncated all the same.
    """
    with contextlib.suppress(OSError):
        if log.stat().st_size <= MAX_LOG:
            return
        with contextlib.suppress(OSError):
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        os.truncate(log, 0)


def _end_with(parent: int) -> Callable[[], None]:
    def after_fork() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return after_fork


async def _exited(process: subprocess.Popen[bytes]) -> int:
    """Wait for a child without a thread; ``Popen`` starts it without a pause in which somebody else could reap it."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return process.wait()  # reaped already
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    try:
        loop.add_reader(pidfd, gone.set)
        await gone.wait()
        return process.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
