"""How a worker is put together of its parts, and how it is drained."""

from __future__ import annotations

import asyncio
import itertools
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.mining.edge_only import EdgeOnly
from halimede.offload.channel import inference
from halimede.pipeline.crops import CropIntake
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.intake import EdgeLimits, FrameIntake, RequestIntake, RequestLimits
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.workers import RequestWorker
from tests.unit.frames.clouds import NS, SERVICE, Brightness
from tests.unit.pipeline.answering import edge_worker

pytestmark = pytest.mark.simulated


@pytest.fixture(name="slot")
def _slot() -> ModelSlot:
    return ModelSlot(LoadedModel(Brightness(), ModelThread(), more=[ModelThread()]))


def request_worker(slot: ModelSlot, **options: Any) -> RequestWorker:
    return RequestWorker(MemoryBus("c0", MemoryBroker()), slot, inference(NS, SERVICE, "c0"), **options)


async def test_mining_judges_predictions_unless_it_comes_before_inference(slot: ModelSlot) -> None:
    miner, escalation = EdgeOnly(), cast("Any", SimpleNamespace())
    usual = edge_worker(slot, miner=miner, escalation=escalation)
    assert (usual.inference._miner, usual.intake._miner, usual.intake.escalation) == (miner, None, escalation)
    first = edge_worker(slot, miner=miner, mines_first=True)
    assert (first.inference._miner, first.intake._miner, first.intake.escalation) == (None, miner, None)
    predictions = request_worker(slot, miner=miner).pipeline._infer
    assert (predictions._miner, predictions._sample_miner) == (miner, None)
    samples = request_worker(slot, miner=miner, mines_samples=True).pipeline._infer
    assert (samples._miner, samples._sample_miner) == (None, miner)


async def test_a_worker_keeps_to_its_limits(slot: ModelSlot) -> None:
    edge = edge_worker(slot, limits=EdgeLimits(inside=7, batch=3, horizon_s=0.5)).pipeline
    cloud = request_worker(slot, limits=RequestLimits(queue=8, batch=4, horizon_s=2.0, delay_s=0.25)).pipeline
    for pipeline, (queue, batch, horizon_s, lanes, delay_s) in (
        (edge, (7, 3, 0.5, 1, 0.0)),
        (cloud, (8, 4, 2.0, 2, 0.25)),
    ):
        rate = pipeline.rate
        assert (rate._queue, rate._batch, rate._horizon_s, rate._lanes) == (queue, batch, horizon_s, lanes)
        assert (pipeline._queue.delay_s, pipeline._infer._limit) == (delay_s, batch)
    assert edge._deadline_s == math.inf
    assert edge_worker(slot).pipeline.rate._queue == EdgeLimits().inside
    assert request_worker(slot).pipeline.rate._queue == RequestLimits().queue


def test_only_requests_are_dropped_when_their_deadline_is_over_and_only_frames_run_one_by_one() -> None:
    kinds = (FrameIntake, RequestIntake, CropIntake)
    assert [(kind.drops_late, kind.gathers) for kind in kinds] == [(False, False), (True, True), (False, True)]


class Drained:
    """Notes how long it may take to be drained, and takes ``took_s`` for it."""

    def __init__(self, took_s: float = 0.0, *, done: bool = True, inside: int = 0) -> None:
        self.timeouts: list[tuple[float, int]] = []
        self.inside = inside
        self._took_s, self._done = took_s, done

    async def drain(self, timeout_s: float, *clients: object) -> bool:
        self.timeouts.append((timeout_s, len(clients)))
        await asyncio.sleep(self._took_s)
        return self._done


@pytest.mark.parametrize(
    ("answered", "delivered", "inside"), [*itertools.product((True, False), (True, False), (0, 1))]
)
@pytest.mark.parametrize(("took_s", "left_s"), [(2.0, 3.0), (5.0, 0.0), (7.0, 0.0)])
async def test_an_edge_worker_is_drained_when_all_frames_are_answered_and_their_results_delivered_in_the_time_left(
    slot: ModelSlot, took_s: float, left_s: float, *, answered: bool, delivered: bool, inside: int
) -> None:
    frames, outbox = Drained(took_s, done=answered, inside=inside), Drained(done=delivered)
    worker: Any = edge_worker(slot, outbox=outbox)
    worker.frames, worker.escalation, worker.pipeline.peers = frames, SimpleNamespace(), SimpleNamespace()
    assert await worker.drain(5) == (answered and delivered and not inside)
    assert (frames.timeouts, outbox.timeouts) == ([(5, 2)], [(left_s, 0)])
    assert worker.intake._closed


@pytest.mark.parametrize(("answered", "delivered"), [*itertools.product((True, False), (True, False))])
@pytest.mark.parametrize(("took_s", "left_s"), [(1.5, 2.5), (9.0, 0.0)])
async def test_a_request_worker_is_drained_when_all_replies_are_delivered(
    slot: ModelSlot, took_s: float, left_s: float, *, answered: bool, delivered: bool
) -> None:
    worker: Any = request_worker(slot)
    worker.pipeline, worker.intake.responder.outbox = Drained(took_s, done=answered), Drained(done=delivered)
    worker.intake.stop = lambda: asyncio.sleep(1)
    assert await worker.drain(5) == (answered and delivered)
    assert (worker.pipeline.timeouts, worker.intake.responder.outbox.timeouts) == ([(4.0, 0)], [(left_s, 0)])
    worker.intake.stop = lambda: asyncio.sleep(9)
    assert not await worker.drain(5)
