"""A cloud worker that does what a test tells it, and models whose answers can be told by looking at the pixels."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import numpy as np

from halimede import topics
from halimede.bus import Bus, Delivery
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.frames import Pixels, new_frame
from halimede.inference import Array, Model, SampleError
from halimede.messages import Frame, Load, Prediction, Reply
from halimede.offload.load_advertiser import load_will
from tests.worlds import connected

NS, SERVICE = "default", "helmet"
#: a pixel value that a `Brightness` model fails on
BAD = 66


def frame(value: int = 1, shape: tuple[int, ...] = (2, 2)) -> Frame:
    return new_frame(np.full(shape, value, np.uint8))


class ScriptedCloud:
    """Answers each request with what ``script`` gives; None: no answer."""

    def __init__(self, bus: Bus, worker: str, script: Callable[[Delivery[Frame]], Awaitable[Reply | None]]) -> None:
        self.bus, self.worker, self.script = bus, worker, script
        self.seen: list[Frame] = []
        self.deliveries: list[Delivery[Frame]] = []

    async def start(self, *, advertise: int | None = 8, shared: bool = True, directed: bool = True) -> None:
        if directed:
            await self.bus.subscribe(topics.REQUEST_TO.filter(ns=NS, service=SERVICE, worker=self.worker), self.take)
        if shared:
            await self.bus.subscribe(topics.REQUEST.filter(group=SERVICE, ns=NS, service=SERVICE), self.take)
        if advertise is not None:
            await self.advertise(advertise)

    async def advertise(self, credits_: int, service_ms: float = 1.0) -> None:
        address = topics.LOAD.at(ns=NS, service=SERVICE, worker=self.worker)
        await self.bus.publish(address, Load(credits=credits_, service_ms=service_ms))

    async def take(self, delivery: Delivery[Frame]) -> None:
        self.seen.append(delivery.body)
        self.deliveries.append(delivery)
        if reply := await self.script(delivery):
            await self.bus.reply(delivery, topics.REPLY, reply)

    def good(self, to: Delivery[Frame]) -> Reply:
        return Reply(id=to.body.id, worker=self.worker, prediction=Prediction(label=self.worker))


def answering(cloud: str = "c0") -> Callable[[Delivery[Frame]], Awaitable[Reply | None]]:
    async def script(delivery: Delivery[Frame]) -> Reply | None:
        return Reply(id=delivery.body.id, worker=cloud, prediction=Prediction(label=cloud))

    return script


async def silent(_: Delivery[Frame]) -> Reply | None:
    return None


@contextlib.asynccontextmanager
async def cloud_bus(broker: MemoryBroker, worker: str) -> AsyncIterator[MemoryBus]:
    """A cloud worker's connection: its will clears its load."""
    async with connected(MemoryBus(worker, broker, lambda: load_will(NS, SERVICE, worker))) as bus:
        yield bus


class Brightness(Model):
    """Says the first pixel's value. Fails on BAD, alone or in a batch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.closed = False

    @property
    def labels(self) -> tuple[str, ...]:
        return ()

    def prepare(self, image: Pixels) -> Array:
        if image.ndim != 2:
            raise SampleError(f"the model wants height x width, the frame is {image.shape}")
        return image

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        values = [int(sample.flat[0]) for sample in batch]
        self.batches.append(values)
        if BAD in values:
            raise RuntimeError("this pixel breaks the model")
        return [Prediction(label=str(value), score=1.0) for value in values]

    def close(self) -> None:
        self.closed = True
