"""Edge and cloud workers as they run, over a broker in memory, with estimators that can be told by their answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np

from halimede import topics
from halimede.api.jointinference import FrameSourceSpec
from halimede.api.model import ModelSpec
from halimede.bus import Delivery
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.rpc import RpcClient
from halimede.cli.commands.trace import ask
from halimede.frames import new_frame, pack
from halimede.messages import DeadLetter, Frame, Result, TraceReply, TraceRequest, WorkerInfo
from halimede.models.desired_state import Desired, DesiredModel, write
from halimede.topic import Filter
from halimede.worker.bootstrap import serve
from halimede.worker.roles import RoleJob
from halimede.worker.settings import Role, WorkerSettings
from tests.simulated import eventually

NS, SERVICE = "default", "helmet"
EASY, HARD, UNSURE, BREAKS_SMALL, BREAKS_BOTH = 10, 150, 160, 201, 202


class Small:
    """Sure of dark pictures only."""

    def predict(self, data: Any) -> dict[str, Any]:
        value = int(np.asarray(data).flat[0])
        if value in {BREAKS_SMALL, BREAKS_BOTH}:
            raise RuntimeError("too bright for the small model")
        sure = [0.9, 0.1] if value < 100 else [0.55, 0.45]
        return {"label": "small", "probabilities": sure}


class Big:
    """Knows everything, but one thing."""

    def predict(self, data: Any) -> dict[str, Any]:
        if int(np.asarray(data).flat[0]) == BREAKS_BOTH:
            raise RuntimeError("too bright for the big model, too")
        return {"label": "big", "probabilities": [0.99, 0.01]}


class World:
    """One broker, the workers on it, a camera, a consumer, and a local controller's ear."""

    def __init__(self, folder: Path, broker: MemoryBroker | None = None) -> None:
        self.folder = folder
        self.broker = broker or MemoryBroker()
        self.results: dict[str, Result] = {}
        self.copies: Counter[str] = Counter()
        self.infos: dict[str, list[WorkerInfo]] = {}
        self.letters: list[DeadLetter] = []
        self.buses: dict[str, MemoryBus] = {}
        self.camera: MemoryBus
        #: connections with this in their client id do not reach the broker until they are healed
        self.cut = ""

    async def on_result(self, delivery: Delivery[Result]) -> None:
        self.copies[delivery.body.id] += 1
        self.results.setdefault(delivery.body.id, delivery.body)

    async def listen(self, camera: MemoryBus) -> None:
        async def info(delivery: Delivery[WorkerInfo]) -> None:
            self.infos.setdefault(delivery.body.name, []).append(delivery.body)

        async def letter(delivery: Delivery[DeadLetter]) -> None:
            self.letters.append(delivery.body)

        self.camera = camera
        await camera.wait_connected(1)
        await camera.subscribe(topics.RESULT.filter(), self.on_result)
        await camera.subscribe(topics.WORKER_INFO.filter(), info)
        await camera.subscribe(topics.DEAD_LETTER.filter(), letter)

    def connect(self, client_id: str, *, receive_maximum: int | None = None, **options: Any) -> MemoryBus:
        bus = MemoryBus(client_id, self.broker, receive_maximum=receive_maximum or 1000, **options)
        self.buses[client_id] = bus
        if self.cut and self.cut in client_id:
            bus.cut()
        return bus

    def settings(self, role: Role, worker: str, **changes: Any) -> WorkerSettings:
        values: dict[str, Any] = {
            "role": role, "namespace": NS, "service": SERVICE, "worker": worker, "node": f"node-{worker}", "uid": "u-1",
            "model_path": "", "model": ModelSpec(url="/none", format="python"), "estimator": "", "broker": "",
            "state": self.folder / worker, "period_s": 1.0, "grace_s": 10.0, "hem_name": "Margin",
            "hem_parameters": {"threshold_margin": "0.2"}, "source": FrameSourceSpec(cameras=["cam0"]),
            "deadline_s": 2.0,
        }  # fmt: skip
        return WorkerSettings(**{**values, **changes})

    def worker(
        self, role: Role, name: str, estimator: object | None = None, **changes: Any
    ) -> AbstractAsyncContextManager[asyncio.Event]:
        """Run a worker within the block. It has an estimator, unless its settings name the file of a model."""
        if estimator is None and "model_path" not in changes:
            estimator = Small if role == "edge" else Big
        return self.run(self.settings(role, name, **changes), estimator)

    @contextlib.asynccontextmanager
    async def run(
        self, settings: WorkerSettings, estimator: object | None, job: RoleJob | None = None
    ) -> AsyncIterator[asyncio.Event]:
        """Run what has these settings within the block; it drains at the end, unless ``stop`` was set before."""
        stop = asyncio.Event()
        running = asyncio.create_task(serve(settings, self.connect, stop, estimator, job))
        await eventually(lambda: running.done() or self.status(settings.worker) == "running")
        if running.done():
            await running
        await asyncio.sleep(0.2 if settings.role == "cloud" else 0)  # its load travels
        try:
            yield stop
        finally:
            stop.set()
            await running

    def status(self, name: str) -> str:
        return self.infos[name][-1].status if name in self.infos else ""

    def info(self, name: str) -> Any:
        return self.infos[name][-1].task_info

    async def send(self, value: int, camera: str = "cam0", file: str = "", **options: Any) -> str:
        """Send one frame of a value; return its id."""
        frame = new_frame(np.full((4, 4), value, np.uint8), **options)
        frame.file = file
        return await self.show(frame, camera)

    async def show(self, frame: Frame, camera: str = "cam0", qos: int = 1) -> str:
        """Send one frame; return its id."""
        await self.camera.publish(topics.CAMERA_FRAME.at(ns=NS, camera=camera), pack(frame), qos=qos)
        return frame.id.hex()

    async def hears(self, filter_: Filter[Any]) -> list[Any]:
        """Return a list of what is said on some topics from now on."""
        bodies: list[Any] = []

        async def keep(delivery: Delivery[Any]) -> None:
            bodies.append(delivery.body)

        await self.camera.subscribe(filter_, keep)
        return bodies

    async def silent_cloud(self) -> list[Any]:
        """Take what the cloud is asked, and never answer; return a list of it."""
        return await self.hears(topics.REQUEST.filter(group="x", ns=NS, service=SERVICE))

    async def trace(self, id_: str) -> list[TraceReply]:
        """Return what the workers have recorded of a frame."""
        rpc = RpcClient(self.camera, topics.TRACE_REPLY.at(client=self.camera.client_id))
        await rpc.start()
        return await ask(rpc, TraceRequest(id=id_))

    async def answer(self, id_: str) -> Result:
        await eventually(lambda: id_ in self.results)
        return self.results[id_]


