"""The embedded broker: Mosquitto as a child process, for the system on one machine and for tests.

It ends with its parent, even if that is killed. It is not bound to an event loop, so that any loop may call it.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from halimede.access.mosquitto import ENVIRONMENT, LIMITS
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.system.child_process import exited, spawn
from services.processes import usable

DEFAULT_PORT = 1883
#: how many ports from there are tried if none is given
PORTS = 200
HOST = "127.0.0.1"
#: seconds
START_TIMEOUT, STOP_TIMEOUT = 10.0, 5.0
ANONYMOUS = ("allow_anonymous true",)
IN_USE = "Address already in use"
#: before each entry of its log
TIME = re.compile(r"^\d+: ")


class MosquittoProcess:
    """A Mosquitto on loopback, from ``async with`` or between ``start`` and ``stop``.

    Attributes:
        port: its port; known after its start.

    """

    def __init__(
        self, folder: Path, *, port: int | None = None, access: Sequence[str] = ANONYMOUS, secure: bool = False
    ) -> None:
        """Prepare a broker that keeps ``mosquitto.conf`` and ``mosquitto.log`` in ``folder``.

        Without ``port`` the first free one from 1883 on is used, and kept for later starts. ``access`` are the
        configuration's lines on access rights; ``secure``: those lines require TLS.
        """
        self.port = port or 0
        #: None: the next start takes the first free one
        self._fixed_port = port
        self._folder = folder
        self._access = access
        self._secure = secure
        self._process: subprocess.Popen[bytes] | None = None
        #: bytes of the log before the last start
        self._log_start = 0

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"{'mqtts' if self._secure else 'mqtt'}://{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id, None if it does not run."""
        return self._process.pid if self._process else None

    @property
    def log(self) -> Path:
        """The file that Mosquitto appends to."""
        return self._folder / "mosquitto.log"

    async def __aenter__(self) -> Self:
        """Start it and wait until it accepts connections."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        await self.stop()

    async def start(self) -> None:
        """Start it and wait until it accepts connections.

        Raises InvalidFieldError if the given port is taken, HalimedeError if Mosquitto is missing or fails.
        """
        if self._process:
            raise RuntimeError("the broker runs already")
        binary = find_mosquitto()
        with usable(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        for port in self._candidates():
            if not self._can_use(port):
                continue
            with usable(self._folder):
                self._spawn(binary, port)
            try:
                trouble = await self._came_up(port)
            except BaseException:
                await self.kill()
                raise
            if not trouble:
                self._fixed_port = self.port = port  # clients of this broker find the next start on the same port
                return
            await self.kill()
            # another process took the port between the check and the start: try the next one
            if IN_USE not in trouble:
                raise HalimedeError(f"mosquitto did not start: {trouble} (see {self.log})")
        if self._fixed_port:
            raise InvalidFieldError("port", self._fixed_port, "it is in use: choose another, or stop the process on it")
        raise HalimedeError(f"no free port from {DEFAULT_PORT} to {DEFAULT_PORT + PORTS - 1} on {HOST}")

    async def stop(self) -> None:
        """End it with SIGTERM, and with SIGKILL if it takes longer than a few seconds."""
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await exited(process)
        except TimeoutError:
            pass  # a stopped or hanging process takes no SIGTERM
        finally:
            process.kill()
            process.wait()
            self._process = None

    async def kill(self) -> None:
        """Kill it like a crash: retained messages, queues and sessions are lost."""
        process, self._process = self._process, None
        if process:
            process.kill()
            process.wait()

    async def restart(self) -> None:
        """Kill it and start it again, empty, on the same port."""
        await self.kill()
        await self.start()

    async def wait(self) -> int:
        """Wait until it exits by itself; return its exit code (negative: the signal). Reap it."""
        if self._process is None:
            raise RuntimeError("the broker does not run")
        code = await exited(self._process)
        self._process = None
        return code

    def _candidates(self) -> Iterable[int]:
        return [self._fixed_port] if self._fixed_port else range(DEFAULT_PORT, DEFAULT_PORT + PORTS)

    def _can_use(self, port: int) -> bool:
        return _is_free(port)

    def _spawn(self, binary: str, port: int) -> None:
        configuration = self._folder / "mosquitto.conf"
        configuration.write_text("\n".join(self._configuration(port)) + "\n")
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._process = spawn([binary, "-c", str(configuration)], self.log, ENVIRONMENT)

    def _configuration(self, port: int) -> list[str]:
        lines = [
            f"listener {port} {HOST}",
            *self._access,
            *LIMITS,
            # a pipe that is not read would block it
            f"log_dest file {self.log}",
            "log_type error",
            "log_type warning",
            "log_type notice",
            "log_type information",
        ]
        if os.geteuid() == 0:
            lines.append("user root")  # otherwise it could not read a folder of root
        return lines

    async def _came_up(self, port: int) -> str:
        """Wait until it has accepted a connection; return the error, empty if none."""
        process = self._process
        assert process is not None, "spawned"  # noqa: S101 - for the type checker
        try:
            async with asyncio.timeout(START_TIMEOUT):
                while process.poll() is None:  # ``stop`` may end it meanwhile
                    if await self._accepts(port, process):
                        return ""
                    await asyncio.sleep(0.01)
        except TimeoutError:
            return f"no answer on port {port} within {START_TIMEOUT:g} s"
        return _failure(self._read_log()) or f"exit code {process.returncode}"

    async def _accepts(self, port: int, process: subprocess.Popen[bytes]) -> bool:
        """Whether this process, and no other one that has taken the port, accepts a connection: its log names it."""
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            return False
        own_port = writer.get_extra_info("sockname")[1]
        try:
            while process.poll() is None:
                if f"New connection from {HOST}:{own_port} " in self._read_log():
                    return True
                await asyncio.sleep(0.01)
        finally:
            writer.close()
        return False

    def _read_log(self) -> str:
        """Return its log since the last start."""
        return self.log.read_bytes()[self._log_start :].decode(errors="replace") if self.log.exists() else ""


def find_mosquitto() -> str:
    """Return the path of the binary; raise HalimedeError with what to install."""
    # Debian installs it outside the PATH of a plain user
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    binary = shutil.which("mosquitto", path=path)
    if binary is None:
        raise HalimedeError(
            "mosquitto is not installed: `apt install mosquitto`, `dnf install mosquitto` or `brew install mosquitto`; "
            "or set HALIMEDE_BROKER to a broker on another machine"
        )
    return binary


def _failure(log: str) -> str:
    """Return the errors in a log of a start that failed, without their times; else its last entry."""
    entries = [TIME.sub("", entry) for entry in log.strip().splitlines()]
    if any(IN_USE in entry for entry in entries):
        return IN_USE
    return " ".join(entry for entry in entries if "Error" in entry) or (entries[-1] if entries else "")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
