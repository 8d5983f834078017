"""Each accepted frame gets exactly one result: the small model's, the cloud's, or the edge's with the reason why."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from halimede import topics
from halimede.frames import new_frame, pack
from halimede.messages import Count
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.responders import Origin, ResultResponder, result_outbox
from halimede.pipeline.workers import EdgeWorker
from halimede.stats.ledger import Ledger
from halimede.worker.joint_inference import INTAKE_RECEIVE_MAXIMUM
from tests.simulated import eventually
from tests.unit.frames.clouds import Brightness
from tests.unit.worker.world import EASY, HARD, NS, World, world

pytestmark = pytest.mark.simulated


async def test_hundreds_of_frames_get_one_result_each(pair: World) -> None:
    sent = []
    for i in range(300):
        sent.append(await pair.send(HARD if i % 5 == 0 else EASY))
        if i % 5 == 0:
            await asyncio.sleep(0.02)  # at camera pace: nothing is shed
    await eventually(lambda: len(pair.results) == 300)
    assert set(pair.results) == set(sent)
    assert set(pair.copies.values()) == {1}
    assert sum(r.by == "cloud" for r in pair.results.values()) == 60


async def test_a_camera_that_wants_its_answer_earlier_gets_it(w: World) -> None:
    async with w.worker("edge", "e0", deadline_s=60.0):
        w.buses[f"worker.{NS}.e0"].cut()
        frame = new_frame(np.full((2, 2), HARD, np.uint8))
        frame.deadline_ms = 500
        await w.show(frame)
        await asyncio.sleep(2)
        w.buses[f"worker.{NS}.e0"].heal()
        result = await w.answer(frame.id.hex())
        assert (result.degraded, result.reason) == (True, "no-cloud")
        assert 490 <= result.offload_ms <= 600


async def test_a_stopped_edge_answers_what_it_has_even_while_the_cloud_is_silent(w: World) -> None:
    async with w.worker("edge", "e0", deadline_s=600.0, grace_s=9.0) as stop:
        await w.silent_cloud()
        sent = [await w.send(HARD) for _ in range(4)]
        await asyncio.sleep(1)
        assert w.buses[f"worker.{NS}.e0"].connected
        stop.set()
        for id_ in sent:
            assert (await w.answer(id_)).reason == "deadline"
    assert w.status("e0") == "completed"
    assert (w.info("e0").inference_number, w.info("e0").lost) == (4, 0)


async def test_easy_samples_get_through_while_hard_ones_wait_for_a_silent_cloud(w: World) -> None:
    async with w.worker("edge", "e0", deadline_s=600.0, grace_s=3.0):
        await w.silent_cloud()
        for _ in range(200):
            await w.send(HARD)
        easy = await w.answer(await w.send(EASY))
        assert not easy.hard
        assert {r.reason for r in w.results.values() if r.degraded} == {"window-full"}
        assert len(w.results) == 200 - 32 - 48 + 1


async def test_a_frame_offered_after_the_end_is_neither_accepted_nor_acknowledged(tmp_path: Path) -> None:
    async with world(tmp_path) as w, ModelThread() as thread:
        with Ledger(tmp_path, "u-1") as ledger:
            origin, address = Origin("helmet", "e0", "node-e0"), topics.RESULT.at(ns=NS, service="helmet")
            results = ResultResponder(origin, result_outbox(w.camera), address, ledger)
            loop = EdgeWorker(ModelSlot(LoadedModel(Brightness(), thread)), results, ledger, thread)
            assert await loop.drain(1.0)
            offered = asyncio.create_task(loop.intake.offer(pack(new_frame(np.zeros((2, 2), np.uint8))), "cam0"))
            await asyncio.sleep(60)
            assert not offered.done()
            offered.cancel()
            assert ledger[Count.ACCEPTED] == 0


async def test_what_cannot_be_delivered_before_the_end_is_answered_by_the_next_worker(w: World) -> None:
    async with w.worker("edge", "e0", grace_s=2.0):
        w.buses[f"worker.{NS}.e0"].cut()
        sent = [await w.send(EASY) for _ in range(3)]
        await asyncio.sleep(1)
    async with w.worker("edge", "e0"):
        await eventually(lambda: sorted(w.results) == sorted(sent))
        await eventually(lambda: w.info("e0").inference_number == 3)
        assert w.info("e0").lost == 0


async def test_a_full_worker_holds_its_cameras_back_and_memory_stays_bounded(w: World) -> None:
    async with w.worker("edge", "e0", grace_s=1.0):
        w.buses[f"worker.{NS}.e0"].cut()
        sent = [await w.send(EASY) for _ in range(1000)]
        await asyncio.sleep(5)
        intake = next(link for name, link in w.broker.links.items() if name.startswith(f"intake.{NS}.e0"))
        assert len(intake.session.unacknowledged) == INTAKE_RECEIVE_MAXIMUM
        assert len(intake.session.waiting) > 400
        w.buses[f"worker.{NS}.e0"].heal()
        await eventually(lambda: len(w.results) == 1000, 60)
        assert set(w.results) == set(sent)
