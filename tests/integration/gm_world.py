"""A GM on its own store, a memory broker, and nodes whose LC is a script: what it is told, it remembers and reports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from halimede import codec, topics
from halimede.api import matches, parse, placements
from halimede.api.inferencemodel import pod, target
from halimede.api.placement import SERVICES as PLACED
from halimede.api.placement import worker_name
from halimede.bus import Announcement, Delivery, Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.ordering import SequenceNumber
from halimede.bus.rpc import RpcClient
from halimede.errors import BusError
from halimede.messages import (
    ApiReply,
    ApiRequest,
    Held,
    ModelFacts,
    ModelInUse,
    NodeStatus,
    Output,
    Presence,
    Status,
    StatusDocument,
    Sync,
    TaskInfo,
    WorkerReport,
)
from halimede.names import Key
from halimede.topic import Address
from services.gm.app import GlobalManager
from services.gm.cluster.local import LocalCluster
from tests.simulated import eventually
from tests.waiting import patience

SERVICES, MODELS, DATASETS = "jointinferenceservices", "models", "datasets"
SERVED, MULTI_EDGE = "inferencemodels", "multiedgeinferenceservices"


def resource(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "sedna.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def model(name: str, **spec: Any) -> dict[str, Any]:
    return resource("Model", name, **{"url": f"/models/{name}.onnx", "format": "onnx", **spec})


def dataset(name: str, **spec: Any) -> dict[str, Any]:
    return resource("Dataset", name, **{"url": f"/data/{name}", "format": "txt", **spec})


def template(where: Any) -> dict[str, Any]:
    """Return a worker's template for a node's name or a nodeSelector."""
    place = {"nodeName": where} if isinstance(where, str) else {"nodeSelector": where}
    return {"spec": {**place, "containers": [{"name": "worker", "image": "halimede/worker"}]}}


def service(
    name: str = "helmet", *, edge: Any = "edge0", cloud: Any = "cloud0", edge_worker: Any = None, **spec: Any
) -> dict[str, Any]:
    """``edge`` and ``cloud`` are a node's name or a nodeSelector; ``edge_worker`` has more of the edge worker."""
    rule = {"name": "Margin"}
    small = {"model": {"name": "small"}, "hardExampleMining": rule, "template": template(edge), **(edge_worker or {})}
    big = {"model": {"name": "big"}, "template": template(cloud)}
    return resource("JointInferenceService", name, **{"edgeWorker": small, "cloudWorker": big, **spec})


def multi_edge(name: str = "crossing", *, cloud: str | None = None, **workers: Any) -> dict[str, Any]:
    """Several edges; ``workers`` are called by where they are (a node's name, or what the resource says of them)."""

    def worker(called: str, said: Any) -> dict[str, Any]:
        given = {"template": template(said)} if isinstance(said, str) else said
        return {"name": called, "model": {"name": "small"}, **given}

    edges = [worker(called, said) for called, said in workers.items()]
    more = {"cloudWorker": {"template": template(cloud)}} if cloud else {}
    return resource("MultiEdgeInferenceService", name, application={"name": "balance"}, edgeWorkers=edges, **more)


def key_of(names: Mapping[str, str]) -> Key:
    return Key(names["plural"], names["ns"], names["name"])


def announcement(address: Address[Any], birth: Any, will: Any) -> Announcement:
    """Return a retained birth and will."""
    packets = (Packet(address.text, codec.encode(address.topic, body), retain=True) for body in (birth, will))
    return Announcement(*packets)


