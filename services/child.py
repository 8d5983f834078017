"""One supervised child process: restarted with back-off when it dies, and stopped on request.

It ends with its parent, even when that is killed, and it does not hear the terminal's Ctrl-C: the parent decides who
stops when.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from halimede.system.backoff import Backoff
from halimede.system.child_process import exited, spawn, tail
from services.runfile import usable

#: seconds: the pause before the first restart, the longest one, and how long a run counts as a good one
FIRST_PAUSE, LONGEST_PAUSE, GOOD_RUN = 0.2, 10.0, 10.0
#: lines of its log that tell why it does not run
LINES = 3
#: what a service exits with when its user has to change something
USER_ERROR = 2

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Exit:
    """A child died unexpectedly; it is restarted after ``pause`` seconds."""

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
            code = await exited(self._process)
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
        gone, hurried = asyncio.ensure_future(exited(process)), asyncio.ensure_future(hurry.wait())
        await asyncio.wait([gone, hurried], timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        if not gone.done():
            process.kill()
        await gone
        hurried.cancel()

    def log_tail(self) -> str:
        """Return the last lines of its log: why it does not run."""
        return "\n".join(tail(self.log).strip().splitlines()[-LINES:])

    def _spawn(self) -> subprocess.Popen[bytes]:
        # the services are no part of the wheel: they are found beside this file
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        return spawn(self._command, self.log, {**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
