"""A local controller on a memory broker, a GM that is a script, and worker processes that a test ends as it likes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from halimede import topics
from halimede.bus import Announcement, Bus, Delivery
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.datasets import Counted, count
from halimede.datasets.count_process import CountJob
from halimede.datasets.count_report import Progress
from halimede.messages import Delete, GmPresence, NodeStatus, Presence, Sync, Synced, TaskInfo, WorkerInfo
from halimede.models import Cache, Fetched, FetchError, FetchReason
from halimede.names import Key
from services.lc.app import Config, LocalController
from services.lc.models.preparer import Install, InstalledModel, plain
from services.lc.paths import Worker
from services.lc.planning.resource_state import RequiredFile
from services.lc.store import ProcessRecord
from services.lc.supervisor.process import Process, Start, StartError
from tests.integration import gm_world
from tests.integration.gm_world import announcement, key_of
from tests.simulated import eventually
from tests.waiting import patience

SERVICES, MODELS, DATASETS = "jointinferenceservices", "models", "datasets"
HELMET, SMALL, BIG = Key(SERVICES, "default", "helmet"), Key(MODELS, "default", "small"), Key(MODELS, "default", "big")
EDGE, CLOUD = Worker("default", "helmet-edge-edge0"), Worker("default", "helmet-cloud-edge0")


def stored(body: dict[str, Any], uid: str, generation: int) -> dict[str, Any]:
    """Return a resource with what GM's store adds to it."""
    body["metadata"] |= {"namespace": "default", "uid": uid, "generation": generation}
    return body


def model(name: str = "small", *, uid: str = "", generation: int = 1, **spec: Any) -> dict[str, Any]:
    return stored(gm_world.model(name, **spec), uid or f"uid-{name}", generation)


def service(
    name: str = "helmet",
    *,
    uid: str = "u1",
    generation: int = 1,
    edge: dict[str, Any] | None = None,
    cloud: dict[str, Any] | None = None,
    edge_node: str = "edge0",
    cloud_node: str = "cloud0",
    **spec: Any,
) -> dict[str, Any]:
    """``edge`` and ``cloud`` are added to the first container of their templates."""

    def template(node: str, container: dict[str, Any] | None) -> dict[str, Any]:
        return {"spec": {"nodeName": node, "containers": [{"image": "halimede/worker", **(container or {})}]}}

    mining = {"name": "Margin", "parameters": [{"key": "threshold_margin", "value": "0.2"}]}
    more = {"hardExampleMining": mining, "template": template(edge_node, edge), **spec}
    big = {"model": {"name": "big"}, "template": template(cloud_node, cloud)}
    return stored(gm_world.service(name, edge_worker=more, cloudWorker=big), uid, generation)


class FakeProcess:
    """A process that ends when a test says so. ``stubborn`` ones ignore SIGTERM."""

    def __init__(self, start: Start | None, record: ProcessRecord) -> None:
        self.start = start
        self.record = record
        self.stubborn = self.stopped = False
        self.signals: list[str] = []
        self._ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int | None:
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        self.signals.append("TERM")
        if not self.stubborn:
            self.end(0)

    def kill(self) -> None:
        self.signals.append("KILL")
        self.end(-9)

    def end(self, code: int | None) -> None:
        if not self._ended.done():
            self._ended.set_result(code)

    @property
    def alive(self) -> bool:
        return not self._ended.done()


class FakeLauncher:
    """Starts fake processes. ``refuse`` makes every start fail; ``exits`` ends each new process with that code."""

    def __init__(self) -> None:
        self.started: list[FakeProcess] = []
        self.refuse: StartError | None = None
        self.exits: int | None = None
        self.lines: dict[Worker, str] = {}
        self.connection_errors: dict[Worker, str] = {}
        self.times: list[float] = []

    def start(self, start: Start) -> Process:
        self.times.append(asyncio.get_running_loop().time())
        if self.refuse:
            raise self.refuse
        pid = len(self.started) + 1
        record = ProcessRecord(
            start.worker.namespace, start.worker.name, str(start.service), start.uid, start.role, start.spec.digest,
            pid, pid, "boot", code=start.spec.code,
        )  # fmt: skip
        process = FakeProcess(start, record)
        self.started.append(process)
        if self.exits is not None:
            process.end(self.exits)
        return process

    def find(self, known: list[ProcessRecord]) -> list[Process]:
        """Adopt what a launcher before this one left running."""
        return [process for process in self.started if process.alive and process.record in known]

    def last_line(self, worker: Worker) -> str:
        return self.lines.get(worker, "")

    def connection_error(self, worker: Worker, age_s: float) -> str:
        return self.connection_errors.get(worker, "")

    @property
    def alive(self) -> list[FakeProcess]:
        return [process for process in self.started if process.alive]

    def of(self, worker: Worker) -> FakeProcess:
        """The process that a worker has now."""
        found = [process for process in self.alive if process.record.worker == worker]
        assert len(found) == 1, found
        return found[0]

    def make_stubborn(self, worker: Worker = EDGE) -> FakeProcess:
        """Have the process of a worker ignore SIGTERM, and return it."""
        process = self.of(worker)
        process.stubborn = True
        return process


