"""The running system of the demo: broker, GM and nodes as a user starts them, cameras, and a node that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from examples.demo_command import output_of
from examples.multi_edge.films import Film
from halimede import home_folder, programs
from halimede.bus.mqtt import MqttSettings
from halimede.errors import HalimedeError

NODES = ("edge0", "edge1", "edge2")
#: seconds: for the system to come up, and for cameras to load their programs before the films begin
START, LEAD = 150.0, 4.0


@dataclass(frozen=True)
class System:
    """How its operator reaches a running system."""

    home: Path
    broker: str
    credentials: str | None

    @property
    def settings(self) -> MqttSettings:
        """How to connect."""
        return MqttSettings.from_url(self.broker, credentials=self.credentials)

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which the command ``halimede`` reaches it, and prints for a page."""
        credentials = {"HALIMEDE_CREDENTIALS": self.credentials} if self.credentials else {}
        return {"HALIMEDE_BROKER": self.broker, "COLUMNS": "108", "NO_COLOR": "1", **credentials}


@contextlib.asynccontextmanager
async def system(home: Path, options: Sequence[str], nodes: Sequence[str] = NODES) -> AsyncIterator[System]:
    """Run ``halimede up`` with these nodes."""
    home_folder.clear(home)
    log = home / "services.log"
    command = programs.command("up", "--nodes", ",".join(nodes), "--home", str(home), *options)
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(*command, stdout=out, stderr=out)
    try:
        run_file, deadline = home / "run.json", time.monotonic() + START
        while not run_file.exists():
            if process.returncode is not None or time.monotonic() > deadline:
                raise HalimedeError(f"the system did not start; it said:\n{log.read_text()[-2000:]}")
            await asyncio.sleep(0.05)
        run = msgspec.json.decode(run_file.read_bytes())
        yield System(home, run["broker"], run.get("credentials"))
    finally:
        if process.returncode is None:
            process.terminate()
            async with asyncio.timeout(START):
                await process.wait()


class Cameras:
    """One process of ``halimede camera`` for each film; all begin at one time."""

    def __init__(self, prefix: str, films: Sequence[Film], where: System) -> None:
        self.start_ns = time.time_ns() + round(LEAD * 1e9)
        self._prefix = prefix
        self._films = films
        self._where = where
        self._running: list[asyncio.subprocess.Process] = []

    async def play(self) -> None:
        """Play all films to their end. Raises HalimedeError when a camera fails."""
        log = self._where.home / "logs" / f"cameras-{self._prefix}.log"
        try:
            with log.open("ab") as out:
                for film in self._films:
                    self._running.append(await self._camera(film, out))
            codes = await asyncio.gather(*(process.wait() for process in self._running))
        finally:
            for process in self._running:
                if process.returncode is None:
                    process.terminate()
        if any(codes):
            raise HalimedeError(f"a camera ended with {codes}; it said:\n{log.read_text()[-2000:]}")

    async def _camera(self, film: Film, out: object) -> asyncio.subprocess.Process:
        options = ["--camera", f"{self._prefix}-{film.camera}={film.path.absolute()}", "--fps", "0"]
        options += ["--start", f"{self.start_ns / 1e9:.3f}", "--broker", self._where.broker]
        if self._where.credentials:
            options += ["--credentials", self._where.credentials]
        command = programs.command("camera", *options)
        return await asyncio.create_subprocess_exec(*command, stdout=out, stderr=out)  # type: ignore[arg-type]


async def ask(where: System, *words: str) -> str:
    """Run the command ``halimede`` as the system's operator does, and return what it says. Raises HalimedeError."""
    async with asyncio.timeout(START):
        return (await output_of(*words, environment=where.environment)).rstrip()


def processes_of(home: Path, node: str) -> list[int]:
    """Return a node's local controller and all its workers, the controller first: so that it starts nobody again."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            told = dict(e.partition(b"=")[::2] for e in (folder / "environ").read_bytes().split(b"\0"))
            state = told.get(b"HALIMEDE_STATE", b"").decode()
            controller = words[3:5] == [b"halimede", b"lc"] and {str(home.absolute()).encode(), node.encode()} <= {
                *words
            }
            if controller or state.startswith(f"{home.absolute()}/nodes/{node}/"):
                found.append((not controller, int(folder.name)))
    return [pid for _, pid in sorted(found)]


def kill(pids: Sequence[int]) -> None:
    """Kill them all at once, as a power cut does."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
