"""A cloud worker that is asked for far more than it can do does what it can: what it takes is answered in time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, field

import pytest

from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.mining import Verdict
from halimede.offload import OffloadClient
from halimede.offload.channel import inference
from halimede.offload.errors import OffloadError, OffloadReason
from halimede.pipeline.model_slot import ModelSlot
from halimede.pipeline.upload_policy.policy import UploadPolicy
from halimede.pipeline.workers import RequestWorker
from tests.integration.test_shares_by_credits import Timed
from tests.unit.frames.clouds import NS, SERVICE, cloud_bus, frame

pytestmark = pytest.mark.simulated

SIZE = 64 * 1024


@dataclass
class Camera:
    """Asks about so many samples a second, whatever becomes of those before.

    ``seen``: what became of how many while it went on. Afterwards the last ones may be tried, too, for nothing.
    """

    client: OffloadClient
    fps: float
    deadline_s: float
    policy: UploadPolicy = field(default_factory=UploadPolicy)
    seen: Counter[str] = field(default_factory=Counter)
    going: bool = True

    async def run(self, seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(round(self.fps * seconds)):
                group.create_task(self.ask())
                await asyncio.sleep(1 / self.fps)
            self.going = False

    async def ask(self) -> None:
        loop = asyncio.get_running_loop()
        began, came, sent = loop.time(), "answered", True
        decision = self.policy.decide(Verdict(hard=True), None, SIZE, self.deadline_s, began)
        if decision.ask:
            try:
                await self.client.ask(frame(), self.deadline_s)
            except OffloadError as error:
                came, sent = str(error.reason), error.sent
            now, answered = loop.time(), came == "answered"
            self.policy.ended(decision, now - began, now, sent=sent, answered=answered, reason="" if answered else came)
        else:
            came = str(decision.reason)
        self.seen[came] += self.going or came == "answered"


@dataclass
class Play:
    """One cloud worker whose call takes ``fixed_ms`` and ``each_ms`` for each sample, and edge workers' cameras."""

    each_ms: float
    fixed_ms: float = 0.0
    edges: int = 1
    fps: float = 50.0
    deadline_s: float = 1.5
    seconds: float = 20.0

    async def run(self) -> Counter[str]:
        """Return what became of all samples; none was asked before, and nobody knew how fast the worker is."""
        broker = MemoryBroker()
        async with cloud_bus(broker, "c0") as bus, contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            serving = RequestWorker(bus, ModelSlot(Timed(self.each_ms, self.fixed_ms)), inference(NS, SERVICE, "c0"))
            running = group.create_task(serving.run())
            cameras = []
            for number in range(self.edges):
                edge = await stack.enter_async_context(MemoryBus(f"e{number}", broker))
                await edge.wait_connected(1)
                client = OffloadClient(edge, inference(NS, SERVICE, f"e{number}"))
                await client.start()
                cameras.append(Camera(client, self.fps, self.deadline_s))
            await asyncio.sleep(0.5)
            async with asyncio.TaskGroup() as sending:
                for camera in cameras:
                    sending.create_task(camera.run(self.seconds))
            running.cancel()
        return sum((camera.seen for camera in cameras), Counter())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("play", "able"),
    [
        (Play(200), 100),
        (Play(200, deadline_s=0.5), 100),
        (Play(700), 28),
        (Play(20, fps=500, seconds=10), 500),
        (Play(20, fps=100, deadline_s=0.1), 1000),
        (Play(200, edges=10, fps=5), 100),
        (Play(200, edges=10, fps=50, seconds=10), 50),
        (Play(1, fixed_ms=190, fps=100), 1400),
    ],
    ids=lambda value: "" if isinstance(value, int) else f"{value.edges}x{value.fps:g}fps-{value.each_ms:g}ms",
)
async def test_a_cloud_worker_answers_what_it_can_however_much_it_is_asked_for(play: Play, able: int) -> None:
    seen = await play.run()
    assert seen["answered"] >= 0.9 * able, seen
    assert seen[OffloadReason.CIRCUIT_OPEN] == 0, seen
    assert seen[OffloadReason.DEADLINE] <= 0.3 * able, seen


async def test_what_it_can_do_easily_is_all_answered() -> None:
    assert await Play(20, fps=30).run() == {"answered": 600}


async def test_a_sample_in_a_hurry_is_not_made_late_by_those_that_are_batched_with_it() -> None:
    broker = MemoryBroker()
    async with cloud_bus(broker, "c0") as bus, MemoryBus("e0", broker) as edge, asyncio.TaskGroup() as group:
        running = group.create_task(RequestWorker(bus, ModelSlot(Timed(100)), inference(NS, SERVICE, "c0")).run())
        await edge.wait_connected(1)
        client = OffloadClient(edge, inference(NS, SERVICE, "e0"))
        await client.start()
        await asyncio.sleep(0.5)
        for together in (1, 2, 3):  # a call's time grows with its samples: that is known now
            await asyncio.gather(*(client.ask(frame(), 5.0) for _ in range(together)))
        blocking = group.create_task(client.ask(frame(), 5.0))
        await asyncio.sleep(0.01)
        hurried = group.create_task(client.ask(frame(), 0.35))
        others = [group.create_task(client.ask(frame(), 5.0)) for _ in range(4)]
        assert (await hurried).prediction
        await asyncio.gather(blocking, *others)
        running.cancel()
