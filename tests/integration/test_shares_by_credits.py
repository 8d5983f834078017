"""Two cloud workers of different speed share one edge worker's hard samples: the slow one gets what it can bear."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from unittest import mock

import pytest

from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import Prediction
from halimede.offload import OffloadClient
from halimede.offload.channel import inference
from halimede.offload.errors import OffloadError
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.inference import InferenceOutcome
from halimede.pipeline.model_slot import Infer, LoadedModel, ModelSlot
from halimede.pipeline.sample import Sample
from halimede.pipeline.workers import RequestWorker
from tests.unit.frames.clouds import NS, SERVICE, Brightness, cloud_bus, frame

DEADLINE_S = 2.0


class Timed(LoadedModel):
    """A model that takes so many milliseconds for a sample and for a call, in simulated time."""

    def __init__(self, each_ms: float, fixed_ms: float = 0.0) -> None:
        super().__init__(Brightness(), ModelThread())
        self._each_ms, self._fixed_ms = each_ms, fixed_ms

    async def run(self, infer: Infer, samples: Sequence[Sample]) -> list[InferenceOutcome]:
        began, ms = asyncio.get_running_loop().time(), self._fixed_ms + self._each_ms * len(samples)
        await asyncio.sleep(ms / 1000)
        return [InferenceOutcome(Prediction(label="x"), batch=len(samples), ms=ms, began=began) for _ in samples]


async def shared(clouds: dict[str, float], flight: int, samples: int) -> tuple[Counter[str], list[float]]:
    """Keep ``flight`` samples under way; return who answered how many of the later half, and how long, in seconds."""
    broker, loop = MemoryBroker(), asyncio.get_running_loop()
    answered: Counter[str] = Counter()
    took: list[float] = []
    left = iter(range(samples))

    async def ask(client: OffloadClient) -> None:
        for number in left:
            began = loop.time()
            try:
                worker = (await client.ask(frame(), DEADLINE_S)).worker
            except OffloadError as error:
                worker = str(error.reason)
            if number >= samples / 2:
                answered[worker] += 1
                took.append(loop.time() - began)

    async def serve(name: str, each_ms: float) -> None:
        async with cloud_bus(broker, name) as bus:
            await RequestWorker(bus, ModelSlot(Timed(each_ms)), inference(NS, SERVICE, name)).run()

    async with MemoryBus("edge", broker) as bus, asyncio.TaskGroup() as group:
        serving = [group.create_task(serve(name, each_ms)) for name, each_ms in clouds.items()]
        await bus.wait_connected(1)
        client = OffloadClient(bus, inference(NS, SERVICE, "edge"), window=64, waiters=64)
        await client.start()
        await asyncio.sleep(0.5)
        async with asyncio.TaskGroup() as asking:
            for _ in range(flight):
                asking.create_task(ask(client))
        for task in serving:
            task.cancel()
    return answered, sorted(took)


@pytest.mark.slow
@pytest.mark.simulated
@pytest.mark.parametrize("fast_ms", [0.5, 2.0, 20.0])
@pytest.mark.parametrize("flight", [1, 4, 16, 48])
async def test_a_cloud_worker_ten_times_as_slow_gets_about_its_share_and_hardly_delays_anybody(
    fast_ms: float, flight: int
) -> None:
    random.seed(flight)  # the balancer draws two workers
    # workers measure the time from a reply to its acknowledgement, in which this process may pause
    with mock.patch("time.monotonic", asyncio.get_running_loop().time):
        alone, usual = await shared({"fast": fast_ms}, flight, 1600)
        both, took = await shared({"fast": fast_ms, "slow": 10 * fast_ms}, flight, 1600)
    assert alone == {"fast": 800}
    assert both["fast"] + both["slow"] == 800
    assert both["slow"] <= 120
    assert took[790] <= 2 * usual[790]
