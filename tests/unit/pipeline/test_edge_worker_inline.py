"""Samples of short models are answered on the event loop, as they come."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.frames import pack
from halimede.messages import Count, Result
from halimede.mining.edge_only import EdgeOnly
from halimede.pipeline.executor import SHORT_CALLS, ModelThread
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.responders import result_outbox
from halimede.pipeline.workers import EdgeWorker
from halimede.stats.ledger import Ledger
from tests.unit.frames.clouds import BAD, frame
from tests.unit.pipeline.answering import Ours, edge_worker
from tests.waiting import patience
from tests.worlds import connected

pytestmark = pytest.mark.simulated


class Located(Ours):
    """Knows where it was called."""

    def here(self) -> int:
        """Return how many calls ran on the event loop since the last time."""
        threads, self.threads = self.threads, []
        return threads.count(threading.get_ident())


class Edge:
    """A running edge worker with such a model."""

    def __init__(self, worker: EdgeWorker, slot: ModelSlot, ledger: Ledger, results: list[Result]) -> None:
        self.worker, self.slot, self.ledger, self.results = worker, slot, ledger, results

    async def take(self, count: int, value: int = 1) -> None:
        """Offer frames, each when the one before it is answered."""
        for _ in range(count):
            until = len(self.results) + 1
            await self.worker.intake.offer(pack(frame(value)), "cam0")
            async with asyncio.timeout(patience(20)):
                while len(self.results) < until:
                    await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def edge(folder: Path, model: Ours) -> AsyncIterator[Edge]:
    broker, results = MemoryBroker(), list[Result]()

    async def hear(delivery: Delivery[Result]) -> None:
        results.append(delivery.body)

    async with (
        connected(MemoryBus("edge", broker)) as bus,
        connected(MemoryBus("consumer", broker)) as consumer,
        ModelThread() as thread,
        ModelThread("decode") as decoder,
        asyncio.TaskGroup() as group,
    ):
        await consumer.subscribe(topics.RESULT.filter(), hear)
        slot = ModelSlot(LoadedModel(model, thread))
        with Ledger(folder, "u-1") as ledger:
            worker = edge_worker(slot, ledger, result_outbox(bus), decoder, miner=EdgeOnly())
            tasks = [group.create_task(work) for work in (worker.run(), slot.watch(60.0))]
            await asyncio.sleep(0.01)
            yield Edge(worker, slot, ledger, results)
            assert await worker.drain(5)
            for task in tasks:
                task.cancel()


async def test_a_model_whose_calls_are_known_to_be_short_answers_on_the_event_loop(tmp_path: Path) -> None:
    model = Located()
    async with edge(tmp_path, model) as e:
        await e.take(1)
        assert model.here() == 0, "nothing was known of it"
        await e.take(2 * SHORT_CALLS)
        model.here()
        await e.take(20)
        assert model.here() == 20
        assert (e.ledger[Count.ACCEPTED], e.ledger[Count.ANSWERED]) == (len(e.results),) * 2
        assert {(r.by, r.hard, r.label) for r in e.results} == {("edge", False, "1")}
        assert e.worker.times.model.count == e.slot.current.calls.count
        assert e.worker.times.wait.count == e.slot.current.answered == len(e.results)
        assert e.worker.pipeline.load().queued == e.worker.pipeline.inside == 0


async def test_what_fails_there_is_an_error_of_its_own_sample(tmp_path: Path) -> None:
    model = Located()
    async with edge(tmp_path, model) as e:
        await e.take(2 * SHORT_CALLS)
        await e.take(1, BAD)
        assert (e.results[-1].degraded, e.results[-1].reason) == (True, "error")
        await e.take(1)
        assert not e.results[-1].degraded
        assert e.slot.current.failed == 1