async def fetch_at_once(url: str, sha256: str, cache: Cache, progress: Any = None) -> Fetched:
    """A fetcher whose models are always there; their digest is that of the URL."""
    return cached(cache, sha256 or url.replace("/", "_"))


def cached(cache: Cache, digest: str, modified_s: float | None = None) -> Fetched:
    """Put a file where that of a digest would be, and record it as verified. ``modified_s``: its time; None: now."""
    part = cache.root / f"part-{digest}"
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(b"m")
    if modified_s is not None:
        os.utime(part, (modified_s, modified_s))
    return cache.keep(part, digest)


class FakeGm:
    """Says what a test tells it to, and keeps what the node says."""

    def __init__(self, bus: Bus, node: str = "edge0", epoch: int = 1) -> None:
        self.node, self.epoch, self.bus = node, epoch, bus
        bus.announce = self._announce
        self.syncs: list[Sync] = []
        self.statuses: dict[Key, NodeStatus] = {}
        self.history: list[tuple[float, Key, NodeStatus | None]] = []
        self.presences: list[Presence] = []
        self.reports: Counter[Key] = Counter()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeGm]:
        async with self.bus:
            await self.bus.subscribe(topics.SYNC.filter(), self._on_sync)
            await self.bus.subscribe(topics.NODE_STATUS.filter(), self._on_status, cleared=self._on_cleared)
            await self.bus.subscribe(topics.PRESENCE.filter(), self._on_presence)
            await self.bus.wait_connected(patience(10))
            yield self

    async def insert(self, *bodies: dict[str, Any], epoch: int | None = None) -> None:
        plurals = {"Model": MODELS, "JointInferenceService": SERVICES, "Dataset": DATASETS}
        for body in bodies:
            meta = body["metadata"]
            names = {"ns": meta["namespace"], "plural": plurals[body["kind"]], "name": meta["name"]}
            address = topics.INSERT.at(node=self.node, **names)
            await self.bus.publish(address, body, properties={"epoch": str(epoch or self.epoch)})

    async def delete(self, key: Key, uid: str, generation: int = 1, *, epoch: int | None = None) -> None:
        address = topics.DELETE.at(node=self.node, ns=key.namespace, plural=key.plural, name=key.name)
        body = Delete(uid=uid, generation=generation)
        await self.bus.publish(address, body, properties={"epoch": str(epoch or self.epoch)})

    async def synced(self, unknown: int = 0) -> None:
        body = Synced(epoch=self.epoch, count=0, unknown=unknown)
        await self.bus.publish(topics.SYNCED.at(node=self.node), body, properties={"epoch": str(self.epoch)})

    async def says(self, worker: Worker, status: Any = "running", owner: str = "helmet", **fields: Any) -> None:
        """Speak for a worker."""
        info = WorkerInfo(name=worker.name, namespace=worker.namespace, owner_name=owner, status=status, **fields)
        address = topics.WORKER_INFO.at(node=self.node, ns=worker.namespace, worker=worker.name)
        await self.bus.publish(address, info)

    async def reaches(self, key: Key, phase: str, reason: str | None = None, generation: int = 0) -> NodeStatus:
        """Wait for a report."""

        def holds() -> bool:
            status = self.statuses.get(key)
            if status is None or status.phase != phase or status.observed_generation < generation:
                return False
            return reason is None or status.reason == reason

        try:
            await eventually(holds, 60)
        except AssertionError as error:
            raise AssertionError(f"{key} is not {phase} {reason} but {self.statuses.get(key)}") from error
        return self.statuses[key]

    async def forgotten(self, key: Key) -> None:
        await eventually(lambda: key not in self.statuses, 60)

    def held(self) -> set[tuple[str, str, int]]:
        """What the last sync said."""
        return {(held.name, held.uid, held.generation) for held in self.syncs[-1].holds}

    def _announce(self) -> Announcement:
        birth, will = (GmPresence(epoch=self.epoch, online=online) for online in (True, False))
        return announcement(topics.GM_PRESENCE.at(), birth, will)

    async def _on_sync(self, delivery: Delivery[Sync]) -> None:
        self.syncs.append(delivery.body)

    async def _on_status(self, delivery: Delivery[NodeStatus]) -> None:
        key = key_of(delivery.names)
        self.statuses[key] = delivery.body
        self.history.append((asyncio.get_running_loop().time(), key, delivery.body))
        self.reports[key] += 1

    async def _on_cleared(self, names: Any) -> None:
        self.statuses.pop(key_of(names), None)
        self.history.append((asyncio.get_running_loop().time(), key_of(names), None))

    async def _on_presence(self, delivery: Delivery[Presence]) -> None:
        self.presences.append(delivery.body)


