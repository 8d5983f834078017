"""The control plane on a real Mosquitto: GM and LCs in this process or as processes, workers as processes, an operator.

Workers are scripts that only live, so a test can tell by their pids what was left alone. They carry the folder of their
test in their environment, so nothing of one test is ever taken for another's, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp
import psutil
import pytest

from examples.digits import data
from halimede import topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.bus.rpc import RpcClient
from halimede.errors import BusError
from halimede.messages import ApiReply, ApiRequest, Event, NodeInfo, Presence, Status, StatusDocument
from services.broker import MosquittoProcess
from services.gm.app import GlobalManager
from services.gm.cluster.local import LocalCluster
from services.lc.app import Config, LocalController
from tests.integration.gm_world import SERVICES, model, service
from tests.integration.workers import PREPROCESS, train
from tests.ports import free_port
from tests.scraping import asked
from tests.typed import halimede
from tests.waiting import eventually, patience

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
#: seconds: what any single fault may cost; and how long a test waits where no promise is made
CONVERGES, PATIENCE = 15.0, 40.0
MARK = "HALIMEDE_TEST_HOME"
STEADY = """
import signal, sys, threading
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    threading.Event().wait(3600)
"""


class Child:
    """A GM or LC as a process of its own."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str]) -> None:
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **env}, stdout=file, stderr=file, start_new_session=True
            )

    def says(self, words: str) -> bool:
        return words in self.log.read_text(errors="replace")

    @property
    def http(self) -> str:
        """Where it shows its health, by its log."""
        return "http://" + self.log.read_text().rpartition('"http": "http://')[2].partition('"')[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    async def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, patience(PATIENCE))


async def readiness(url: str) -> tuple[int, dict[str, str]]:
    """Return the status and the checks of a process's ``/readyz``, as a kubelet asks for them."""
    async with aiohttp.ClientSession() as session:
        return await asked(session, url, "readyz")


