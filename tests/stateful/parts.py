"""The parts of a simulated system: the real GM and LCs, with simulated processes, on a broker that shows all it does.

Only processes and downloads are simulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from halimede import codec, topics
from halimede.bus import Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import WorkerInfo
from halimede.models import Cache, Fetched
from services.gm.app import GlobalManager
from services.gm.cluster.local import LocalCluster
from services.lc.app import Config, LocalController
from services.lc.models.preparer import plain
from services.lc.paths import Worker
from services.lc.supervisor.process import Process, Start
from tests.integration.lc_world import FakeLauncher, FakeProcess, cached
from tests.simulated import SimulatedLoop

T = TypeVar("T")

#: downstream messages that may be sent again
KEPT = 300
#: seconds between two reports of a worker: one may be lost, or come while the broker is away
HEARTBEAT_S = 10.0
#: what the clock on the wall shows when a simulation begins, in seconds since 1970: epochs count from it
BEGAN_S = 1_700_000_000


async def fetch(url: str, sha256: str, cache: Cache, progress: Any = None) -> Fetched:
    """Fetch a model at once; its file is as old as the simulation says."""
    return cached(cache, sha256 or url.replace("/", "_"), BEGAN_S + asyncio.get_running_loop().time())


class NumberedTask(asyncio.Task[Any]):
    """A task that sets order by its number, not by its address, which differs from run to run."""

    _numbers = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class Loop(SimulatedLoop):
    """A loop without threads: what would run in one runs at once, so that every run is the same."""

    def __init__(self) -> None:
        super().__init__()
        NumberedTask._numbers = itertools.count()
        self.set_task_factory(lambda loop, coro, **context: NumberedTask(coro, loop=loop, **context))

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whoever waits for the future gets it
            future.set_exception(error)
        return future


class Broker(MemoryBroker):
    """A broker that shows each message to ``heard`` and keeps those that went down to nodes.

    ``count``: messages so far, but for the heartbeats of workers.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed)
        self.count = 0
        self.downstream: list[Packet] = []
        self.heard: Callable[[Packet], None] = lambda _: None

    def route(self, packet: Packet) -> int:
        self.count += 1
        if "/downstream/" in packet.topic:
            self.downstream = [*self.downstream[1 - KEPT :], packet]
        self.heard(packet)
        return super().route(packet)

    @property
    def kept(self) -> dict[str, bytes]:
        """All retained messages."""
        return {topic: stored.packet.payload for topic, stored in self._retained.items()}


class Workers(FakeLauncher):
    """The processes of one node. They outlive its LC.

    ``stubborn``: new ones do not end when asked to. ``heartbeat``: seconds to a worker's next report; ``period_s``:
    what workers say of it.
    """

    def __init__(self, node: str, broker: Broker) -> None:
        super().__init__()
        self.node = node
        self.broker = broker
        self.stubborn = False
        self.heartbeat: Callable[[], float] = lambda: HEARTBEAT_S
        self.period_s = 0.0
        self.on_start: Callable[[str, FakeProcess], None] = lambda _node, _process: None

    def start(self, start: Start) -> Process:
        process = super().start(start)
        assert isinstance(process, FakeProcess)
        process.stubborn = self.stubborn
        self.on_start(self.node, process)
        asyncio.get_running_loop().call_later(0.2, self._speak, process)
        return process

    def _speak(self, process: FakeProcess) -> None:
        if not process.alive:
            return
        asyncio.get_running_loop().call_later(self.heartbeat(), self._speak, process)
        if self.broker.running and process.start and not process.stopped:
            worker = process.record.worker
            info = WorkerInfo(
                name=worker.name,
                namespace=worker.namespace,
                owner_name=process.start.service.name,
                status="running",
                period_s=self.period_s,
            )
            address = topics.WORKER_INFO.at(node=self.node, ns=worker.namespace, worker=worker.name)
            self.broker.count -= 1
            self.broker.route(Packet(address.text, codec.encode(topics.WORKER_INFO, info)))


class Part:
    """GM or an LC: it runs, or it does not; it may be cut off from the broker."""

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self.broker = broker
        self.bus = MemoryBus(name, broker)
        self.task: asyncio.Task[None] | None = None
        self.cut_off = False

    @property
    def running(self) -> bool:
        return self.task is not None

    def cut(self) -> None:
        self.cut_off = True
        self.bus.cut()

    def heal(self) -> None:
        self.cut_off = False
        self.bus.heal()

    def _begin(self, run: Callable[[MemoryBus], Coroutine[Any, Any, None]]) -> None:
        self.bus = MemoryBus(self.name, self.broker)
        if self.cut_off:
            self.bus.cut()
        self.task = asyncio.get_running_loop().create_task(run(self.bus), name=self.name)

    def vanish(self, *, late_will: bool) -> Packet | None:
        """End the connection as the death of a process does; the will is returned where it is to come late."""
        link, will = self.broker.links.get(self.name), None
        if link and late_will:
            will, link.will = link.will, None
        self.bus.cut()
        return will

    async def _end(self) -> None:
        task, self.task = self.task, None
        if task:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


class Node(Part):
    """A node: an LC, its files, its processes."""

    def __init__(self, name: str, broker: Broker, home: Path, site: str) -> None:
        super().__init__(f"lc.{name}", broker)
        self.node = name
        self.home = home
        self.site = site
        self.workers = Workers(name, broker)
        self._stopping = asyncio.Event()

    def start(self) -> None:
        self._stopping = asyncio.Event()

        def run(bus: MemoryBus) -> Coroutine[Any, Any, None]:
            config = Config(self.node, self.home, "memory", {"site": self.site})
            return LocalController(config, bus, launcher=self.workers, install=plain(fetch)).run(self._stopping)

        self._begin(run)

    async def kill(self, *, late_will: bool = False) -> Packet | None:
        """End the LC; its workers stay."""
        will = self.vanish(late_will=late_will)
        await self._end()
        return will

    async def stop(self) -> None:
        """Stop the LC as SIGTERM does; its workers stop before it."""
        self._stopping.set()
        if self.task:
            await self.task
        self.task = None

    @property
    def store(self) -> Path:
        return Config(self.node, self.home, "memory").folders.store

    def worker(self, service: str, role: str) -> Worker:
        return Worker("default", f"{service}-{role}-{self.node}")


class Gm(Part):
    """The global manager and its store."""

    def __init__(self, broker: Broker, path: Path) -> None:
        super().__init__("gm", broker)
        self._path = path
        self._manager: GlobalManager | None = None
        self.cluster = LocalCluster(path)

    async def start(self) -> None:
        self.cluster = await LocalCluster(self._path).__aenter__()

        def run(bus: MemoryBus) -> Coroutine[Any, Any, None]:
            self._manager = GlobalManager(bus, self.cluster, self.cluster)
            return self._manager.run()

        self._begin(run)

    async def kill(self, *, late_will: bool = False) -> Packet | None:
        """End GM; what it has not written yet is lost."""
        will = self.vanish(late_will=late_will)
        self._manager._remember = _nothing  # type: ignore[union-attr, method-assign]
        await self.stop()
        return will

    async def stop(self) -> None:
        """Stop GM as SIGTERM does."""
        await self._end()
        await self.cluster.__aexit__(None, None, None)


async def _nothing() -> None:
    """Stand in for what a killed process does not do any more."""
