"""Edge and cloud workers as they run, over a broker in memory, with estimators that can be told by their answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

from halimede import topics
from halimede.api.jointinference import FrameSourceSpec
from halimede.api.model import ModelSpec
from halimede.bus import Announce, Bus, Delivery
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.frames import new_frame, pack
from halimede.messages import DeadLetter, Result, WorkerInfo
from halimede.worker.bootstrap import serve
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

    async def listen(self, camera: MemoryBus) -> None:
        async def result(delivery: Delivery[Result]) -> None:
            self.copies[delivery.body.id] += 1
            self.results.setdefault(delivery.body.id, delivery.body)

        async def info(delivery: Delivery[WorkerInfo]) -> None:
            self.infos.setdefault(delivery.body.name, []).append(delivery.body)

        async def letter(delivery: Delivery[DeadLetter]) -> None:
            self.letters.append(delivery.body)

        self.camera = camera
        await camera.wait_connected(1)
        await camera.subscribe(topics.RESULT.filter(), result)
        await camera.subscribe(topics.WORKER_INFO.filter(), info)
        await camera.subscribe(topics.DEAD_LETTER.filter(), letter)

    def connect(
        self,
        client_id: str,
        *,
        announce: Announce | None = None,
        receive_maximum: int | None = None,
        session_s: int = 0,
    ) -> Bus:
        bus = MemoryBus(client_id, self.broker, announce, receive_maximum=receive_maximum or 1000, session_s=session_s)
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

    @contextlib.asynccontextmanager
    async def worker(
        self, role: Role, name: str, estimator: object | None = None, **changes: Any
    ) -> AsyncIterator[asyncio.Event]:
        """Run a worker within the block; it drains at the end, unless ``stop`` was set before.

        It has an estimator, unless its settings name the file of a model.
        """
        stop = asyncio.Event()
        if estimator is None and "model_path" not in changes:
            estimator = Small if role == "edge" else Big
        running = asyncio.create_task(serve(self.settings(role, name, **changes), self.connect, stop, estimator))
        await eventually(lambda: running.done() or self.status(name) == "running")
        if running.done():
            await running
        await asyncio.sleep(0.2 if role == "cloud" else 0)  # its load travels
        try:
            yield stop
        finally:
            stop.set()
            await running

    def status(self, name: str) -> str:
        return self.infos[name][-1].status if name in self.infos else ""

    def info(self, name: str) -> Any:
        found = self.infos[name][-1].task_info
        assert found is not None
        return found

    async def send(self, value: int, camera: str = "cam0", file: str = "", **options: Any) -> str:
        """Send one frame of a value; return its id."""
        frame = new_frame(np.full((4, 4), value, np.uint8), **options)
        frame.file = file
        await self.camera.publish(topics.CAMERA_FRAME.at(ns=NS, camera=camera), pack(frame))
        return frame.id.hex()

    async def answer(self, id_: str) -> Result:
        await eventually(lambda: id_ in self.results)
        return self.results[id_]


@contextlib.asynccontextmanager
async def world(folder: Path, broker: MemoryBroker | None = None) -> AsyncIterator[World]:
    made = World(folder, broker)
    async with MemoryBus("camera", made.broker) as camera:
        await made.listen(camera)
        yield made
