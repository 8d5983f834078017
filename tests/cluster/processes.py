"""Child processes with a log each. They end with this process, and are ended by their ids."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PDEATHSIG = 1
#: seconds for a process to end after SIGTERM
GRACE_S = 10.0
#: bytes of a log that are shown when its process ended too early
TAIL = 4_000


class ClusterError(Exception):
    """The cluster cannot be started; the message says why."""


def run(*command: str | Path, timeout: float = 60.0, stdin: str | None = None) -> str:
    """Run a command to its end and return its output. Raises ClusterError with what it printed."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    except FileNotFoundError:
        raise ClusterError(f"{words[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{' '.join(words)}: no end within {timeout:.0f} s") from None
    if done.returncode:
        raise ClusterError(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()[-TAIL:]}")
    return done.stdout


def in_namespace(namespace: str, *command: str | Path) -> list[str]:
    """Return a command line that runs in a network namespace. Mounts stay those of the caller."""
    return ["nsenter", f"--net=/run/netns/{namespace}", *(str(word) for word in command)]


class Processes:
    """The processes of a cluster, by name."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self, name: str, command: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process; its output goes to ``<name>.log``."""
        self._logs.mkdir(parents=True, exist_ok=True)
        with (self._logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 (the caller has no threads)
            )
        self._running[name] = process
        return process

    def wait(self, what: str, done: Callable[[], bool], seconds: float) -> None:
        """Wait for a fact. Raises ClusterError when a process ends before, or when the time is over."""
        end = time.monotonic() + seconds
        while not done():
            ended = [name for name, process in self._running.items() if process.poll() is not None]
            if ended:
                raise ClusterError(f"{ended[0]} has ended:\n{self.tail(ended[0])}")
            if time.monotonic() > end:
                raise ClusterError(f"{what}: not within {seconds:.0f} s; the logs are in {self._logs}")
            time.sleep(0.2)

    def tail(self, name: str) -> str:
        """Return the end of a process's log."""
        return (self._logs / f"{name}.log").read_bytes()[-TAIL:].decode(errors="replace")

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End one process, by SIGKILL when it does not end in time."""
        process = self._running.pop(name, None)
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop_all(self) -> None:
        """End all, the newest first."""
        for name in reversed(list(self._running)):
            self.stop(name)


def end_with_parent() -> None:
    """Have the kernel end this process when its parent ends (``preexec_fn``)."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
