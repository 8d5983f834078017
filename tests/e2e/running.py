"""The whole system as its user starts it: `halimede up` in a folder of its own, and what a test asks of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from examples.digits import data, train
from halimede import topics
from halimede.bus import Delivery, Packet
from halimede.bus.credentials import Credentials
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.cli.client import Client
from halimede.cli.manifests import load as load_manifests
from halimede.frames.payloads import new_id, pack
from halimede.messages import Frame, Result, StatusDocument
from tests.ports import free_port
from tests.programs import started
from tests.waiting import eventually, patience

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits"
START = 60.0


class System:
    """A running system, a client of it, and everything that it said."""

    def __init__(
        self, home: Path, process: subprocess.Popen[bytes], bus: MqttBus, client: Client, settings: MqttSettings
    ) -> None:
        self.home, self.process, self.bus, self.client, self.settings = home, process, bus, client, settings
        self.port = str(settings.port)
        self.results: dict[str, Result] = {}
        self.copies: Counter[str] = Counter()
        self.status: StatusDocument | None = None
        self.sent: dict[str, int] = {}

    async def follow(self, service: str) -> None:
        """Keep every result and the newest status of a service."""

        async def on_result(delivery: Delivery[Result]) -> None:
            self.copies[delivery.body.id] += 1
            self.results.setdefault(delivery.body.id, delivery.body)

        async def on_status(delivery: Delivery[StatusDocument]) -> None:
            self.status = delivery.body

        async def cleared(_: Any) -> None:
            self.status = None

        await self.bus.subscribe(topics.RESULT.filter(ns="default", service=service), on_result)
        names = {"ns": "default", "plural": "jointinferenceservices", "name": service}
        await self.bus.subscribe(topics.STATUS.filter(**names), on_status, cleared=cleared)

    @property
    def phase(self) -> str:
        return self.status.status.phase if self.status else ""

    def metric(self, key: str) -> float:
        metrics = self.status.status.metrics if self.status else []
        return next((float(m.value) for m in metrics if m.key == key), 0.0)

    async def until(self, what: str, done: Callable[[], Any], seconds: float = START) -> None:
        await eventually(done, seconds, 0.05, lambda: f"{what}; status {self.status}")

    async def until_running(self, seconds: float = START) -> None:
        await self.until("Running", lambda: self.phase == "Running", seconds)

    async def until_answered(self, seconds: float = START) -> None:
        """Wait for the answers to all that was sent."""
        await self.until("all answers", lambda: self.sent.keys() <= self.results.keys(), seconds)

    async def run_digits(self, **edge: Any) -> None:
        """Follow the service of the digits, apply it, and wait until it runs; ``edge`` as for ``apply``."""
        await self.follow("digits")
        await self.apply(DIGITS, **edge)
        await self.until_running()

    async def apply(self, folder: Path, **edge: Any) -> None:
        """Apply the manifests of a folder; ``edge``: further fields of its service's edge worker."""
        for manifest in load_manifests([str(folder)]):
            body = manifest.resource.body
            if body["kind"] == "JointInferenceService":
                body["spec"]["edgeWorker"] |= edge
            await self.client.apply(body)

    async def send(self, pictures: list[bytes], camera: str = "cam0", fps: float = 100, captured_ns: int = 0) -> None:
        """Publish pictures as our frames."""
        for i, picture in enumerate(pictures):
            frame = Frame(id=new_id(), camera=camera, sequence=i, encoding="png", data=memoryview(picture))
            frame.captured_ns = captured_ns
            self.sent[frame.id.hex()] = i
            await self.bus.publish(topics.CAMERA_FRAME.at(ns="default", camera=camera), pack(frame))
            await asyncio.sleep(1 / fps)

    @property
    def tools(self) -> dict[str, str]:
        """The environment in which Mosquitto's own tools work as the operator."""
        return {**os.environ, "XDG_CONFIG_HOME": str(self.home / "clients")}

    async def messages_of(self, user: Path, seconds: float) -> list[Packet]:
        """Return what a user, whose credentials are in this folder, may receive on any topic, retained or not."""
        packets: list[Packet] = []

        async def keep(packet: Packet) -> None:
            packets.append(packet)

        async with MqttBus("listener", replace(self.settings, credentials=Credentials(user))) as bus:
            await bus.wait_connected(patience(10))
            await bus.listen("#", 1, keep, 10_000)
            await asyncio.sleep(seconds)
        return packets

    def processes(self) -> dict[str, psutil.Process]:
        """All processes of this system but the launcher, by a word for what they are."""
        found = {}
        for process in psutil.process_iter(["cmdline", "environ"]):
            line = process.info["cmdline"] or []
            if (process.info["environ"] or {}).get("HALIMEDE_TEST_RUN") != str(self.home):
                continue
            if line[3:5] == ["halimede", "gm"]:
                found["gm"] = process
            elif line[3:5] == ["halimede", "lc"]:
                found["lc:" + line[line.index("--node") + 1]] = process
            elif "WORKER_NAME" in process.info["environ"]:
                found["worker:" + process.info["environ"]["WORKER_NAME"]] = process
            elif "mosquitto" in " ".join(line):
                found["broker"] = process
        return found

    def workers(self) -> dict[str, psutil.Process]:
        return {name: process for name, process in self.processes().items() if name.startswith("worker:")}


@contextlib.asynccontextmanager
async def running(
    home: Path, nodes: str = "edge0,edge1,cloud0", *options: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[System]:
    """Start a system, yield it, stop it by Ctrl-C, and insist that nothing is left behind."""
    environment = {**os.environ, "HALIMEDE_HOME": str(home), "HALIMEDE_TEST_RUN": str(home), **(environment or {})}
    command = [sys.executable, "-m", "halimede", "up", "--nodes", nodes, "--home", home, "--port", str(free_port())]
    home.parent.mkdir(parents=True, exist_ok=True)
    log, run_file = home.parent / f"{home.name}.log", home / "run.json"
    with started(*command, *options, log=log, cwd=ROOT, env=environment, start_new_session=True) as process:
        await eventually(lambda: run_file.exists() or process.poll() is not None, START, 0.05, log.read_text)
        assert process.poll() is None, log.read_text()
        run = json.loads(run_file.read_text())
        settings = MqttSettings.from_url(run["broker"], credentials=run.get("credentials"))
        bus = MqttBus(f"test-{secrets.token_hex(4)}", settings)
        async with Client(bus) as client:
            yield (system := System(home, process, bus, client, settings))
        process.send_signal(signal.SIGINT)
        await asyncio.to_thread(process.wait, patience(40))
        assert system.processes() == {}, "a process was left behind"
        assert not run_file.exists()


def digits() -> list[bytes]:
    """The test half of the digits as PNG; trains the models if they are not there."""
    if not (train.FOLDER / "big.onnx").exists():
        train.main()
    return [data.to_png(image) for image in data.load().test_x]