class Control:
    """A broker of its own, whoever is started on it, and an operator who sees what operators see.

    All that was started ends with the stack.
    """

    def __init__(self, folder: Path, broker: MosquittoProcess, stack: AsyncExitStack) -> None:
        self.folder, self.broker, self.home = folder, broker, folder / "home"
        self.statuses: dict[str, Status] = {}
        self.presences: list[Presence] = []
        self.operator = MqttBus("operator", broker.url)
        self._stack = stack
        self._api: RpcClient[ApiReply] = RpcClient(self.operator, topics.API_REPLY.at(client="operator"))

    async def start(self) -> Self:
        (self.folder / "steady.py").write_text(STEADY)
        for name in ("small", "big"):
            (self.folder / f"{name}.onnx").write_bytes(b"a model")
        self._stack.callback(self._end_all)
        await self._stack.enter_async_context(self.operator)
        await self._api.start()
        await self.operator.subscribe(topics.STATUS.filter(plural=SERVICES), self._on_status, cleared=self._on_cleared)
        await self.operator.subscribe(topics.PRESENCE.filter(), self._on_presence)
        await self.operator.wait_connected(patience(PATIENCE))
        return self

    # --- who takes part -------------------------------------------------------------------------------------------

    def settings(self, port: int = 0, **options: Any) -> MqttSettings:
        return MqttSettings(HOST, port or self.broker.port, **options)

    @asynccontextmanager
    async def gm(self, settings: MqttSettings | None = None) -> AsyncIterator[MqttBus]:
        """Run the real GM in this process; leaving it is a clean stop."""
        async with LocalCluster(self.home / "gm" / "store.db") as cluster:
            bus = MqttBus("halimede-gm", settings or self.settings())
            task = asyncio.create_task(GlobalManager(bus, cluster, cluster).run())
            try:
                await bus.wait_connected(patience(PATIENCE))
                yield bus
            finally:
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    task.result()

    @asynccontextmanager
    async def lc(
        self, settings: MqttSettings | None = None, node: str = "edge0", *, killed: bool = False
    ) -> AsyncIterator[MqttBus]:
        """Run the real LC in this process; leaving it is a clean stop, or (``killed``) leaves its workers running."""
        bus = MqttBus(f"lc.{node}", settings or self.settings())
        controller, stopping = LocalController(Config(node, self.home, self.broker.url), bus), asyncio.Event()
        task = asyncio.create_task(controller.run(stopping))
        try:
            await bus.wait_connected(patience(PATIENCE))
            yield bus
        finally:
            if killed:
                task.cancel()
            stopping.set()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def gm_process(self, *, store: Path | None = None, port: int = 0, **env: str) -> Child:
        store = store or self.home / "gm"
        return self._child("gm", ["--store", str(store)], env, port, name=store.name)

    def lc_process(
        self, node: str = "edge0", *, home: Path | None = None, port: int = 0, labels: Sequence[str] = (), **env: str
    ) -> Child:
        arguments = ["--node", node, "--home", str(home or self.home)]
        arguments += [word for label in labels for word in ("--label", label)]
        return self._child("lc", arguments, env, port, name=f"lc-{(home or self.home).name}")

    def _child(self, what: str, arguments: list[str], env: dict[str, str], port: int = 0, name: str = "") -> Child:
        broker = f"mqtt://{HOST}:{port or self.broker.port}"
        command = [sys.executable, "-m", "halimede", what, *arguments, "--broker", broker]
        own = {MARK: str(self.folder), "HALIMEDE_LOG": "json", "HALIMEDE_HTTP": f"{HOST}:0"}
        return Child(command, self.folder / f"{name or what}.log", own | env)

    # --- what is asked of it --------------------------------------------------------------------------------------

    async def ask(self, op: Any, **fields: Any) -> ApiReply:
        """Ask until there is an answer, as clients do: every request may be repeated."""
        to = topics.API_REQUEST.at(client="operator")
        end = time.monotonic() + patience(PATIENCE)
        while time.monotonic() < end:
            try:
                return (await self._api.ask(to, ApiRequest(op=op, **fields), timeout_s=3)).body
            except (BusError, TimeoutError):
                await asyncio.sleep(0.3)
        raise AssertionError(f"no answer to {op}")

    async def apply(self, *bodies: dict[str, Any]) -> None:
        for body in bodies:
            reply = await self.ask("apply", object=body)
            assert reply.error is None, reply.error

    async def delete(self, name: str) -> None:
        reply = await self.ask("delete", plural=SERVICES, namespace="default", name=name)
        assert reply.error is None, reply.error

    async def events(self, reason: str, about: str = "") -> list[Event]:
        found = (await self.ask("events")).events
        return [event for event in found if event.reason == reason and about in event.about]

    async def node(self, name: str = "edge0") -> NodeInfo:
        return next(node for node in (await self.ask("nodes")).nodes if node.name == name)

    async def stored(self, name: str, plural: str = SERVICES) -> dict[str, Any]:
        """Return a resource as GM has it; empty for one that it does not have."""
        return (await self.ask("get", plural=plural, namespace="default", name=name)).object or {}

    async def epoch(self) -> int:
        return int((await self.ask("version")).value["epoch"])

    async def halimede(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Type a command, as an operator does."""
        env = {**os.environ, "HALIMEDE_BROKER": self.broker.url, "COLUMNS": "1000"}
        return await asyncio.to_thread(halimede, *words, env=env)

    async def status_names(self, *words: str) -> str:
        """Wait until `halimede status` ends with 1 and has all these words: as soon as any fault has to be named."""
        return await self.status(1, lambda text: all(word in text for word in words), CONVERGES)

    async def status_is_well(self) -> None:
        """Wait until `halimede status` ends with 0."""
        await self.status(0, lambda _: True, PATIENCE)

    async def status(self, code: int, holds: Callable[[str], bool], within_s: float) -> str:
        """Wait until `halimede status` ends with a code and what it prints holds; return that."""
        text = errors = ""

        async def is_so() -> bool:
            nonlocal text, errors
            ended = await self.halimede("status")
            text, errors = ended.stdout, ended.stderr
            return ended.returncode == code and holds(text)

        await eventually(is_so, within_s, 0.3, lambda: text + errors)
        return text

    async def start_services(self, *names: str, generation: int = 1) -> None:
        """Apply the models and services of these names, and wait until they run."""
        await self.apply(*self.models(), *(self.service(name) for name in names))
        await self.running(*names, generation=generation)

    def models(self, **spec: Any) -> list[dict[str, Any]]:
        return [model(name, url=str(self.folder / f"{name}.onnx"), **spec) for name in ("small", "big")]

    def real_models(self) -> list[dict[str, Any]]:
        """Models of digits; ``trained`` has put the files where they are."""
        output = {"output": "probabilities"}
        return self.models(labels=list("0123456789"), preprocess=PREPROCESS, postprocess=output)

    def real_service(self, *, edge: dict[str, str], cloud: dict[str, str], **spec: Any) -> dict[str, Any]:
        """The service ``digits`` of our own workers, each with more of an environment; ``spec`` is of the edge's."""
        body = self.service("digits")
        for role, env in (("edgeWorker", edge), ("cloudWorker", cloud)):
            told = {MARK: str(self.folder), "OMP_NUM_THREADS": "1", **env}
            container = {"name": "w", "image": "halimede/worker"}
            container |= {"env": [{"name": name, "value": value} for name, value in told.items()]}
            body["spec"][role]["template"]["spec"]["containers"] = [container]
        body["spec"]["edgeWorker"] |= spec
        return body

    def trained(self) -> list[bytes]:
        """Train the models, put them where the manifests look for them, and return pictures that they have not seen."""
        _, _, split = train(self.folder)
        return [data.to_png(image) for image in split.test_x]

    def service(self, name: str, *arguments: str, node: str = "edge0") -> dict[str, Any]:
        """A service with both workers on one node, as scripts; other arguments make another generation."""

        body = service(name, edge=node, cloud=node)
        env = [{"name": MARK, "value": str(self.folder)}]
        container = {"command": ["python3", "steady.py", *arguments], "workingDir": str(self.folder), "env": env}
        for role in ("edgeWorker", "cloudWorker"):
            body["spec"][role]["template"]["spec"]["containers"] = [{"name": "w", **container}]
        return body

    # --- what is seen of it ---------------------------------------------------------------------------------------

    def workers(self, service: str = "") -> dict[str, int]:
        """The pids of all workers of this test that run now, by worker name."""
        found = {}
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                name = process.environ().get("WORKER_NAME", "")
                if name and name.startswith(service):
                    assert name not in found, f"{name} runs twice"
                    found[name] = process.pid
        return found

    def memory(self, *children: Child) -> dict[str, int]:
        """Resident bytes of controllers and workers."""
        pids = {child.log.stem: child.process.pid for child in children} | self.workers()
        return {name: int(psutil.Process(pid).memory_info().rss) for name, pid in pids.items()}

    def phase(self, name: str) -> str:
        return self.statuses[name].phase if name in self.statuses else ""

    async def until(self, holds: Callable[[], Any], within_s: float = PATIENCE) -> None:
        await eventually(holds, within_s, 0.05, lambda: f"workers {self.workers()}; statuses {self.statuses}")

    async def running(self, *services: str, generation: int = 1, within_s: float = PATIENCE) -> None:
        def all_run() -> bool:
            shown = [self.statuses.get(name) for name in services]
            phases = [s is not None and s.phase == "Running" and s.observed_generation >= generation for s in shown]
            return all(phases) and all(len(self.workers(name)) == 2 for name in services)

        await self.until(all_run, within_s)

    @asynccontextmanager
    async def converging(self) -> AsyncIterator[None]:
        """All that is waited for in the block has to come true within the time that any single fault may cost."""
        began = time.monotonic()
        yield
        took = time.monotonic() - began
        assert took <= patience(CONVERGES), f"it took {took:.1f} s"

    async def gone(self, service: str, within_s: float = PATIENCE) -> None:
        await self.until(lambda: service not in self.statuses and not self.workers(service), within_s)

    def _processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == str(self.folder):
                    found.append(process)
        return found

    def _end_all(self) -> None:
        for _ in range(3):  # a controller may just be starting another worker
            for process in self._processes():
                with contextlib.suppress(psutil.Error):
                    process.kill()

    async def _on_status(self, delivery: Delivery[StatusDocument]) -> None:
        self.statuses[delivery.names["name"]] = delivery.body.status

    async def _on_cleared(self, names: Any) -> None:
        self.statuses.pop(names["name"], None)

    async def _on_presence(self, delivery: Delivery[Presence]) -> None:
        self.presences.append(delivery.body)


@asynccontextmanager
async def control(folder: Path) -> AsyncIterator[Control]:
    """A control plane on a broker of its own; everything that was started ends with the block."""
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(MosquittoProcess(folder / "broker", port=free_port()))
        yield await Control(folder, broker, stack).start()


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Control]:
    """A control plane of a test's own; nobody is started on it yet."""
    async with control(tmp_path) as made:
        yield made
