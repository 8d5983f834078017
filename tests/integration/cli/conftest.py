"""A real broker and a real global manager; the node is played by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog

from halimede import log, topics
from halimede import messages as m
from halimede.bus.message import Delivery
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from services.broker import MosquittoProcess
from services.gm.app import GlobalManager
from services.gm.cluster.local import LocalCluster
from tests.ports import free_port
from tests.waiting import patience


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in the command: log lines are not mixed into what it prints."""
    before = structlog.get_config()
    monkeypatch.setenv("HALIMEDE_LOG_LEVEL", "CRITICAL")
    log.configure()
    yield
    structlog.configure(**before)


@pytest.fixture
async def mosquitto(tmp_path: Path) -> AsyncIterator[MosquittoProcess]:
    async with MosquittoProcess(tmp_path / "broker", port=free_port()) as broker:
        yield broker


@pytest.fixture
def broker(mosquitto: MosquittoProcess) -> BrokerAddress:
    """The broker as a command finds it."""
    return BrokerAddress(MqttSettings("127.0.0.1", mosquitto.port), "the test")


@pytest.fixture
async def gm(mosquitto: MosquittoProcess, tmp_path: Path) -> AsyncIterator[None]:
    """A global manager that answers."""
    async with LocalCluster(tmp_path / "gm" / "store.db") as cluster:
        work = asyncio.create_task(GlobalManager(MqttBus("gm", mosquitto.url), cluster, cluster).run())
        yield
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


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
        await self.bus.wait_connected(patience(5))
        await self.bus.subscribe(topics.INSERT.filter(node=self.name), self._inserted)
        await self.bus.subscribe(topics.DELETE.filter(node=self.name), self._deleted)
        await self.bus.subscribe(topics.LOGS_REQUEST.filter(node=self.name), self._asked_for_logs)
        role = {f"node-role.kubernetes.io/{self.name.rstrip('0123456789')}": ""}
        presence = m.Presence(node=self.name, epoch=1, online=True, version="0.1.0", cpus=4, labels=role)
        await self.bus.publish(topics.PRESENCE.at(node=self.name), presence)
        await self.bus.publish(topics.SYNC.at(node=self.name), m.Sync(epoch=1))

    async def _inserted(self, delivery: Delivery[m.ResourceBody]) -> None:
        metadata = delivery.body["metadata"]
        names = {k: delivery.names[k] for k in ("node", "ns", "plural", "name")}
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
            names = {k: delivery.names[k] for k in ("node", "ns", "plural", "name")}
            await self.bus.clear(topics.NODE_STATUS.at(**names))
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
        found = {}
        for name in ("edge0", "cloud0"):
            bus = await stack.enter_async_context(MqttBus(f"lc-{name}", mosquitto.url))
            found[name] = Node(bus, name)
            await found[name].start()
        yield found