class FakeNode:
    """One node. ``log`` is every downstream message in order: ("insert", "models/small", 1), ("synced", "", count).

    ``deaf`` messages are lost before it reads them. ``overrides`` replace what it would report on a worker.
    """

    def __init__(self, broker: MemoryBroker, name: str, labels: dict[str, str] | None = None) -> None:
        self.name = name
        self.labels = labels or {}
        self.log: list[tuple[str, str, int]] = []
        self.holds: dict[Key, tuple[str, int, dict[str, Any]]] = {}
        self.tombstones: dict[str, int] = {}
        self.counts: dict[Key, TaskInfo] = {}
        self.overrides: dict[str, WorkerReport] = {}
        #: what its workers say that they have done, by what their service calls them
        self.done: dict[str, TaskInfo] = {}
        #: what it has found out about Models' files
        self.facts: dict[Key, ModelFacts] = {}
        #: reason and message of what is ready and lacks something
        self.reasons: dict[Key, tuple[str, str]] = {}
        self.deaf = 0
        self.reports = True
        self.epoch = 0
        self.gm_epoch = self._gm_connection = 0
        #: it is of a version that does not know the number of GM's connection
        self.earlier = False
        self._report_number = 0
        self._unsynced = False
        self._unreported: dict[Key, None] = {}
        self._wake = asyncio.Event()
        self.bus = MemoryBus(f"lc-{name}", broker, self._announce)
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._exit = AsyncExitStack()
        await self._exit.enter_async_context(self.bus)
        await self.bus.subscribe(topics.INSERT.filter(node=self.name), self._insert)
        await self.bus.subscribe(topics.DELETE.filter(node=self.name), self._delete)
        await self.bus.subscribe(topics.SYNCED.filter(node=self.name), self._synced)
        await self.bus.subscribe(topics.GM_PRESENCE.filter(), self._gm)
        self.bus.on_connect(self._connected)
        self._exit.callback(asyncio.create_task(self._speak_always()).cancel)
        await self.bus.wait_connected(patience(10))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._exit.aclose()

    def sent(self, *kinds: str) -> list[tuple[str, str, int]]:
        return [entry for entry in self.log if entry[0] in kinds]

    def sync(self) -> None:
        self._unsynced = True
        self._wake.set()

    def report(self, key: Key) -> None:
        self._unreported[key] = None
        self._wake.set()

    async def _speak_always(self) -> None:
        """Say what is to be said, again if it was lost."""
        while True:
            self._wake.clear()
            with contextlib.suppress(BusError):
                await self._speak()
            try:
                async with asyncio.timeout(1 if self._unsynced or self._unreported else 300):
                    await self._wake.wait()
            except TimeoutError:
                self._unsynced = True

    async def _speak(self) -> None:
        if self._unsynced:
            self._unsynced = False
            try:
                await self._send_sync()
            except BusError:
                self._unsynced = True
                raise
        for key in list(self._unreported):
            del self._unreported[key]
            try:
                if key in self.holds:
                    await self._send_report(key)
                else:
                    await self.bus.clear(self._status_topic(key))
            except BusError:
                self._unreported[key] = None
                raise

    async def _send_sync(self) -> None:
        held = [
            Held(plural=k.plural, namespace=k.namespace, name=k.name, uid=uid, generation=generation)
            for k, (uid, generation, _) in self.holds.items()
        ]
        sync = Sync(epoch=self.epoch, holds=held, deleted=list(self.tombstones))
        await self.bus.publish(topics.SYNC.at(node=self.name), sync)

    async def _send_report(self, key: Key) -> None:
        uid, generation, body = self.holds[key]
        status = NodeStatus(phase="Ready", uid=uid, observed_generation=generation)
        status.model = self.facts.get(key)
        status.reason, status.message = self.reasons.get(key, ("", ""))
        if key.plural == SERVED:
            status.workers, status.phase = list(self._servers(body)), "Running"
        if key.plural in PLACED:
            status.workers = list(self._workers(body))
            status.phase = "Running"
            if key in self.counts:
                status.output = Output(task_info=self.counts[key])
        if self.reports:
            self._report_number += 1
            stamp = SequenceNumber(self.epoch, self._report_number)
            await self.bus.publish(self._status_topic(key), status, properties=stamp.properties)

    def _workers(self, body: dict[str, Any]) -> Any:
        resource = parse(body)
        for place in placements(resource.spec):
            if matches(place.pod, self.name, self.labels):
                name = place.on(resource.metadata.name, self.name)
                said = WorkerReport(name=name, role=place.role, part=place.part, phase="Running")
                said.task_info = self.done.get(place.name)
                yield self.overrides.get(place.name) or said

    def _servers(self, body: dict[str, Any]) -> Any:
        """An InferenceModel's server takes its target version at once, unless the test says otherwise."""
        resource = parse(body)
        if matches(pod(resource.spec), self.name, self.labels):
            version = target(resource.spec)
            using = ModelInUse(digest="d" * 64, version=version.version if version else "")
            name, url = worker_name(resource.metadata.name, "serve", self.name), f"http://{self.name}:8501"
            said = WorkerReport(name=name, role="serve", phase="Running", url=url, model=using)
            yield self.overrides.get("serve") or said

    def _announce(self) -> Announcement:
        self.epoch += 1
        birth, will = (
            Presence(node=self.name, epoch=self.epoch, online=online, labels=self.labels if online else {})
            for online in (True, False)
        )
        return announcement(topics.PRESENCE.at(node=self.name), birth, will)

    async def _connected(self) -> None:
        self.sync()
        for key in list(self.holds):
            self.report(key)

    async def _gm(self, delivery: Delivery[Any]) -> None:
        gm = delivery.body
        connection = 0 if self.earlier else gm.connection
        if gm.online and (gm.epoch, connection) > (self.gm_epoch, self._gm_connection):
            self.gm_epoch, self._gm_connection = gm.epoch, connection
            self.sync()

    def _heard(self, delivery: Delivery[Any], *entry: Any) -> bool:
        if self.deaf > 0:
            self.deaf -= 1
            return False
        self.log.append(entry)  # type: ignore[arg-type]
        return int(delivery.properties["epoch"]) >= self.gm_epoch

    async def _insert(self, delivery: Delivery[Any]) -> None:
        meta, key = delivery.body["metadata"], key_of(delivery.names)
        if not self._heard(delivery, "insert", f"{key.plural}/{key.name}", meta["generation"]):
            return
        if meta["generation"] <= self.tombstones.get(meta["uid"], -1):
            return
        held = self.holds.get(key)
        if held is None or held[0] != meta["uid"] or meta["generation"] > held[1]:
            self.holds[key] = meta["uid"], meta["generation"], delivery.body
        self.report(key)

    async def _delete(self, delivery: Delivery[Any]) -> None:
        key = key_of(delivery.names)
        if not self._heard(delivery, "delete", f"{key.plural}/{key.name}", delivery.body.generation):
            return
        self.tombstones[delivery.body.uid] = delivery.body.generation
        if key in self.holds and self.holds[key][0] != delivery.body.uid:
            return
        self.holds.pop(key, None)
        self.report(key)

    async def _synced(self, delivery: Delivery[Any]) -> None:
        self._heard(delivery, "synced", "", delivery.body.count)

    def _status_topic(self, key: Key) -> Any:
        return topics.NODE_STATUS.at(node=self.name, ns=key.namespace, plural=key.plural, name=key.name)


