"""A real broker and a real global manager; the node is played by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from halimede import codec, topics
from halimede import messages as m
from halimede.bus.message import Delivery
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.commands import apply
from halimede.cli.commands.publish import PublishPlan
from services.broker import MosquittoProcess
from services.gm.app import GlobalManager
from services.gm.cluster.local import LocalCluster
from tests.waiting import eventually, patience

DIGITS = str(Path(__file__).parents[3] / "examples" / "digits")
Output = pytest.CaptureFixture[str]


@contextlib.asynccontextmanager
async def background(work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Let a command run until the block ends, as until Ctrl-C."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def manager(broker: str | MqttSettings, store: Path, *, edits: bool = True) -> AsyncIterator[LocalCluster]:
    """Run a global manager; ``edits``: unlike one on Kubernetes."""
    async with (
        LocalCluster(store) as cluster,
        background(GlobalManager(MqttBus("gm", broker), cluster, cluster if edits else None).run()),
    ):
        yield cluster


@contextlib.asynccontextmanager
async def connected(client_id: str, broker: MosquittoProcess) -> AsyncIterator[MqttBus]:
    async with MqttBus(client_id, broker.url) as bus:
        await bus.wait_connected(patience(5))
        yield bus


@pytest.fixture(autouse=True)
def _quiet(quiet: None) -> None:
    """Commands run in this process."""


@pytest.fixture
def mosquitto(own_broker: MosquittoProcess) -> MosquittoProcess:
    return own_broker


@pytest.fixture
def broker(mosquitto: MosquittoProcess) -> BrokerAddress:
    """The broker as a command finds it."""
    return BrokerAddress(MqttSettings("127.0.0.1", mosquitto.port), "the test")


@pytest.fixture
async def gm(mosquitto: MosquittoProcess, tmp_path: Path) -> AsyncIterator[None]:
    """A global manager that answers."""
    async with manager(mosquitto.url, tmp_path / "gm" / "store.db"):
        yield


@pytest.fixture
async def client(broker: BrokerAddress, gm: None) -> AsyncIterator[Client]:
    async with Client.to(broker) as client:
        yield client


class Node:
    """What an LC says, said by hand: that it is there, what became of a resource, its workers' logs."""

    def __init__(self, bus: MqttBus, name: str) -> None:
        self.bus = bus
        self.name = name
        self.deleted = asyncio.Event()
        #: whether deletes are confirmed, as a living node does
        self.obedient = True
        self.logs: dict[str, str] = {}
        #: the digests of Models by name, and of Python files by path, that it reports
        self.digests: dict[str, str] = {}
        self.code: dict[str, str] = {}

    async def start(self) -> None:
        await self.bus.subscribe(topics.INSERT.filter(node=self.name), self._inserted)
        await self.bus.subscribe(topics.DELETE.filter(node=self.name), self._deleted)
        await self.bus.subscribe(topics.LOGS_REQUEST.filter(node=self.name), self._asked_for_logs)
        role = {f"node-role.kubernetes.io/{self.name.rstrip('0123456789')}": ""}
        presence = m.Presence(node=self.name, epoch=1, online=True, version="0.1.0", cpus=4, labels=role)
        await self.bus.publish(topics.PRESENCE.at(node=self.name), presence)
        await self.bus.publish(topics.SYNC.at(node=self.name), m.Sync(epoch=1))

    async def _inserted(self, delivery: Delivery[m.ResourceBody]) -> None:
        metadata = delivery.body["metadata"]
        names = delivery.names
        counts = m.TaskInfo(inference_number=10, edge_inference_number=8, cloud_inference_number=2)
        role = "edge" if self.name.startswith("edge") else "cloud"
        worker = m.WorkerReport(name=f"{names['name']}-{role}-{self.name}", role=role, phase="Running")  # type: ignore[arg-type]
        service = names["plural"] == "jointinferenceservices"
        status = m.NodeStatus(
            phase="Running" if service else "Ready",
            uid=metadata["uid"],
            observed_generation=metadata["generation"],
            output=m.Output(task_info=counts) if service and role == "edge" else None,
            workers=[worker] if service else [],
            code=self.code if service else {},
            model=m.ModelFacts(digest=digest) if (digest := self.digests.get(names["name"])) else None,
        )
        await self.bus.publish(topics.NODE_STATUS.at(**names), status)

    async def _deleted(self, delivery: Delivery[m.Delete]) -> None:
        if self.obedient:
            await self.bus.clear(topics.NODE_STATUS.at(**delivery.names))
        self.deleted.set()

    async def _asked_for_logs(self, delivery: Delivery[m.LogsRequest]) -> None:
        request = delivery.body
        text = self.logs.get(request.worker)
        if text is None:
            reply = m.LogsReply(error=f"there is no worker {request.worker} on this node")
        else:
            start = max(0, len(text) + request.offset) if request.offset < 0 else request.offset
            start = start if start <= len(text) else 0  # it was rotated
            part = text[start : start + request.limit]
            reply = m.LogsReply(text=part, offset=start + len(part))
        await self.bus.reply(delivery, topics.LOGS_REPLY, reply)


@pytest.fixture
async def nodes(mosquitto: MosquittoProcess, gm: None) -> AsyncIterator[dict[str, Node]]:
    """An edge node and a cloud node."""
    async with contextlib.AsyncExitStack() as stack:
        nodes = {}
        for name in ("edge0", "cloud0"):
            nodes[name] = Node(await stack.enter_async_context(connected(f"lc-{name}", mosquitto)), name)
            await nodes[name].start()
        yield nodes


@pytest.fixture
async def digits_running(broker: BrokerAddress, client: Client, nodes: dict[str, Node], capsys: Output) -> None:
    """The service of digits runs on both nodes, and nothing is printed yet."""
    await apply.apply_manifests(broker, [DIGITS], "")
    await running(client)
    capsys.readouterr()


async def running(client: Client) -> None:
    def is_running(body: dict[str, Any] | None) -> bool:
        return ((body or {}).get("status") or {}).get("phase") == "Running"

    assert await client.wait_until(is_running, "jointinferenceservices", "digits", timeout_s=patience(10))


class Printed:
    """All that a command that still runs has printed."""

    def __init__(self, capsys: Output) -> None:
        self._capsys = capsys
        self._out = self._err = ""

    def _read(self) -> None:
        out, err = self._capsys.readouterr()
        self._out, self._err = self._out + out, self._err + err

    @property
    def out(self) -> str:
        self._read()
        return self._out

    @property
    def err(self) -> str:
        self._read()
        return self._err


@pytest.fixture
def printed(capsys: Output) -> Printed:
    return Printed(capsys)


class Reader:
    """An edge worker's ear."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    async def __call__(self, delivery: Delivery[bytes]) -> None:
        self.payloads.append(bytes(delivery.body))

    async def frames(self, count: int) -> list[m.Frame]:
        await eventually(lambda: len(self.payloads) >= count)
        return [codec.decode(topics.REQUEST, payload) for payload in self.payloads]


@pytest.fixture
async def bus(mosquitto: MosquittoProcess) -> AsyncIterator[MqttBus]:
    async with connected("reader", mosquitto) as bus:
        yield bus


@pytest.fixture
async def reader(bus: MqttBus) -> Reader:
    reader = Reader()
    await bus.subscribe(topics.CAMERA_FRAME.filter(camera="cam0"), reader)
    return reader


def plan(*paths: str, **changes: Any) -> PublishPlan:
    options = {"camera": "cam0", "namespace": "default", "fps": 0.0, "rounds": 1, "qos": 1, "bare": False}
    return PublishPlan(paths, **options | changes)
