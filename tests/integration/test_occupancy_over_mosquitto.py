"""Two edge workers that share a camera, a slow one too, on a real Mosquitto: each event comes once, and is retained."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

from halimede import topics
from halimede.api.jointinference import FrameSourceSpec
from halimede.api.model import ModelSpec
from halimede.api.occupancy import Occupancy
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.bus.settings import MqttSettings
from halimede.frames import new_frame, pack
from halimede.messages import OccupancyEvent, Peer, Result
from halimede.worker.bootstrap import serve
from halimede.worker.main import connect_to
from halimede.worker.settings import WorkerSettings
from services.broker import MosquittoProcess
from tests.inbox import Inbox
from tests.simulated import eventually
from tests.waiting import patience

SERVICE = "two-at-a-gate"
NAMES = {"ns": "default", "service": SERVICE}
RULES = Occupancy(min_frames=3, hold_s=0.5)
#: between two frames, by the camera's clock, whatever time the test takes
PERIOD_NS = 10**8
EMPTY, PERSON = 0, 1


class NewestResult:
    """The highest number of a frame whose result has been received; other threads can wait for a higher one."""

    def __init__(self) -> None:
        self.number = 0
        self._changed = threading.Condition()

    def note(self, number: int) -> None:
        with self._changed:
            self.number = max(number, self.number)
            self._changed.notify_all()

    def wait_above(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.number > number, patience(5))


class Quick:
    """Answers pictures whose first pixel is 1 by a person. The second pixel is the number of the frame."""

    def predict(self, data: Any) -> dict[str, Any]:
        return {"boxes": [[0, 0, 2, 3, 0.9, "person"]] if int(np.asarray(data).flat[0]) else []}


class Slow(Quick):
    """Answers the first frames with a person after later ones that the other worker answers."""

    newest = NewestResult()
    late_frames = 5

    def predict(self, data: Any) -> dict[str, Any]:
        time.sleep(0.03)  # so that its calls never run on the event loop
        shows_person, number = np.asarray(data).flat[:2]
        if shows_person and self.late_frames:
            self.late_frames -= 1
            self.newest.wait_above(int(number))
        return super().predict(data)


class Site:
    """What is published: results in their order, events, and the workers that are online."""

    def __init__(self, broker: MosquittoProcess, bus: MqttBus, folder: Path) -> None:
        self.broker, self.bus, self.folder = broker, bus, folder
        self.results: list[Result] = []
        self.events: list[OccupancyEvent] = []
        self.peers: dict[str, Peer] = {}
        self.sent = 0

    async def listen(self) -> None:
        async def result(delivery: Delivery[Result]) -> None:
            self.results.append(delivery.body)
            Slow.newest.note(delivery.body.sequence)

        async def event(delivery: Delivery[OccupancyEvent]) -> None:
            self.events.append(delivery.body)

        async def peer(delivery: Delivery[Peer]) -> None:
            self.peers[delivery.names["worker"]] = delivery.body

        await self.bus.wait_connected(patience(10))
        await self.bus.subscribe(topics.RESULT.filter(**NAMES), result)
        await self.bus.subscribe(topics.OCCUPANCY.filter(**NAMES), event)
        await self.bus.subscribe(topics.EDGE_PEER.filter(**NAMES), peer)

    @contextlib.asynccontextmanager
    async def worker(self, name: str, estimator: type[Quick]) -> AsyncIterator[asyncio.Event]:
        stop = asyncio.Event()
        settings = WorkerSettings(
            role="edge", namespace="default", service=SERVICE, worker=name, node="edge0", uid="u-1", model_path="",
            model=ModelSpec(url="/none", format="python"), estimator="", broker=self.broker.url,
            state=self.folder / name, period_s=1.0, grace_s=10.0, hem_name="EdgeOnly", hem_parameters={},
            source=FrameSourceSpec(cameras=["gate"]), occupancy=RULES,
        )  # fmt: skip
        connect = connect_to(MqttSettings.from_url(self.broker.url))
        running = asyncio.create_task(serve(settings, connect, stop, estimator))
        await eventually(lambda: running.done() or name in self.peers)
        try:
            yield stop
        finally:
            stop.set()
            await running

    async def show(self, value: int, frames: int) -> None:
        """Send so many frames as fast as they are published, and wait for their results."""
        for _ in range(frames):
            self.sent += 1
            pixels = np.full((4, 4), value, np.uint8)
            pixels.flat[1] = self.sent
            frame = new_frame(pixels, sequence=self.sent)
            frame.captured_ns = 10**18 + self.sent * PERIOD_NS
            await self.bus.publish(topics.CAMERA_FRAME.at(ns="default", camera="gate"), pack(frame))
            await asyncio.sleep(0.01)
        await eventually(lambda: len(self.results) == self.sent)

    def texts(self) -> list[str]:
        return [f"{event.sequence} {event.type} {event.before}>{event.count}" for event in self.events]


async def test_results_of_two_workers_in_another_order_make_each_event_once_and_it_is_retained(
    mosquitto: MosquittoProcess, tmp_path: Path
) -> None:
    async with MqttBus("gate", mosquitto.url) as bus:
        site = Site(mosquitto, bus, tmp_path)
        await site.listen()
        async with site.worker("quick", Quick) as stop, site.worker("slow", Slow):
            await site.show(EMPTY, 10)
            await site.show(PERSON, 60)
            assert {result.worker for result in site.results} == {"quick", "slow"}
            order = [result.sequence for result in site.results]
            assert order != sorted(order)
            await eventually(lambda: site.texts() == ["1 entered 0>1"])
            stop.set()
            await eventually(lambda: site.peers["quick"].leaving)
            await site.show(PERSON, 20)
            await site.show(EMPTY, 40)
            await eventually(lambda: len(site.events) == 2)
            assert site.texts() == ["1 entered 0>1", "2 left 1>0"]
        async with MqttBus("late", mosquitto.url) as late:
            inbox: Inbox[OccupancyEvent] = Inbox()
            await late.subscribe(topics.OCCUPANCY.filter(**NAMES), inbox)
            await inbox.has(1)
            assert [(d.packet.retain, d.body) for d in inbox.deliveries] == [(True, site.events[-1])]
            await bus.clear(topics.OCCUPANCY.at(**NAMES, camera="gate"))
