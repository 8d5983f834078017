"""A node is emptied and given back: a real GM, real LCs, workers that end when a test says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from halimede import codec, topics
from halimede.bus import Packet
from halimede.bus.memory import MemoryBus
from halimede.messages import NodeInfo, WorkerInfo
from services.lc.app import Config, LocalController
from services.lc.models.preparer import plain
from services.lc.paths import Worker
from tests.integration.gm_world import World, model, service, world
from tests.integration.lc_world import FakeLauncher, FakeProcess, fetch_at_once
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = pytest.mark.simulated

EDGE = {"site": "edge"}


class Launcher(FakeLauncher):
    """Starts workers that say at once that they run."""

    def __init__(self, w: World, node: str) -> None:
        super().__init__()
        self.w, self.node = w, node

    def start(self, start: object) -> FakeProcess:
        process = super().start(start)  # type: ignore[arg-type]
        assert isinstance(process, FakeProcess)
        asyncio.get_running_loop().call_soon(self._says, process.record.worker)
        return process

    def _says(self, worker: Worker) -> None:
        owner = worker.name.partition("-")[0]
        info = WorkerInfo(name=worker.name, namespace=worker.namespace, owner_name=owner, status="running")
        address = topics.WORKER_INFO.at(node=self.node, ns=worker.namespace, worker=worker.name)
        self.w.broker.route(Packet(str(address), codec.encode(topics.WORKER_INFO, info)))


class Node:
    """A node with a real LC."""

    def __init__(self, w: World, name: str, home: Path) -> None:
        self.launcher = Launcher(w, name)
        site = "edge" if name.startswith("edge") else "cloud"
        self._config = Config(name, home, "memory", {"site": site})
        self._bus = MemoryBus(f"lc.{name}", w.broker)
        self._stopping = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Node]:
        controller = LocalController(self._config, self._bus, launcher=self.launcher, install=plain(fetch_at_once))
        task = asyncio.create_task(controller.run(self._stopping))
        try:
            await self._bus.wait_connected(patience(10))
            yield self
        finally:
            self._stopping.set()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @property
    def workers(self) -> list[str]:
        return sorted(process.record.name for process in self.launcher.alive)


@asynccontextmanager
async def nodes(w: World, home: Path, *names: str) -> AsyncIterator[list[Node]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Node(w, name, home).running()) for name in names]


async def info(w: World, name: str) -> NodeInfo:
    (found,) = (await w.ask("nodes", name=name)).nodes
    return found


async def test_a_drained_node_lets_its_workers_finish_and_a_pinned_service_waits_for_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), nodes(w, tmp_path, "edge0", "edge1", "cloud0") as (edge0, edge1, _):
        await w.apply(model("small"), model("big"), service("chosen", edge=EDGE), service("pinned"))
        await w.reaches("Running", name="chosen")
        await w.reaches("Running", name="pinned")
        busy = edge0.launcher.of(Worker("default", "chosen-edge-edge0"))
        busy.stubborn = True  # it has something to finish

        answer = await w.ask("drain", name="edge0")
        assert answer.value == {"online": True, "stranded": [{"service": "default/pinned", "role": "edge"}]}
        await eventually(lambda: edge0.workers == ["chosen-edge-edge0"], 30)
        assert busy.signals == ["TERM"]
        told = await info(w, "edge0")
        assert (told.drained, told.online, told.resources, told.workers) == (True, True, 1, 1)

        busy.end(0)
        status = await w.reaches("Pending", "NodeDrained", name="pinned")
        assert "halimede uncordon edge0" in status.conditions[-1].message
        await w.reaches("Running", name="chosen")
        await eventually(lambda: edge0.workers == [], 30)
        await eventually(lambda: edge1.workers == ["chosen-edge-edge1"], 30)

        async def empty() -> bool:
            left = await info(w, "edge0")
            return (left.resources, left.workers) == (0, 0)

        await eventually(empty, 30)
        await w.ask("uncordon", name="edge0")
        await w.reaches("Running", name="pinned")
        await eventually(lambda: edge0.workers == ["chosen-edge-edge0", "pinned-edge-edge0"], 30)
        reasons = [e.reason for e in (await w.ask("events", about="node/edge0")).events]
        assert reasons.count("NodeDrained") == reasons.count("NodeUncordoned") == 1


async def test_the_mark_survives_gm_and_the_nodes_return_and_ends_with_the_node(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        async with w.gm():
            await w.apply(model("small"), model("big"), service("chosen", edge=EDGE))
            async with nodes(w, tmp_path, "edge0", "edge1", "cloud0") as (edge0, _, _):
                await w.reaches("Running", name="chosen")
                await w.ask("drain", name="edge0")
                await eventually(lambda: edge0.workers == [], 30)
        async with w.gm(), nodes(w, tmp_path, "edge0", "edge1", "cloud0") as (edge0, edge1, _):
            await w.reaches("Running", name="chosen")
            await eventually(lambda: bool(edge1.workers), 30)
            await asyncio.sleep(60)
            assert edge0.workers == []
            assert (await info(w, "edge0")).drained
        async with w.gm():
            await eventually(lambda: not w.manager._plane.nodes.is_online("edge0"), 60)
            assert (await w.ask("delete-node", name="edge0")).error is None
            async with nodes(w, tmp_path, "edge0", "edge1", "cloud0") as (edge0, _, _):
                await eventually(lambda: bool(edge0.workers), 60)
                assert not (await info(w, "edge0")).drained
        async with w.gm():
            assert not w.manager._plane.nodes.is_drained("edge0")


async def test_a_node_that_is_away_is_emptied_when_it_comes_back(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), nodes(w, tmp_path, "edge1", "cloud0"):
        await w.apply(model("small"), model("big"), service("chosen", edge=EDGE))
        async with nodes(w, tmp_path, "edge0") as (edge0,):
            await eventually(lambda: bool(edge0.workers), 60)
        answer = await w.ask("drain", name="edge0")
        assert answer.value["online"] is False
        async with nodes(w, tmp_path, "edge0") as (edge0,):
            # it starts what it holds, as it must without GM, unless GM's delete comes first
            await asyncio.sleep(60)
            assert (await info(w, "edge0")).online
            assert edge0.workers == []


async def test_only_a_node_that_is_known_can_be_drained(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm():
        for op in ("drain", "uncordon"):
            assert (await w.ask(op, name="edge9")).error.reason == "NotFound"  # type: ignore[union-attr]
            assert (await w.ask(op, name="../x")).error.reason == "Invalid"  # type: ignore[union-attr]
