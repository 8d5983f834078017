"""Cameras of one process over a real broker, and what others see of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from typing import Any

from halimede import codec, topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.cameras import camera_group
from halimede.cameras.address import parse
from halimede.cameras.camera import CameraBackoff
from halimede.cameras.settings import CameraSettings, ProcessSettings
from halimede.errors import DecodeError
from halimede.messages import CameraStatus, Frame
from services.broker import MosquittoProcess
from tests.simulated import eventually
from tests.waiting import patience

PATIENCE_S = 30.0
#: so that tests need not wait
QUICK = CameraBackoff(first_s=0.2, longest_s=0.5, locked_s=0.5, good_s=5.0)


class Seen:
    """What came of the cameras: frames and statuses by name."""

    def __init__(self) -> None:
        self.frames: dict[str, list[Frame]] = defaultdict(list)
        self.bare: dict[str, list[bytes]] = defaultdict(list)
        self.said: dict[str, list[CameraStatus]] = defaultdict(list)

    async def frame(self, delivery: Delivery[bytes]) -> None:
        name = delivery.names["camera"]
        try:
            self.frames[name].append(codec.decode(topics.REQUEST, delivery.body))
        except DecodeError:
            self.bare[name].append(bytes(delivery.body))

    async def status(self, delivery: Delivery[CameraStatus]) -> None:
        self.said[delivery.names["camera"]].append(delivery.body)

    def last(self, name: str) -> CameraStatus:
        return self.said[name][-1]

    async def says(self, name: str, **fields: Any) -> CameraStatus:
        """Wait until a camera's status has these values."""

        def fitting() -> list[CameraStatus]:
            return [s for s in self.said[name] if all(getattr(s, k) == v for k, v in fields.items())]

        return (await eventually(fitting, PATIENCE_S, shown=lambda: f"{name}: {self.said[name][-4:]}"))[-1]

    async def more(self, name: str, count: int = 5) -> None:
        """Wait until so many frames more have come."""
        wanted = len(self.frames[name]) + count
        await eventually(lambda: len(self.frames[name]) >= wanted, PATIENCE_S)


@contextlib.asynccontextmanager
async def watching(broker: MosquittoProcess, namespace: str) -> AsyncIterator[Seen]:
    seen = Seen()
    async with MqttBus(f"watch.{namespace}", broker.url) as bus:
        await bus.wait_connected(patience(PATIENCE_S))
        await bus.subscribe(topics.CAMERA_FRAME.filter(ns=namespace), seen.frame)
        await bus.subscribe(topics.CAMERA_STATUS.filter(ns=namespace), seen.status)
        yield seen


@contextlib.asynccontextmanager
async def cameras(
    broker: MosquittoProcess, namespace: str, urls: Mapping[str, str], **changes: Any
) -> AsyncIterator[Seen]:
    bare = changes.pop("bare", False)
    chosen = [CameraSettings(name=name, address=parse(url), **changes) for name, url in urls.items()]
    settings = ProcessSettings(namespace=namespace, cameras=chosen, broker=broker.url, bare=bare)
    stop = asyncio.Event()
    async with watching(broker, namespace) as seen:
        running = asyncio.create_task(camera_group.run(settings, lambda id_, _: MqttBus(id_, broker.url), stop, QUICK))
        try:
            yield seen
        finally:
            stop.set()
            async with asyncio.timeout(patience(PATIENCE_S)):
                await running
