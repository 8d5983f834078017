"""A service of the black-box suite: workers as they run, and all that can be seen of them from outside.

Workers run in this process by their stable entry points. What they do is read from what they publish and from their
metrics alone, so that no test depends on how a worker is built.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp
import numpy as np

from halimede import codec, topics
from halimede.bus import Delivery
from halimede.messages import DeadLetter, Frame, Load, ModelInUse, Peer, Result, TaskInfo, WorkerInfo
from halimede.multiedge.roles import joint, member
from halimede.multiedge.settings import read_member
from halimede.topic import Address, Topic
from halimede.worker.bootstrap import serve
from halimede.worker.joint_inference import joint_inference
from halimede.worker.settings import read
from halimede.worker.tier_worker import tier
from tests.blackbox.buses import Buses
from tests.scraping import scrape, value
from tests.waiting import eventually, patience

Kind = Literal["edge", "cloud", "tier", "member", "joint"]
SERVICE = "svc"
CAMERA = "cam0"
#: seconds that a test waits for what must come
PATIENCE = 20.0
#: seconds between two requests for a worker's metrics
SCRAPE_S = 0.02
MARGIN = {"HEM_NAME": "Margin", "HEM_PARAMETERS": json.dumps([{"key": "threshold_margin", "value": "0.2"}])}


def frame(value: int, side: int = 4, **fields: Any) -> Frame:
    """Return a grey frame of one value, uncompressed."""
    made: dict[str, Any] = {
        "id": secrets.token_bytes(16), "encoding": "raw", "dtype": "uint8", "shape": [side, side],
        "data": memoryview(np.full((side, side), value, np.uint8).tobytes()),
    }  # fmt: skip
    return Frame(**{**made, **fields})


def packed(body: Frame) -> bytes:
    """Return a frame as a camera publishes it."""
    return codec.encode(topics.REQUEST, body)


@dataclass
class Running:
    """A worker that runs."""

    name: str
    stop: asyncio.Event
    task: asyncio.Task[None]
    world: World

    async def end(self) -> None:
        """Stop the worker in good order; return when it has ended."""
        self.stop.set()
        await self.task

    def crash(self) -> None:
        """Let nothing leave the worker any more, and begin to end it."""
        self.world.buses.cut(self.name)
        self.task.cancel()

    async def kill(self) -> None:
        """End the worker as a crash does; return when it has ended."""
        self.crash()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


class World:
    """One service in a namespace of its own: its workers, its cameras, and whoever reads what is published."""

    def __init__(self, buses: Buses, namespace: str, folder: Path, http: aiohttp.ClientSession) -> None:
        self.buses, self.namespace, self.folder = buses, namespace, folder
        #: the first result of each frame, in the order of their arrival, and how many results each frame had
        self.results: dict[str, Result] = {}
        self.copies: Counter[str] = Counter()
        #: contents of repeated results that differ from the first
        self.contradictions: list[Result] = []
        self.infos: dict[str, list[WorkerInfo]] = {}
        self.loads: dict[str, Load] = {}
        self.peers: dict[str, Peer] = {}
        self.letters: list[DeadLetter] = []
        self._http = http

    async def start_observing(self) -> None:
        """Connect, and read all that the service publishes."""
        self.client = await self.buses.client(f"observer.{self.namespace}")
        names = {"ns": self.namespace}
        await self.client.subscribe(topics.RESULT.filter(**names), self._on_result)
        await self.client.subscribe(topics.MULTI_RESULT.filter(**names), self._on_result)
        await self.client.subscribe(topics.WORKER_INFO.filter(**names), self._on_info)
        await self.client.subscribe(topics.LOAD.filter(**names), self._on_load, cleared=self._on_load_cleared)
        await self.client.subscribe(topics.PEER.filter(**names), self._on_peer, cleared=self._on_peer_cleared)
        await self.client.subscribe(topics.DEAD_LETTER.filter(), self._on_letter)

    async def _on_result(self, delivery: Delivery[Result]) -> None:
        result = delivery.body
        self.copies[result.id] += 1
        if self.results.setdefault(result.id, result) != result:
            self.contradictions.append(result)

    async def _on_info(self, delivery: Delivery[WorkerInfo]) -> None:
        self.infos.setdefault(delivery.body.name, []).append(delivery.body)

    async def _on_load(self, delivery: Delivery[Load]) -> None:
        self.loads[delivery.names["worker"]] = delivery.body

    async def _on_load_cleared(self, names: Mapping[str, str]) -> None:
        self.loads.pop(names["worker"], None)

    async def _on_peer(self, delivery: Delivery[Peer]) -> None:
        self.peers[delivery.names["worker"]] = delivery.body

    async def _on_peer_cleared(self, names: Mapping[str, str]) -> None:
        self.peers.pop(names["worker"], None)

    async def _on_letter(self, delivery: Delivery[DeadLetter]) -> None:
        if self.namespace in delivery.body.client:
            self.letters.append(delivery.body)

    async def restart_broker(self) -> None:
        """Kill the broker and start it empty; return when results are read again."""
        back = asyncio.Event()

        async def connected() -> None:
            back.set()

        self.client.on_connect(connected)
        self.loads.clear()
        await self.buses.restart()
        async with asyncio.timeout(patience(PATIENCE)):
            await back.wait()

    # --- workers --------------------------------------------------------------------------------------------------

    def environ(self, kind: Kind, name: str, **changes: str) -> dict[str, str]:
        """Return the environment of a worker, as the local controller sets it."""
        environ = {
            "NAMESPACE": self.namespace, "SERVICE_NAME": SERVICE, "SERVICE_UID": "u-1", "WORKER_NAME": name,
            "NODE_NAME": f"node-{name}", "MODEL_URL": "/none",
            "MODEL_SPEC": json.dumps({"url": "/none", "format": "python"}), "HALIMEDE_STATE": str(self.folder / name),
            "LC_PERIOD": "0.05", "GRACE_S": "10",
        }  # fmt: skip
        if kind in {"edge", "tier"}:
            environ |= MARGIN
        if kind in {"edge", "member"}:
            environ |= {"SOURCE": json.dumps({"cameras": [CAMERA]}), "DEADLINE_MS": "10000"}
        if kind == "joint":
            environ |= {"MODEL_URL": "", "MODEL_SPEC": ""}
        if kind == "tier":
            environ |= {"TIER": "gate", "NEXT_TIER": "cloud"}
        return {**environ, **changes}

    async def start(self, kind: Kind, name: str, estimator: object | None = None, **changes: str) -> Running:
        """Start a worker; return when it takes samples."""
        environ, own = self.environ(kind, name, **changes), estimator is not None
        if kind in {"member", "joint"}:
            of_member = read_member("member" if kind == "member" else "joint", environ, own_estimator=own)
            settings, job = of_member.worker, (member if kind == "member" else joint)(of_member)
        elif kind == "tier":
            settings = read("cloud", environ, own_estimator=own, mines=True)
            job = tier(settings)
        else:
            settings = read("edge" if kind == "edge" else "cloud", environ, own_estimator=own)
            job = joint_inference(settings)
        self.infos.pop(name, None)
        stop, connect = asyncio.Event(), await self.buses.connect_of(name)
        task = asyncio.create_task(serve(settings, connect, stop, estimator, job))
        running = Running(name, stop, task, self)
        await eventually(lambda: task.done() or self._ready(kind, name))
        if task.done():
            await task
        return running

    def _ready(self, kind: Kind, name: str) -> bool:
        present = {
            "edge": True, "cloud": name in self.loads, "tier": name in self.loads, "member": name in self.peers,
            "joint": name in self.peers,
        }  # fmt: skip
        return self.status(name) == "running" and present[kind]

    @contextlib.asynccontextmanager
    async def worker(
        self, kind: Kind, name: str, estimator: object | None = None, **changes: str
    ) -> AsyncIterator[Running]:
        """Run a worker within the block; it drains at its end."""
        running = await self.start(kind, name, estimator, **changes)
        try:
            yield running
        finally:
            if not running.task.done():
                await running.end()

    @contextlib.asynccontextmanager
    async def pair(self, cloud: object, edge: object, **changes: str) -> AsyncIterator[None]:
        """Run a cloud worker ``c0``, and an edge worker ``e0`` with ``changes`` that knows it."""
        async with self.worker("cloud", "c0", cloud), self.worker("edge", "e0", edge, **changes):
            await self.knows("e0", "c0")
            yield

    # --- what is seen of them -------------------------------------------------------------------------------------

    def status(self, name: str) -> str:
        """Return what a worker last reported of itself."""
        return self.infos[name][-1].status if name in self.infos else ""

    def counts(self, name: str) -> TaskInfo:
        """Return the counts of a worker's last report."""
        return next((info.task_info for info in reversed(self.infos.get(name, [])) if info.task_info), TaskInfo())

    def model(self, name: str) -> ModelInUse:
        """Return which model a worker last reported."""
        return self.infos[name][-1].model or ModelInUse()

    async def metric(self, worker: str, name: str, **labels: str) -> float:
        """Return one of a worker's metrics."""
        return value(await scrape(self._http, self.infos[worker][-1].http), f"halimede_worker_{name}", **labels)

    async def holds(self, edge: str, frames: int) -> None:
        """Wait until an edge worker has accepted so many frames that are not answered yet."""

        async def accepted() -> bool:
            return await self.metric(edge, "queued_frames") == frames

        await eventually(accepted, every_s=SCRAPE_S)

    async def knows(self, worker: str, *others: str) -> None:
        """Wait until a worker has read the load of those that it asks."""
        for other in others:

            async def has_credits(cloud: str = other) -> bool:
                return await self.metric(worker, "cloud_credits", cloud_worker=cloud) > 0

            await eventually(has_credits, every_s=SCRAPE_S)

    # --- frames ---------------------------------------------------------------------------------------------------

    async def publish(self, payload: bytes, camera: str = CAMERA, qos: int = 1) -> None:
        """Publish a camera's frame; a frame that no worker has subscribed to is published again."""

        async def taken() -> bool:
            return await self.client.publish(self.camera(camera), payload, qos=qos)

        await eventually(taken)

    async def send(self, value: int, camera: str = CAMERA, **fields: Any) -> str:
        """Publish a frame of one grey value; return its id as results have it."""
        body = frame(value, **fields)
        await self.publish(packed(body), camera)
        return body.id.hex()

    async def result(self, id_: str) -> Result:
        """Return the result of a frame."""
        await eventually(lambda: id_ in self.results)
        return self.results[id_]

    async def ask(self, value: int, camera: str = CAMERA, **fields: Any) -> Result:
        """Publish a frame and return its result."""
        return await self.result(await self.send(value, camera, **fields))

    async def answered(self, ids: list[str]) -> list[Result]:
        """Return the results of frames; each has exactly one."""
        await eventually(lambda: self.results.keys() >= set(ids))
        assert {self.copies[id_] for id_ in ids} == {1}
        return [self.results[id_] for id_ in ids]

    def camera(self, camera: str = CAMERA) -> Address[bytes]:
        """Return the topic of a camera."""
        return topics.CAMERA_FRAME.at(ns=self.namespace, camera=camera)

    def address(self, topic: Topic[Any], worker: str = "") -> Address[Any]:
        """Return a topic of this service."""
        names = {"ns": self.namespace, "service": SERVICE} | ({"worker": worker} if worker else {})
        return topic.at(**names)
