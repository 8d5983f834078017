"""An edge worker on a real Mosquitto: frames a second with and without occupancy, seconds from a frame to its event.

Worker, camera and consumer share one process and one event loop, so that differences are those of the worker's work.
Its model costs nothing: the figures are the most that occupancy can cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

from halimede import topics
from halimede.api.jointinference import FrameSourceSpec
from halimede.api.model import ModelSpec
from halimede.api.occupancy import Occupancy, Zone
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.bus.settings import MqttSettings
from halimede.frames import encode_image, new_frame, pack
from halimede.messages import OccupancyEvent, Result
from halimede.worker.bootstrap import serve
from halimede.worker.main import connect_to
from halimede.worker.settings import WorkerSettings
from services.broker import MosquittoProcess
from tests.ports import free_port

#: frames of one round, of which at most so many have no answer yet; rounds with and without occupancy
FRAMES, UNANSWERED, ROUNDS = 1000, 32, 5
#: visits of which the time to their event is measured
VISITS = 50
SIDE = 64
NAMES = {"ns": "default", "service": "yard"}
ZONE = Zone(name="left", camera="gate", polygon=[[0, 0], [0.5, 0], [0.5, 1], [0, 1]])
#: each visit is one frame, and the next frame ends it
AT_ONCE = Occupancy(min_frames=1, hold_s=0, zones=[ZONE])


class Detector:
    """Answers bright pictures by three boxes."""

    def predict(self, data: Any) -> dict[str, Any]:
        """Return boxes in pixels."""
        is_bright = int(np.asarray(data).flat[0]) > 100
        return {"boxes": [[x, 10, x + 8, 40, 0.9, "person"] for x in (5, 20, 50)] if is_bright else []}


class Client:
    """A camera and a consumer."""

    def __init__(self, bus: MqttBus) -> None:
        self._bus = bus
        self._answered: dict[str, asyncio.Future[None]] = {}
        self.events: asyncio.Queue[OccupancyEvent] = asyncio.Queue()
        self._slots = asyncio.Semaphore(UNANSWERED)
        self.is_online = asyncio.Event()

    async def start(self) -> None:
        """Receive results, events and the worker's state."""
        await self._bus.wait_connected(10)
        await self._bus.subscribe(topics.RESULT.filter(**NAMES), self._on_result)
        await self._bus.subscribe(topics.OCCUPANCY.filter(**NAMES), self._on_event)
        await self._bus.subscribe(topics.EDGE_PEER.filter(**NAMES), self._on_peer, cleared=self._on_cleared)

    async def publish(self, picture: bytes) -> asyncio.Future[None]:
        """Publish a frame once there is a slot for it; the future ends with its result."""
        await self._slots.acquire()
        frame = new_frame(np.zeros((SIDE, SIDE), np.uint8))
        frame.encoding, frame.dtype, frame.shape, frame.data = "jpeg", "", [], memoryview(picture)
        frame.captured_ns = time.time_ns()
        answered = self._answered[frame.id.hex()] = asyncio.get_running_loop().create_future()
        await self._bus.publish(topics.CAMERA_FRAME.at(ns="default", camera="gate"), pack(frame))
        return answered

    async def frames_per_s(self, picture: bytes) -> float:
        """Return the frames that are answered in a second, of ``FRAMES``."""
        began = time.perf_counter()
        async with asyncio.timeout(120):
            await asyncio.gather(*[await self.publish(picture) for _ in range(FRAMES)])
        return FRAMES / (time.perf_counter() - began)

    async def seconds_to_event(self, picture: bytes) -> float:
        """Return the seconds from the publication of a frame to the first event that it causes."""
        began, began_ns = time.perf_counter(), time.time_ns()
        await self.publish(picture)
        async with asyncio.timeout(10):
            while (await self.events.get()).time_ns < began_ns:
                pass
        return time.perf_counter() - began

    async def _on_result(self, delivery: Delivery[Result]) -> None:
        if answered := self._answered.pop(delivery.body.id, None):  # a result may arrive twice
            self._slots.release()
            answered.set_result(None)

    async def _on_event(self, delivery: Delivery[OccupancyEvent]) -> None:
        if not delivery.packet.retain:
            self.events.put_nowait(delivery.body)

    async def _on_peer(self, _: Delivery[Any]) -> None:
        self.is_online.set()

    async def _on_cleared(self, _: Any) -> None:
        self.is_online.clear()


@contextlib.asynccontextmanager
async def worker(broker: MosquittoProcess, client: Client, folder: str, rules: Occupancy | None) -> AsyncIterator[None]:
    """Run an edge worker."""
    settings = WorkerSettings(
        role="edge", namespace="default", service="yard", worker="yard-edge", node="edge0", uid="u-1", model_path="",
        model=ModelSpec(url="/none", format="python"), estimator="", broker=broker.url, state=Path(folder),
        period_s=1.0, grace_s=10.0, hem_name="EdgeOnly", source=FrameSourceSpec(cameras=["gate"]), occupancy=rules,
    )  # fmt: skip
    stop = asyncio.Event()
    running = asyncio.create_task(serve(settings, connect_to(MqttSettings.from_url(broker.url)), stop, Detector))
    async with asyncio.timeout(60):
        await client.is_online.wait()
    await asyncio.sleep(1)
    try:
        yield
    finally:
        stop.set()
        await running


async def _measure(folder: str) -> dict[str, Any]:
    """Return the figures."""
    dark, bright = (encode_image(np.full((SIDE, SIDE), value, np.uint8), "jpeg") for value in (0, 200))
    rates: dict[bool, list[float]] = {True: [], False: []}
    delays = []
    async with (
        MosquittoProcess(Path(folder) / "broker", port=free_port()) as broker,
        MqttBus("gate", broker.url) as bus,
    ):
        client = Client(bus)
        await client.start()
        for _ in range(ROUNDS):
            for has_occupancy in (False, True):
                rules = Occupancy(zones=[ZONE]) if has_occupancy else None
                async with worker(broker, client, folder, rules):
                    rates[has_occupancy].append(await client.frames_per_s(bright))
        async with worker(broker, client, folder, AT_ONCE):
            await (await client.publish(dark))
            await asyncio.sleep(1)
            for picture in (bright, dark) * VISITS:
                delays.append(await client.seconds_to_event(picture))
                await asyncio.sleep(0.02)
    return {
        "frames_per_s_without": round(median(rates[False])),
        "frames_per_s_with": round(median(rates[True])),
        "event_median_ms": round(median(delays) * 1000, 1),
        "event_p95_ms": round(quantiles(delays, n=20)[-1] * 1000, 1),
    }


def measure() -> dict[str, Any]:
    """Return frames a second without and with occupancy, and milliseconds from a frame to its event."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(folder))