class Named:
    """Answers with the content of its file. It is sure of dark pictures only, and cannot load a file that is bad."""

    open = 0  # of the worker that was told last

    def load(self, model_url: str) -> None:
        self.label = Path(model_url).read_text()
        if self.label == "bad":
            raise RuntimeError("this is no model")
        Named.open += 1

    def predict(self, data: Any) -> dict[str, Any]:
        return {**Small().predict(data), "label": self.label}

    def close(self) -> None:
        Named.open -= 1


class ToldWorker:
    """A worker that is told its models, and what it says of the one in use."""

    def __init__(self, w: World, name: str) -> None:
        self.w, self.name, self.file = w, name, w.folder / name / "model.json"

    @property
    def in_use(self) -> Any:
        return self.w.infos[self.name][-1].model

    def desired(self, label: str, percent: int = 100, *, decode: str = "exact", **fields: Any) -> DesiredModel:
        path = self.w.folder / f"{label}.model"
        path.write_text(label)
        return DesiredModel(
            name="m", path=str(path), version=f"v-{label}", digest=label * 8, canary_percent=percent,
            spec={"format": "python", "decode": decode}, **fields,
        )  # fmt: skip

    def tell(self, model: DesiredModel) -> None:
        write(self.file, Desired(models=[model]))

    async def follow(self, model: DesiredModel) -> DesiredModel:
        """Tell it a model, and wait until it has taken or refused that."""
        self.tell(model)
        await eventually(lambda: self.in_use and self.in_use.mark == model.fingerprint)
        return model

    async def use(self, label: str, percent: int = 100, **fields: Any) -> DesiredModel:
        return await self.follow(self.desired(label, percent, **fields))


@contextlib.asynccontextmanager
async def telling(w: World, role: Role = "edge", **changes: Any) -> AsyncIterator[ToldWorker]:
    """Run the worker e0 or c0, which is told model "a" first."""
    Named.open = 0
    worker = ToldWorker(w, "e0" if role == "edge" else "c0")
    first = worker.desired("a")
    worker.tell(first)
    async with w.worker(role, worker.name, Named, model_file=worker.file, **changes):
        await worker.follow(first)
        yield worker


@contextlib.asynccontextmanager
async def world(folder: Path, broker: MemoryBroker | None = None) -> AsyncIterator[World]:
    made = World(folder, broker)
    async with MemoryBus("camera", made.broker) as camera:
        await made.listen(camera)
        yield made
