"""One size of ``bench.control``: a broker, the real GM as a process, and that many nodes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import statistics
import sys
import tempfile
import time
from bisect import bisect
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.control_nodes import EDGE
from halimede import topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.cli.client import Client
from halimede.messages import StatusDocument
from services.broker import MosquittoProcess
from tests.integration.gm_world import SERVICES, model, service
from tests.ports import free_port

SERVICE = "control"
#: every node's disk is its own: here all are one, so it is memory where there is such a folder
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
#: seconds until something must have happened
PATIENCE = 90.0
#: seconds of quiet between two measurements, of watching an idle GM, and that a storm takes
QUIET, IDLE, STORM = 1.5, 3.0, 4.0
#: processor seconds a second, of GM and broker, above which something is under way
BUSY = 0.05
#: processes that play nodes: as many as the reference machine has cores
PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor seconds of the parts."""

    gm: float
    broker: float
    nodes: float

    def since(self, before: Spent) -> Spent:
        """What was spent in between."""
        return Spent(self.gm - before.gm, self.broker - before.broker, self.nodes - before.nodes)


@dataclass(slots=True)
class World:
    """The running parts. ``started``: their processes, GM first, which is a new one after each restart."""

    broker: MosquittoProcess
    folder: Path
    client: Client
    hosts: list[asyncio.subprocess.Process]
    started: list[asyncio.subprocess.Process]
    nodes: int
    #: what all waits are multiplied with
    pace: float = 1.0
    parameter: int = 0
    shown: StatusDocument | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def gm(self) -> asyncio.subprocess.Process:
        """The GM that runs now."""
        return self.started[0]

    async def ask(self, **question: Any) -> list[dict[str, Any]]:
        """Ask all processes that play nodes, at once."""

        async def one(host: asyncio.subprocess.Process) -> dict[str, Any]:
            assert host.stdin is not None
            assert host.stdout is not None
            host.stdin.write(json.dumps(question).encode() + b"\n")
            answer: dict[str, Any] = json.loads(await host.stdout.readline())
            return answer

        return list(await asyncio.gather(*(one(host) for host in self.hosts)))

    async def on_status(self, delivery: Delivery[StatusDocument]) -> None:
        """Take note of what users see."""
        self.shown = delivery.body
        self.changed.set()

    async def until_running(self, generation: int) -> float:
        """Wait until users see that all nodes run this generation; return when."""
        async with asyncio.timeout(PATIENCE):
            while True:
                self.changed.clear()
                shown = self.shown
                if shown and shown.generation == generation and shown.status.phase == "Running":
                    return time.monotonic()
                await self.changed.wait()

    def spent(self) -> Spent:
        """Return what the parts have spent so far."""
        assert self.broker.pid is not None
        return Spent(cpu(self.gm.pid), cpu(self.broker.pid), sum(cpu(host.pid) for host in self.hosts))

    def rss_mb(self) -> dict[str, float]:
        """Return what the parts hold now."""
        assert self.broker.pid is not None
        found = {"gm": self.gm.pid, "broker": self.broker.pid}
        sizes = {name: psutil.Process(pid).memory_info().rss for name, pid in found.items()}
        sizes["nodes"] = sum(psutil.Process(host.pid).memory_info().rss for host in self.hosts)
        return {name: size / 1e6 for name, size in sizes.items()}

    async def apply(self) -> int:
        """Apply the service with another parameter: one insert for each node. Return its generation."""
        self.parameter += 1
        body = service(SERVICE, edge=EDGE, cloud="n0000")
        body["spec"]["edgeWorker"]["hardExampleMining"]["parameters"] = [
            {"key": "threshold_margin", "value": f"0.{self.parameter:04}1"}
        ]
        _, stored = await self.client.apply(body)
        generation: int = stored["metadata"]["generation"]
        return generation


def cpu(pid: int) -> float:
    """Return a process's processor seconds."""
    times = psutil.Process(pid).cpu_times()
    spent: float = times.user + times.system
    return spent


