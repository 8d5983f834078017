"""Each accepted frame gets exactly one result: the small model's, the cloud's, or the edge's with the reason why."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halimede import topics
from halimede.bus.memory import MemoryBroker
from halimede.frames import encode_image, new_frame, pack
from halimede.messages import Count, Prediction
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.responders import Origin, ResultResponder, result_outbox
from halimede.pipeline.workers import EdgeWorker
from halimede.stats.ledger import Ledger
from halimede.worker.joint_inference import INTAKE_RECEIVE_MAXIMUM
from tests.simulated import eventually, simulated
from tests.unit.frames.clouds import Brightness
from tests.unit.worker.world import BREAKS_BOTH, BREAKS_SMALL, EASY, HARD, NS, world


@simulated
async def test_an_easy_sample_is_answered_by_the_edge_and_a_hard_one_by_the_cloud(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("cloud", "c0"), w.worker("edge", "e0"):
        easy, hard = await w.answer(await w.send(EASY, sequence=3)), await w.answer(await w.send(HARD))
        assert (easy.by, easy.hard, easy.degraded, easy.label, easy.edge) == ("edge", False, False, "small", None)
        assert (easy.camera, easy.sequence, easy.worker, easy.node) == ("cam0", 3, "e0", "node-e0")
        assert (hard.by, hard.hard, hard.degraded, hard.label, hard.worker) == ("cloud", True, False, "big", "c0")
        assert hard.edge is not None
        assert hard.edge.label == "small"
        await eventually(lambda: w.info("e0").inference_number == 2)
        info = w.info("e0")
        assert (info.edge_inference_number, info.cloud_inference_number, info.hard_example_number) == (1, 1, 1)
        assert (info.upload_cloud_ratio, info.degraded, info.lost) == (0.5, 0, 0)
        assert info.edge_latency is not None
        assert info.offload_latency is not None
        await eventually(lambda: w.info("c0").served == 1)
        assert w.info("c0").batches == 1


@simulated
async def test_hundreds_of_frames_get_one_result_each(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("cloud", "c0"), w.worker("edge", "e0"):
        sent = []
        for i in range(300):
            sent.append(await w.send(HARD if i % 5 == 0 else EASY))
            if i % 5 == 0:
                await asyncio.sleep(0.02)  # at camera pace: nothing is shed
        await eventually(lambda: len(w.results) == 300)
        assert set(w.results) == set(sent)
        assert set(w.copies.values()) == {1}
        assert sum(r.by == "cloud" for r in w.results.values()) == 60


@simulated
async def test_without_a_cloud_the_edge_answers_marked_degraded_and_recovers_when_one_comes(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e0"):
        first, second = await w.answer(await w.send(HARD)), await w.answer(await w.send(HARD))
        assert [(r.by, r.hard, r.degraded, r.reason) for r in (first, second)] == [
            ("edge", True, True, "no-cloud"),
            ("edge", True, True, "circuit-open"),
        ]
        assert first.label == "small"
        async with w.worker("cloud", "c0"):
            third = await w.answer(await w.send(HARD))
            assert (third.by, third.degraded) == ("cloud", False)
        await eventually(lambda: w.info("e0").degraded == 2)
        assert w.info("e0").upload_cloud_ratio == pytest.approx(1 / 3)


@simulated
async def test_a_repeated_frame_is_acknowledged_and_dropped(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e0"):
        payload = pack(new_frame(np.full((2, 2), EASY, np.uint8)))
        for _ in range(3):
            await w.camera.publish(topics.CAMERA_FRAME.at(ns=NS, camera="cam0"), payload)
        last = await w.send(EASY)
        await w.answer(last)
        await asyncio.sleep(1)
        assert len(w.results) == 2
        assert set(w.copies.values()) == {1}


@simulated
async def test_bad_frames_are_rejected_counted_dead_lettered_and_the_stream_goes_on(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e0"):
        address = topics.CAMERA_FRAME.at(ns=NS, camera="cam0")
        png = encode_image(np.zeros((40, 40), np.uint8), "png")
        for payload in (b"", b"garbage", pack(new_frame(np.zeros((2, 2), np.uint8)))[:-2], png[: len(png) // 2]):
            await w.camera.publish(address, payload)
        good = await w.send(EASY)
        await w.answer(good)
        await eventually(lambda: w.info("e0").rejected == 4)
        assert w.info("e0").lost == 0
        assert len(w.letters) == 4
        assert {letter.topic for letter in w.letters} == {str(address)}
        assert list(w.results) == [good]


@simulated
async def test_a_bare_jpeg_is_answered(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e0"):
        out = io.BytesIO()
        Image.new("L", (20, 20), EASY).save(out, format="JPEG")
        await w.camera.publish(topics.CAMERA_FRAME.at(ns=NS, camera="cam0"), out.getvalue(), qos=0)
        await eventually(lambda: len(w.results) == 1)
        assert next(iter(w.results.values())).camera == "cam0"


@simulated
async def test_what_the_small_model_cannot_answer_is_the_clouds_to_answer(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("cloud", "c0"), w.worker("edge", "e0"):
        result = await w.answer(await w.send(BREAKS_SMALL))
        assert (result.by, result.hard, result.label, result.edge) == ("cloud", True, "big", None)


@simulated
async def test_what_neither_model_can_answer_still_gets_a_result_with_its_reason(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("cloud", "c0"), w.worker("edge", "e0"):
        result = await w.answer(await w.send(BREAKS_BOTH))
        assert (result.by, result.degraded, result.reason) == ("edge", True, "error")
        assert result.prediction == Prediction()
        assert (await w.answer(await w.send(EASY))).label == "small"


@simulated
async def test_a_mining_error_makes_the_sample_hard_and_is_counted(tmp_path: Path) -> None:
    class Improper:
        def predict(self, _: object) -> str:
            return "a label and no probabilities"

    async with world(tmp_path) as w, w.worker("cloud", "c0"), w.worker("edge", "e0", Improper):
        assert (await w.answer(await w.send(EASY))).by == "cloud"
        await eventually(lambda: w.info("e0").mining_errors == 1)


@simulated
async def test_results_wait_for_the_broker_and_none_is_lost_or_doubled_in_the_ledger(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e0"):
        own = w.buses[f"worker.{NS}.e0"]
        own.cut()
        sent = [await w.send(EASY) for _ in range(5)]
        await asyncio.sleep(3)
        assert w.results == {}
        own.heal()
        for id_ in sent:
            await w.answer(id_)
        await eventually(lambda: w.info("e0").inference_number == 5)


@simulated
async def test_a_broker_restart_loses_no_accepted_frame(tmp_path: Path) -> None:
    broker = MemoryBroker()
    async with world(tmp_path, broker) as w, w.worker("cloud", "c0"), w.worker("edge", "e0"):
        await w.answer(await w.send(HARD))
        broker.restart()
        await eventually(lambda: all(bus.connected for bus in (*w.buses.values(), w.camera)), 20)
        await asyncio.sleep(1)
        result = await w.answer(await w.send(HARD))
        assert result.by == "cloud"
        assert w.info("e0").lost == 0


@simulated
async def test_a_camera_that_wants_its_answer_earlier_gets_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e0", deadline_s=60.0):
        w.buses[f"worker.{NS}.e0"].cut()
        frame = new_frame(np.full((2, 2), HARD, np.uint8))
        frame.deadline_ms = 500
        await w.camera.publish(topics.CAMERA_FRAME.at(ns=NS, camera="cam0"), pack(frame))
        await asyncio.sleep(2)
        w.buses[f"worker.{NS}.e0"].heal()
        result = await w.answer(frame.id.hex())
        assert (result.degraded, result.reason) == (True, "no-cloud")
        assert 490 <= result.offload_ms <= 600


@simulated
async def test_two_edge_workers_share_their_cameras_frames(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e0"), w.worker("edge", "e1"):
        sent = [await w.send(EASY) for _ in range(20)]
        await eventually(lambda: len(w.results) == 20)
        assert set(w.results) == set(sent)
        assert set(w.copies.values()) == {1}
        assert {result.worker for result in w.results.values()} == {"e0", "e1"}


@simulated
async def test_a_stopped_edge_answers_what_it_has_even_while_the_cloud_is_silent(tmp_path: Path) -> None:
    broker = MemoryBroker()
    async with world(tmp_path, broker) as w:
        async with w.worker("edge", "e0", deadline_s=600.0, grace_s=9.0) as stop:
            own = w.buses[f"worker.{NS}.e0"]
            # somebody listens and never answers
            await w.camera.subscribe(topics.REQUEST.filter(group="x", ns=NS, service="helmet"), _ignore)
            sent = [await w.send(HARD) for _ in range(4)]
            await asyncio.sleep(1)
            assert own.connected
            stop.set()
            for id_ in sent:
                assert (await w.answer(id_)).reason == "deadline"
        assert w.status("e0") == "completed"
        assert (w.info("e0").inference_number, w.info("e0").lost) == (4, 0)


@simulated
async def test_easy_samples_get_through_while_hard_ones_wait_for_a_silent_cloud(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e0", deadline_s=600.0, grace_s=3.0):
        await w.camera.subscribe(topics.REQUEST.filter(group="x", ns=NS, service="helmet"), _ignore)
        for _ in range(200):
            await w.send(HARD)
        easy = await w.answer(await w.send(EASY))
        assert not easy.hard
        assert {r.reason for r in w.results.values() if r.degraded} == {"window-full"}
        assert len(w.results) == 200 - 32 - 48 + 1


@simulated
async def test_a_frame_offered_after_the_end_is_neither_accepted_nor_acknowledged(tmp_path: Path) -> None:
    async with world(tmp_path) as w, ModelThread() as thread:
        with Ledger(tmp_path, "u-1") as ledger:
            origin = Origin("helmet", "e0", "node-e0")
            results = ResultResponder(
                origin, result_outbox(w.camera), topics.RESULT.at(ns=NS, service="helmet"), ledger
            )
            loop = EdgeWorker(ModelSlot(LoadedModel(Brightness(), thread)), results, ledger, thread)
            assert await loop.drain(1.0)
            offered = asyncio.create_task(loop.intake.offer(pack(new_frame(np.zeros((2, 2), np.uint8))), "cam0"))
            await asyncio.sleep(60)
            assert not offered.done()
            offered.cancel()
            assert ledger[Count.ACCEPTED] == 0


async def _ignore(_: object) -> None:
    return


@simulated
async def test_what_cannot_be_delivered_before_the_end_is_answered_by_the_next_worker(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        async with w.worker("edge", "e0", grace_s=2.0):
            w.buses[f"worker.{NS}.e0"].cut()
            sent = [await w.send(EASY) for _ in range(3)]
            await asyncio.sleep(1)
        async with w.worker("edge", "e0"):
            await eventually(lambda: sorted(w.results) == sorted(sent))
            await eventually(lambda: w.info("e0").inference_number == 3)
            assert w.info("e0").lost == 0


@simulated
async def test_a_full_worker_holds_its_cameras_back_and_memory_stays_bounded(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e0", grace_s=1.0):
        w.buses[f"worker.{NS}.e0"].cut()
        sent = [await w.send(EASY) for _ in range(1000)]
        await asyncio.sleep(5)
        intake = next(link for name, link in w.broker.links.items() if name.startswith(f"intake.{NS}.e0"))
        assert len(intake.session.unacknowledged) == INTAKE_RECEIVE_MAXIMUM
        assert len(intake.session.waiting) > 400
        w.buses[f"worker.{NS}.e0"].heal()
        await eventually(lambda: len(w.results) == 1000, 60)
        assert set(w.results) == set(sent)
