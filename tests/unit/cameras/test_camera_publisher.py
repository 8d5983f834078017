"""Who publishes cameras: what reached nobody is counted, and a camera that is refused costs the others nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from halimede import topics
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.cameras import camera_group
from halimede.cameras.address import parse
from halimede.cameras.camera import CameraBackoff
from halimede.cameras.ipc_messages import CapturedPicture, ReaderCounts
from halimede.cameras.publisher import CameraPublisher
from halimede.cameras.settings import CameraSettings, ProcessSettings
from halimede.errors import RefusedError
from tests.cameras import jpeg, video
from tests.inbox import Inbox
from tests.simulated import eventually

PATIENCE_S = 30.0


class Slow(MemoryBus):
    """Its broker takes a moment, so that several frames are on their way at a time."""

    async def publish(self, *arguments: Any, **more: Any) -> bool:
        heard = await super().publish(*arguments, **more)
        await asyncio.sleep(0.01)
        return heard


class Forbidding(MemoryBus):
    """Its broker takes no frames, until it is told to."""

    allowed = False
    asked = 0

    async def publish(self, address: Any, *arguments: Any, **more: Any) -> bool:
        if "/frames/" in address.text:
            self.asked += 1
            if not self.allowed:
                raise RefusedError(address.text, 0x87, "not authorised")
        return await super().publish(address, *arguments, **more)


async def test_every_frame_that_reached_nobody_is_counted(memory_broker: MemoryBroker) -> None:
    picture = CapturedPicture(
        taken_ns=1, encoding="jpeg", codec="mjpeg", width=64, height=48, counts=ReaderCounts(), data=jpeg(1)
    )  # fmt: skip
    async with Slow("camera", memory_broker) as bus:
        await bus.wait_connected(PATIENCE_S)
        publisher = CameraPublisher(bus, "default", "a", qos=1, bare=False, patient=True, stop=asyncio.Event())
        await asyncio.gather(*(publisher.take(picture, number) for number in range(20)))
    assert publisher.unheard == 20


@pytest.mark.timeout(90)
async def test_a_camera_that_the_broker_refuses_is_tried_again_and_the_others_go_on(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    address = parse(str(video(tmp_path / "a.avi", 5, codec="mjpeg")))
    settings = ProcessSettings(
        namespace="default",
        cameras=[CameraSettings(name=name, address=address, pace=0.0, start_ns=1) for name in ("bad", "good")],
        broker="",
    )
    made: dict[str, MemoryBus] = {}

    def connect(id_: str, name: str) -> MemoryBus:
        made[name] = (Forbidding if name == "bad" else MemoryBus)(id_, memory_broker)
        return made[name]

    inbox: Inbox[bytes] = Inbox()
    async with MemoryBus("worker", memory_broker) as worker:
        await worker.subscribe(topics.CAMERA_FRAME.filter(), inbox)

        def came(name: str) -> int:
            return sum(delivery.names["camera"] == name for delivery in inbox.deliveries)

        running = asyncio.create_task(camera_group.run(settings, connect, asyncio.Event(), CameraBackoff(locked_s=0.1)))
        await eventually(lambda: came("good") == 5 and made["bad"].asked > 5, PATIENCE_S)  # type: ignore[attr-defined]
        assert not running.done()
        made["bad"].allowed = True  # type: ignore[attr-defined]
        await eventually(running.done, PATIENCE_S)
        await running
        assert came("bad") == 5
