"""The embedded broker: Mosquitto as a child process (``MosquittoProcess``), for ``halimede up`` and for tests.

Mosquitto ends with its parent process, even if the parent is killed. The object is not bound to an event loop: methods
may be called from different loops.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from halimede.access.mosquitto import ENVIRONMENT, LIMITS
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.system.child_process import reap, spawn
from services.processes import usable

#: MQTT's usual port
DEFAULT_PORT = 1883
#: number of ports that are tried if none is given, from DEFAULT_PORT on
PORTS = 200
#: the address on which the broker listens
HOST = "127.0.0.1"
#: seconds until the broker must accept connections after its start, and until it is killed after SIGTERM
START_TIMEOUT, STOP_TIMEOUT = 10.0, 5.0
#: lines of Mosquitto's configuration that give any client all rights
ANONYMOUS = ("allow_anonymous true",)
#: text in Mosquitto's log if another process has the port
IN_USE = "Address already in use"
#: the time before each entry of Mosquitto's log, in seconds since 1970
TIME = re.compile(r"^\d+: ")


class MosquittoProcess:
    """A Mosquitto on loopback. It runs inside ``async with``, or between ``start`` and ``stop``.

    Attributes:
        port: the TCP port; 0 before the first start, if the constructor got none.

    """

    def __init__(
        self, folder: Path, *, port: int | None = None, access: Sequence[str] = ANONYMOUS, secure: bool = False
    ) -> None:
        """Start nothing yet. ``folder`` gets ``mosquitto.conf`` and ``mosquitto.log``.

        Without ``port``, the first start takes the first free port from 1883 on, and later starts take the same one.
        ``access``: the configuration's lines on access rights. ``secure``: whether these lines require TLS.
        """
        self.port = port or 0
        #: the port of each start; None: the next start takes the first free port
        self._fixed_port = port
        self._folder = folder
        self._access = access
        self._secure = secure
        self._process: subprocess.Popen[bytes] | None = None
        #: bytes of the log before the last start
        self._log_start = 0

    @property
    def url(self) -> str:
        """The address for clients, such as ``mqtt://127.0.0.1:1883``; ``mqtts://`` with TLS."""
        return f"{'mqtts' if self._secure else 'mqtt'}://{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id; None: the broker does not run."""
        return self._process.pid if self._process else None

    @property
    def log(self) -> Path:
        """The log file. Mosquitto appends to it at each start."""
        return self._folder / "mosquitto.log"

    async def __aenter__(self) -> Self:
        """Start the broker. Raises as ``start`` does."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the broker."""
        await self.stop()

    async def start(self) -> None:
        """Start Mosquitto, and wait at most 10 s until it accepts connections.

        Raises InvalidFieldError if the given port is taken; HalimedeError if Mosquitto is not installed or does not
        start, if the folder cannot be written, or if no port is free; RuntimeError if the broker runs already.
        """
        if self._process:
            raise RuntimeError("the broker runs already")
        binary = find_mosquitto()
        with usable(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        for port in [self._fixed_port] if self._fixed_port else range(DEFAULT_PORT, DEFAULT_PORT + PORTS):
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
        """End Mosquitto with SIGTERM, and after 5 s with SIGKILL. Does nothing if it does not run."""
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await reap(process)
        except TimeoutError:
            pass  # a stopped or hanging process takes no SIGTERM
        finally:
            process.kill()
            process.wait()
            self._process = None

    async def kill(self) -> None:
        """End Mosquitto with SIGKILL. As after ``stop``, retained messages, queues and sessions are lost."""
        process, self._process = self._process, None
        if process:
            process.kill()
            process.wait()

    async def restart(self) -> None:
        """Kill the broker, and start it again on the same port, without its messages. Raises as ``start`` does."""
        await self.kill()
        await self.start()

    async def wait(self) -> int:
        """Wait until Mosquitto ends by itself, without a deadline; return the exit code (-9: signal 9 ended it).

        Raises RuntimeError if the broker does not run.
        """
        if self._process is None:
            raise RuntimeError("the broker does not run")
        code = await reap(self._process)
        self._process = None
        return code

    def _can_use(self, port: int) -> bool:
        """Whether no process listens on a port of loopback."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                return False
        return True

    def _spawn(self, binary: str, port: int) -> None:
        """Write the configuration, and start Mosquitto with it. Raises OSError."""
        configuration = self._folder / "mosquitto.conf"
        configuration.write_text("\n".join(self._configuration(port)) + "\n")
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._process = spawn([binary, "-c", str(configuration)], self.log, ENVIRONMENT)

    def _configuration(self, port: int) -> list[str]:
        """Return the lines of ``mosquitto.conf``."""
        lines = [
            f"listener {port} {HOST}",
            *self._access,
            *LIMITS,
            # a pipe that is not read would block it
            f"log_dest file {self.log}",
            *(f"log_type {kind}" for kind in ("error", "warning", "notice", "information")),
        ]
        if os.geteuid() == 0:
            lines.append("user root")  # otherwise it could not read a folder of root
        return lines

    async def _came_up(self, port: int) -> str:
        """Wait until Mosquitto accepts a connection; return why it does not within 10 s, empty if it does."""
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
        """Whether ``process`` accepts a connection: its log names the connection. Another process may have the port."""
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
        """Return Mosquitto's log since the last start; empty without a log file."""
        return self.log.read_bytes()[self._log_start :].decode(errors="replace") if self.log.exists() else ""


def find_mosquitto() -> str:
    """Return the path of Mosquitto's binary. Raises HalimedeError, with what to install, if there is none."""
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
    """Return the entries with "Error" in the log of a failed start, without their times; else its last entry.

    If another process has the port, return IN_USE.
    """
    entries = [TIME.sub("", entry) for entry in log.strip().splitlines()]
    if any(IN_USE in entry for entry in entries):
        return IN_USE
    return " ".join(entry for entry in entries if "Error" in entry) or (entries[-1] if entries else "")
