"""Who publishes cameras: what reached nobody is counted, and a camera that is refused costs the others nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from halimede import topics
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.subscriber_return import FRAME_RETURN_S
from halimede.cameras import camera_group
from halimede.cameras.address import parse
from halimede.cameras.camera import CameraBackoff
from halimede.cameras.publisher import CameraPublisher
from halimede.cameras.settings import CameraSettings, ProcessSettings
from halimede.errors import RefusedError
from tests.cameras import captured, jpeg, video
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
    async with Slow("camera", memory_broker) as bus:
        await bus.wait_connected(PATIENCE_S)
        publisher = CameraPublisher(bus, "default", "a", qos=1, bare=False, patient=True, stop=asyncio.Event())
        await asyncio.gather(*(publisher.take(captured(jpeg(1)), number) for number in range(20)))
    assert publisher.unheard == 20


def films(folder: Path, *names: str) -> ProcessSettings:
    """Return settings of cameras that play a film of five frames."""
    address = parse(str(video(folder / "a.avi", 5, codec="mjpeg")))
    cameras = [CameraSettings(name=name, address=address, pace=0.0, start_ns=1) for name in names]
    return ProcessSettings(namespace="default", cameras=cameras, broker="")


@pytest.mark.timeout(90)
async def test_a_camera_that_the_broker_refuses_is_tried_again_and_the_others_go_on(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    settings = films(tmp_path, "bad", "good")
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


class ReturningWorker:
    """A camera's publisher and its worker, which can go away."""

    def __init__(self, bus: MemoryBus, worker: MemoryBus, *, patient: bool) -> None:
        self.worker = worker
        self.inbox: Inbox[bytes] = Inbox()
        self.stop = asyncio.Event()
        self.publisher = CameraPublisher(bus, "default", "a", qos=1, bare=True, patient=patient, stop=self.stop)

    async def leave(self) -> None:
        self.worker.cut()
        await asyncio.sleep(5)

    async def publish(self, number: int) -> bool:
        return await self.publisher.take(captured(b"%d" % number), number)

    def numbers(self) -> list[int]:
        return sorted(int(delivery.body) for delivery in self.inbox.deliveries)


@contextlib.asynccontextmanager
async def returning_worker(*, patient: bool) -> AsyncIterator[ReturningWorker]:
    """Publish one picture that the worker gets; it goes away then."""
    broker = MemoryBroker()
    async with MemoryBus("camera", broker) as bus, MemoryBus("worker", broker) as worker:
        await asyncio.gather(bus.wait_connected(1), worker.wait_connected(1))
        world = ReturningWorker(bus, worker, patient=patient)
        await worker.subscribe(topics.CAMERA_FRAME.filter(), world.inbox)
        assert await world.publish(0)
        await world.leave()
        yield world


@pytest.mark.simulated
async def test_pictures_of_a_file_wait_for_the_return_of_their_worker() -> None:
    async with returning_worker(patient=True) as world:
        waiting = [asyncio.create_task(world.publish(number)) for number in (1, 2)]
        await asyncio.sleep(FRAME_RETURN_S * 0.8)
        assert not any(task.done() for task in waiting)
        world.worker.heal()
        assert await asyncio.gather(*waiting) == [True, True]
        await eventually(lambda: world.numbers() == [0, 1, 2])
        assert world.publisher.unheard == 0


@pytest.mark.simulated
async def test_pictures_wait_no_longer_than_that_and_each_one_that_reached_nobody_is_counted() -> None:
    async with returning_worker(patient=True) as world:
        async with asyncio.timeout(FRAME_RETURN_S + 1):
            assert await world.publish(1)
        async with asyncio.timeout(0.1):  # the time has passed for the next one, too
            assert await world.publish(2)
        assert world.publisher.unheard == 2
        world.worker.heal()
        await eventually(lambda: world.worker.connected)
        assert await world.publish(3)
        await world.leave()
        waiting = asyncio.create_task(world.publish(4))
        await asyncio.sleep(FRAME_RETURN_S * 0.8)
        assert not waiting.done(), "a worker that has returned is waited for again"
        world.stop.set()
        assert await waiting
        assert world.publisher.unheard == 3


@pytest.mark.simulated
async def test_a_live_camera_drops_its_oldest_pictures_until_its_worker_returns() -> None:
    async with returning_worker(patient=False) as world:
        async with asyncio.timeout(1):
            assert [await world.publish(number) for number in (1, 2)] == [False, False]
        world.worker.heal()
        await eventually(lambda: world.worker.connected)
        assert await world.publish(3)
        await eventually(lambda: world.numbers() == [0, 3])
        assert world.publisher.unheard == 0


@pytest.mark.timeout(90)
async def test_a_camera_process_names_frames_that_reached_nobody(memory_broker: MemoryBroker, tmp_path: Path) -> None:
    settings = films(tmp_path, "read", "unread")
    inbox: Inbox[bytes] = Inbox()
    async with MemoryBus("worker", memory_broker) as worker:
        await worker.subscribe(topics.CAMERA_FRAME.filter(camera="read"), inbox)
        unheard = await camera_group.run(settings, lambda id_, _: MemoryBus(id_, memory_broker), asyncio.Event())
    assert (unheard, len(inbox.deliveries)) == ({"unread": 5}, 5)
