"""Local controllers without workers, many in one process: what ``bench.control`` sets against one GM.

Each has its own connection, its own store, and the real code of an LC: ``GmChannel``, ``NodeStatusReporter``, ``plan``.
Two things are played: files are there at once, and a worker runs as soon as it is started. Asked over standard input,
one JSON object a line, JSON back; times are of the clock that all processes of a machine share (``time.monotonic``).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import resource
import sys
import time
from collections.abc import Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any

from halimede import log, programs
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.messages import NodeStatus, TaskInfo, WorkerInfo, WorkerReport
from halimede.names import Key
from halimede.system.runtime import rare_collections
from services.lc.gm_channel import GmChannel
from services.lc.models.lookup import ParsedResources
from services.lc.paths import NodePaths, Worker
from services.lc.planning.plan import ObservedWorker, Plan, plan
from services.lc.planning.process_planner import ProcessPlanner
from services.lc.planning.resource_state import Preparation, ResourceState
from services.lc.planning.template_process import Host
from services.lc.status_reporter import DueReports, NodeStatusReporter, compose
from services.lc.store import NodeStore
from services.lc.supervisor.process import Start

EDGE = {"node-role.kubernetes.io/edge": ""}
MODEL = Path("/models/played.onnx")
#: connections that are opened at a time, and seconds between looks at how far all of them are
AT_ONCE, LOOK = 50, 0.005


class PlayedWorkers:
    """Workers that run as soon as they are started and count what they are told to have counted (``Workers``)."""

    restarts = 0
    models: Collection[Path | str] | None = ()

    def __init__(self) -> None:
        self._running: dict[Worker, ObservedWorker] = {}
        self._reports: dict[Worker, WorkerReport] = {}
        self._counts: dict[Worker, TaskInfo] = {}

    @property
    def running(self) -> Mapping[Worker, ObservedWorker]:
        """All that was started."""
        return self._running

    def adopt(self) -> None:
        """There was nothing before."""

    def tasks(self) -> dict[str, Coroutine[None, None, None]]:
        """Nothing."""
        return {}

    def carry_out(self, decided: Plan) -> None:
        """Start and stop at once."""
        for worker in decided.stop:
            self._running.pop(worker)
        for start in (*decided.start, *decided.swap):
            self._start(start)

    def count(self, samples: int) -> None:
        """Have each worker answer that many samples more."""
        for worker, info in self._counts.items():
            known = info.inference_number + samples
            self._counts[worker] = TaskInfo(inference_number=known, edge_inference_number=known)

    def heard(self, worker: Worker, info: WorkerInfo) -> Key | None:
        """Nobody speaks."""

    def status(self, standing: ResourceState) -> NodeStatus:
        """Return the report on a resource."""
        return compose(standing, self._reports, self._counts)

    def reports(self) -> list[WorkerReport]:
        """Return how all workers stand now."""
        return list(self._reports.values())

    def is_busy(self, service: Key) -> bool:
        """Whether a worker of a service runs."""
        return any(each.service == service for each in self._running.values())

    def clear_away(self, service: Key) -> None:
        """Nothing was left."""

    async def stop_all(self) -> None:
        """Nothing to wait for."""

    def _start(self, start: Start) -> None:
        worker = start.worker
        self._running[worker] = ObservedWorker(
            worker, start.service, start.uid, start.spec.digest, model=start.desired_model, swaps=True
        )
        self._reports[worker] = WorkerReport(name=worker.name, role=start.role, phase="Running")
        self._counts.setdefault(worker, TaskInfo(inference_number=1, edge_inference_number=1))


class PlayedNode:
    """One local controller, its workers left out."""

    def __init__(self, name: str, settings: MqttSettings, home: Path) -> None:
        folders = NodePaths(home, name)
        self.name = name
        self.store = NodeStore(folders.store)
        self.bus = MqttBus(f"lc.{name}", settings.for_control())
        self.workers = PlayedWorkers()
        self.due_reports = DueReports()
        self.reporter = NodeStatusReporter(name, self.bus, self.store, self.workers, self.due_reports)
        self._wake = asyncio.Event()
        self.channel = GmChannel(
            name,
            self.bus,
            labels=EDGE,
            store=self.store,
            workers=self.workers,
            reporter=self.reporter,
            changed=self._wake.set,
            repeated=lambda _: None,
        )
        #: when it was last connected
        self.connected_at = 0.0
        host = Host(python=sys.executable, library=str(programs.CHECKOUT or ""))
        self._part = ProcessPlanner(name, EDGE, folders, settings.url, host, None)
        self._items = ParsedResources()

    @property
    def synced_at(self) -> float:
        """When GM last answered a sync."""
        age = self.channel.sync_age_s
        return 0.0 if age is None else asyncio.get_running_loop().time() - age

    async def run(self, connected: asyncio.Event) -> None:
        """Be a node until cancelled."""
        with self.store:
            self.bus.announce = self.channel.announce
            self.bus.on_connect(self._connected)
            async with self.bus, asyncio.TaskGroup() as tasks:
                await self.channel.start()
                tasks.create_task(self.channel.run())
                tasks.create_task(self.reporter.run())
                tasks.create_task(self._reconcile())
                with contextlib.suppress(Exception):
                    await self.bus.wait_connected(60.0)
                connected.set()

    def speak(self) -> None:
        """Have its workers count on, and report."""
        self.workers.count(7)
        for key in self.store.resources:
            self.due_reports.add(key)

    async def _connected(self) -> None:
        self.connected_at = time.monotonic()

    async def _reconcile(self) -> None:
        while True:
            self._wake.clear()
            items = self._items.read(self.store.resources)
            decided = plan(items, self._preparations, self.workers.running, self._part, complete=self.store.complete)
            if decided.prepare != {key: known.required for key, known in self._preparations.items()}:
                self._preparations = {
                    key: Preparation(want, "Ready", "", path=MODEL) for key, want in decided.prepare.items()
                }
                continue
            self.workers.carry_out(decided)
            self.reporter.update(decided.states)
            self.channel.set_lacking(lacking=decided.lacking)
            await self._wake.wait()

    _preparations: Mapping[Key, Preparation] = {}


class Nodes:
    """All nodes of this process, and what may be asked of them."""

    def __init__(self, names: list[str], settings: MqttSettings, home: Path) -> None:
        self._nodes = [PlayedNode(name, settings, home) for name in names]

    async def run(self) -> None:
        """Answer questions until the input ends."""
        loop, lines = asyncio.get_running_loop(), asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        async with asyncio.TaskGroup() as tasks:
            running: list[asyncio.Task[None]] = []
            turn = asyncio.Semaphore(AT_ONCE)
            while line := await lines.readline():
                match json.loads(line):
                    case {"do": "connect"}:
                        for node in self._nodes:
                            connected = asyncio.Event()
                            await turn.acquire()
                            running.append(tasks.create_task(node.run(connected), name=node.name))
                            tasks.create_task(_release(connected, turn))
                        answer: dict[str, Any] = {}
                    case {"do": "synced", "since": since, "within": within}:
                        answer = await self._synced(since, within)
                    case {"do": "holding", "resources": count, "within": within}:
                        answer = await self._holding(count, within)
                    case {"do": "storm", "seconds": seconds}:
                        answer = await self._storm(seconds)
                    case {"do": "cost"}:
                        answer = _cost()
                    case other:
                        raise ValueError(other)
                print(json.dumps(answer), flush=True)
            for task in running:
                task.cancel()

    async def _synced(self, since: float, within: float) -> dict[str, Any]:
        """Wait until GM has answered a sync of every node since then."""
        end = since + within
        while time.monotonic() < end and any(node.synced_at < since for node in self._nodes):
            await asyncio.sleep(LOOK)
        return {
            "missing": sum(node.synced_at < since for node in self._nodes),
            "synced": sorted(node.synced_at - since for node in self._nodes),
            "connected": sorted(node.connected_at - since for node in self._nodes),
        }

    async def _holding(self, count: int, within: float) -> dict[str, Any]:
        """Wait until every node holds that many resources, and has reported on all of them."""
        end = time.monotonic() + within
        while time.monotonic() < end and not all(_settled(node, count) for node in self._nodes):
            await asyncio.sleep(LOOK)
        return {"missing": sum(not _settled(node, count) for node in self._nodes)}

    async def _storm(self, seconds: float) -> dict[str, Any]:
        """Have every node report as often as an LC does at most, evenly spread; return what the broker took."""
        before = sum(node.reporter.accepted for node in self._nodes)
        began = time.monotonic()
        for second in range(int(seconds)):
            for number, node in enumerate(self._nodes):
                due = began + second + number / len(self._nodes)
                if (wait := due - time.monotonic()) > LOOK:
                    await asyncio.sleep(wait)
                node.speak()
            await asyncio.sleep(0)
        while any(node.reporter.waiting for node in self._nodes) and time.monotonic() < began + 4 * seconds:
            await asyncio.sleep(LOOK)
        taken = sum(node.reporter.accepted for node in self._nodes) - before
        return {"statuses": taken, "seconds": time.monotonic() - began}


def _settled(node: PlayedNode, count: int) -> bool:
    return len(node.store.resources) >= count and not node.reporter.waiting


def _cost() -> dict[str, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_s": used.ru_utime + used.ru_stime}


async def _release(connected: asyncio.Event, turn: asyncio.Semaphore) -> None:
    await connected.wait()
    turn.release()


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(prog="python -m bench.control_nodes")
    parser.add_argument("--broker", required=True)
    parser.add_argument("--home", required=True, type=Path)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    log.configure("WARNING", service="lc")
    gc.disable()  # a node's own memory is small: a look at that of all nodes would be a pause that none has
    names = [f"n{number:04}" for number in range(options.first, options.first + options.count)]
    with rare_collections():  # as an LC's process has it
        asyncio.run(Nodes(names, MqttSettings.from_url(options.broker), options.home).run())


if __name__ == "__main__":
    main()