class World:
    """One broker, one store, one GM at a time, an operator."""

    def __init__(self, folder: Path) -> None:
        self.broker = MemoryBroker()
        self.store = folder / "gm" / "store.db"
        self.bus = MemoryBus("gm", self.broker)
        self.operator = MemoryBus("operator", self.broker)
        #: nodes that the fixture ``w`` has
        self.edge: FakeNode
        self.cloud: FakeNode
        self.statuses: list[tuple[float, StatusDocument]] = []
        self._api: RpcClient[ApiReply] = RpcClient(self.operator, topics.API_REPLY.at(client="operator"))

    def node(self, name: str, **labels: str) -> FakeNode:
        return FakeNode(self.broker, name, {k.replace("__", "/"): v for k, v in labels.items()})

    @asynccontextmanager
    async def gm(self) -> AsyncIterator[LocalCluster]:
        """Run GM inside the block; leaving it is a clean stop."""
        async with LocalCluster(self.store) as cluster:
            self.bus = MemoryBus("gm", self.broker)
            self.manager = GlobalManager(self.bus, cluster, cluster)
            task = asyncio.create_task(self.manager.run())
            try:
                await self.bus.wait_connected(patience(10))
                yield cluster
            finally:
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    task.result()

    async def start_operator(self) -> None:
        await self.operator.__aenter__()
        await self._api.start()
        await self.operator.subscribe(topics.STATUS.filter(), self._status)
        await self.operator.wait_connected(patience(10))

    async def ask(self, op: Any, **fields: Any) -> ApiReply:
        """Ask until there is an answer, as clients do: every request may be repeated."""
        to = topics.API_REQUEST.at(client="operator")
        for _ in range(120):
            try:
                return (await self._api.ask(to, ApiRequest(op=op, **fields), timeout_s=5)).body
            except (BusError, TimeoutError):
                await asyncio.sleep(0.5)
        raise AssertionError(f"no answer to {op}")

    async def apply(self, *bodies: dict[str, Any]) -> None:
        for body in bodies:
            reply = await self.ask("apply", object=body)
            assert reply.error is None, reply.error

    async def deploy(self, body: dict[str, Any] | None = None) -> Status:
        """Apply a service and its Models, and return its status once it runs."""
        body = body or service()
        await self.apply(model("small"), model("big"), body)
        return await self.reaches("Running", name=body["metadata"]["name"])

    def status(self, name: str = "helmet", plural: str = SERVICES) -> StatusDocument | None:
        """The document as a monitoring tool finds it."""
        payload = self.broker.retained_payload(f"default/sedna/status/{plural}/{name}")
        return msgspec.json.decode(payload, type=StatusDocument) if payload else None

    async def reaches(
        self, phase: str, reason: str = "", *, name: str = "helmet", plural: str = SERVICES, generation: int = 0
    ) -> Any:
        """Wait until a status says so (of that generation at least), and return it."""
        last: Any = None

        def holds() -> bool:
            nonlocal last
            document = self.status(name, plural)
            last = document.status if document else None
            if last is None or last.phase != phase or last.observed_generation < generation:
                return False
            return reason in {"", last.conditions[-1].reason}

        try:
            await eventually(holds, 60)
        except AssertionError as error:
            raise AssertionError(f"{name} is not {phase} {reason} but {last}") from error
        return last

    async def _status(self, delivery: Delivery[StatusDocument]) -> None:
        self.statuses.append((asyncio.get_running_loop().time(), delivery.body))


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """A world with an operator."""
    made = World(folder)
    await made.start_operator()
    try:
        yield made
    finally:
        await made.operator.__aexit__(None, None, None)


def metric(status: Any, key: str) -> str | None:
    return next((m.value for m in status.metrics if m.key == key), None)