async def start_gm(broker: MosquittoProcess, folder: Path) -> asyncio.subprocess.Process:
    """Start the real GM."""
    command = [
        sys.executable,
        "-m",
        "halimede",
        "gm",
        "--broker",
        broker.url,
        "--store",
        str(folder / "gm"),
        "--http",
        "off",
    ]
    with (folder / "gm.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)


@contextlib.asynccontextmanager
async def world(nodes: int, pace: float = 1.0) -> AsyncIterator[World]:
    """Start everything, with every node connected and synced; end it again."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as temporary:
        folder, pipe = Path(temporary), asyncio.subprocess.PIPE
        async with (
            MosquittoProcess(folder / "broker", port=free_port()) as broker,
            contextlib.AsyncExitStack() as stack,
        ):
            started = [await start_gm(broker, folder)]
            try:
                hosts = []
                count = min(PROCESSES, nodes)
                for number in range(count):
                    first, end = nodes * number // count, nodes * (number + 1) // count
                    command = [sys.executable, "-m", "bench.control_nodes", "--broker", broker.url]
                    command += ["--home", str(folder), "--first", str(first), "--count", str(end - first)]
                    with (folder / f"nodes{number}.log").open("wb") as log:
                        host = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=log,
                                                                    limit=16 * 1024 * 1024)  # fmt: skip
                    hosts.append(host)
                    started.append(host)
                bus = MqttBus(f"bench-{secrets.token_hex(4)}", MqttSettings.from_url(broker.url))
                client = await stack.enter_async_context(Client(bus))
                running = World(broker, folder, client, hosts, started, nodes, pace)
                names = {"ns": "default", "plural": SERVICES, "name": SERVICE}
                await bus.subscribe(topics.STATUS.filter(**names), running.on_status)
                began = time.monotonic()
                await running.ask(do="connect")
                await synced(running, began)
                yield running
            finally:
                for process in started:
                    await end_process(process)


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Kill a process, if it still runs."""
    if process.returncode is None:
        process.kill()
    await process.wait()


async def synced(running: World, since: float) -> dict[str, list[float]]:
    """Wait until GM has answered a sync of every node; return seconds of each, in order. Raises RuntimeError."""
    answers = await running.ask(do="synced", since=since, within=PATIENCE)
    if missing := sum(answer["missing"] for answer in answers):
        raise RuntimeError(f"{missing} of {running.nodes} nodes are not synced after {PATIENCE:g} s")
    return {what: sorted(s for answer in answers for s in answer[what]) for what in ("synced", "connected")}


async def measure(nodes: int, rounds: int, say: Callable[[str], None], pace: float = 1.0) -> dict[str, Any]:
    """Measure one size; return medians, with the single figures beside them. ``pace``: below 1 it hurries."""
    async with world(nodes, pace) as running:
        for name in ("small", "big"):
            await running.client.apply(model(name))
        await running.until_running(await running.apply())
        found: dict[str, list[float]] = {}

        def note(**figures: float) -> None:
            for name, value in figures.items():
                found.setdefault(name, []).append(value)

        for number in range(rounds):
            await quiet(running)
            note(**await fan_out(running))
            await quiet(running)
            note(**await restart(running))
            await quiet(running)
            note(**await storm(running))
            note(**{f"{part}_rss_mb": size for part, size in running.rss_mb().items()})
            await quiet(running)
            note(**await reconnect(running))
            say(f"{nodes} nodes, round {number + 1} of {rounds}: " + ", ".join(
                f"{name} {found[name][-1]:.3g}" for name in ("fanout_ack_s", "gm_restart_sync_s",
                                                             "gm_cpu_s_per_1000_status", "reconnect_s")))  # fmt: skip
    medians: dict[str, Any] = {name: round(statistics.median(values), 4) for name, values in found.items()}
    medians["rounds"] = {name: [round(value, 4) for value in values] for name, values in found.items()}
    return medians


async def quiet(running: World) -> None:
    """Wait until nothing is under way."""
    await running.until_running(running.shown.generation if running.shown else 0)
    async with asyncio.timeout(PATIENCE):
        while True:
            before = running.spent()
            await asyncio.sleep(QUIET * running.pace)
            used = running.spent().since(before)
            if used.gm + used.broker < BUSY * QUIET:
                return


async def fan_out(running: World) -> dict[str, float]:
    """Edit the service: one insert for each node, until its status says that all nodes run the new generation."""
    before, began = running.spent(), time.monotonic()
    generation = await running.apply()
    took = await running.until_running(generation) - began
    used = running.spent().since(before)
    return {"fanout_ack_s": took, "fanout_gm_cpu_s": used.gm, "fanout_broker_cpu_s": used.broker,
            "fanout_nodes_cpu_s": used.nodes}  # fmt: skip


async def restart(running: World) -> dict[str, float]:
    """Kill GM and start it again: until it has answered a sync of every node."""
    before, began = running.spent(), time.monotonic()
    await end_process(running.gm)
    running.started[0] = await start_gm(running.broker, running.folder)
    times = await synced(running, began)
    after = running.spent()
    return {"gm_restart_sync_s": times["synced"][-1], "gm_restart_first_sync_s": times["synced"][0],
            "gm_restart_gm_cpu_s": after.gm, "gm_restart_nodes_cpu_s": after.nodes - before.nodes}  # fmt: skip


async def storm(running: World) -> dict[str, float]:
    """Have every node report once a second, until GM has nothing left to do."""
    before, began = running.spent(), time.monotonic()
    await asyncio.sleep(IDLE * running.pace)
    idle = running.spent().since(before).gm / (time.monotonic() - began)
    before = running.spent()
    answers = await running.ask(do="storm", seconds=max(1.0, STORM * running.pace))
    await quiet(running)
    used = running.spent().since(before)
    count = sum(answer["statuses"] for answer in answers)
    return {
        "storm_statuses_per_s": count / max(answer["seconds"] for answer in answers),
        "gm_cpu_s_per_1000_status": used.gm / count * 1000,
        "broker_cpu_s_per_1000_status": used.broker / count * 1000,
        "nodes_cpu_s_per_1000_status": used.nodes / count * 1000,
        "gm_idle_cpu_pct": 100 * idle,
    }


async def reconnect(running: World) -> dict[str, float]:
    """Kill the broker and start it again, empty: until GM has answered a sync of every node."""
    began = time.monotonic()
    await running.broker.restart()
    back = time.monotonic() - began
    times = await synced(running, began)
    connected = times["connected"]
    # how many came in the busiest tenth of a second: without jitter, all
    busiest = max(bisect(connected, at + 0.1) - number for number, at in enumerate(connected))
    return {
        "reconnect_s": times["synced"][-1],
        "reconnect_broker_back_s": back,
        "reconnect_median_s": statistics.median(connected),
        "reconnect_busiest_tenth": busiest / len(connected),
    }