async def count_at_once(job: CountJob, told: Callable[[Progress], None]) -> Counted:
    """Count without a child process: a simulation has no time for one."""
    return count(job.path, job.format, job.ledger, root=job.root)


async def no_network(url: str) -> None:
    """Answer for every URL: a simulation has no network."""
    raise FetchError(FetchReason.UNREACHABLE, f"{url} cannot be reached", temporary=True)


class World:
    """One node whose LC can be started, stopped and killed, beside a GM."""

    def __init__(self, home: Path, node: str = "edge0") -> None:
        self.broker = MemoryBroker()
        self.launcher = FakeLauncher()
        self.config = Config(node, home, "127.0.0.1:1883")
        self.gm = FakeGm(MemoryBus("gm", self.broker), node)
        self.fetch: Callable[..., Any] = fetch_at_once
        #: brings models in place of ``fetch``
        self.bring: Install | None = None
        self.bus = MemoryBus(f"lc.{node}", self.broker)

    async def starts(self, *bodies: dict[str, Any]) -> None:
        """Send the service and its Model, or other resources, and wait for the first process."""
        await self.gm.insert(*(bodies or (model(), service())))
        await eventually(lambda: self.launcher.alive)

    async def works(self, reason: str | None = None) -> NodeStatus:
        """Speak for the edge worker, and wait until its service runs."""
        await self.gm.says(EDGE)
        return await self.gm.reaches(HELMET, "Running", reason)

    async def loses(self, key: Key = HELMET, uid: str = "u1", generation: int = 1) -> None:
        """Delete a resource, and wait until the node has forgotten it."""
        await self.gm.delete(key, uid, generation)
        await self.gm.forgotten(key)

    async def _install(self, required: RequiredFile, cache: Cache, progress: Any) -> InstalledModel:
        return await (self.bring or plain(self.fetch))(required, cache, progress)

    async def connect_again(self) -> None:
        """Break the connection, and wait until the node has said anew what it holds."""
        before = len(self.gm.syncs)
        self.bus.cut()
        self.bus.heal()
        await eventually(lambda: len(self.gm.syncs) > before)

    @asynccontextmanager
    async def lc(self, *, killed: bool = False) -> AsyncIterator[LocalController]:
        """Run the LC inside the block; leaving it is a clean stop, or as if it had been killed."""
        self.bus = MemoryBus(f"lc.{self.config.node}", self.broker)
        controller = LocalController(
            self.config, self.bus, launcher=self.launcher, install=self._install, count=count_at_once, probe=no_network
        )
        stopping = asyncio.Event()
        task = asyncio.create_task(controller.run(stopping))
        try:
            if self.broker.running:
                await self.bus.wait_connected(patience(10))
            yield controller
        finally:
            if killed:
                task.cancel()
            else:
                stopping.set()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def world(home: Path, *, inserted: bool = False) -> AsyncIterator[World]:
    """A node with its LC and GM; ``inserted``: with the service and its Model sent, and its edge worker running."""
    made = World(home)
    async with made.gm.running(), made.lc():
        if inserted:
            await made.gm.insert(model(), service())
            await eventually(lambda: made.launcher.alive)
            await made.gm.says(EDGE, task_info=TaskInfo(inference_number=10, upload_cloud_ratio=0.5))
            await made.gm.reaches(HELMET, "Running")
        yield made
