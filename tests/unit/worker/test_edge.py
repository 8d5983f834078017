"""An edge worker that is full or stopped, or that has a budget or a deadline which the cloud does not meet."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from halimede.frames import new_frame
from halimede.messages import Result
from halimede.worker.joint_inference import INTAKE_RECEIVE_MAXIMUM
from tests.simulated import eventually
from tests.unit.frames.clouds import ScriptedCloud
from tests.unit.offload.test_client import slow
from tests.unit.worker.world import EASY, HARD, NS, World

pytestmark = pytest.mark.simulated


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


class Shades:
    """Answers with the parity of a shade; the brighter, the less sure."""

    def predict(self, data: Any) -> dict[str, Any]:
        value = int(np.asarray(data).flat[0])
        sure = 1 - value / 520
        return {"label": f"is {value % 2}", "probabilities": [sure, 1 - sure]}


async def shades(w: World, count: int, seed: int) -> list[Result]:
    """Send so many frames at a camera's pace; return the answers in order."""
    ids, chance = list[str](), random.Random(seed)
    for _ in range(count):
        ids.append(await w.send(chance.randrange(200)))
        await asyncio.sleep(0.02)
    return [await w.answer(id_) for id_ in ids]


async def test_the_budget_is_held_and_results_say_with_which_cut(w: World) -> None:
    options: dict[str, Any] = {"target_upload_ratio": 0.2, "hem_parameters": {"threshold_margin": "1.0"}}
    async with w.worker("cloud", "c0"):
        async with w.worker("edge", "e0", Shades, **options):
            results = await shades(w, 600, 1)
            assert sum(r.by == "cloud" for r in results) / 600 == pytest.approx(0.2, abs=0.02)
            later = [
                (r.hard, r.hardness - r.cut) for r in results[100:] if r.hardness is not None and r.cut is not None
            ]
            assert len(later) > 400
            assert all(hard == (over > 0) for hard, over in later if over)
            assert not any(r.degraded for r in results)
            assert set(w.copies.values()) == {1}
            await eventually(lambda: w.info("e0").inference_number == 600)
            assert w.info("e0").upload_cloud_ratio == pytest.approx(0.2, abs=0.02)
            assert w.info("e0").uploaded_bytes == 16 * w.info("e0").cloud_inference_number
        async with w.worker("edge", "e0", Shades, **options):  # begins with what the first one has spent
            await shades(w, 100, 2)
            await eventually(lambda: w.info("e0").inference_number == 700)
            assert w.info("e0").upload_cloud_ratio == pytest.approx(0.2, abs=0.02)


async def test_what_would_be_back_too_late_is_not_sent(w: World) -> None:
    cloud = ScriptedCloud(w.camera, "c0", slow(0.5))
    await cloud.start()
    async with w.worker("edge", "e0"):
        for _ in range(6):
            assert (await w.answer(await w.send(HARD))).by == "cloud"
        hurried = []
        for _ in range(4):
            frame = new_frame(np.full((4, 4), HARD, np.uint8))
            frame.deadline_ms = 100
            hurried.append(await w.answer(await w.show(frame)))
        assert [r.reason for r in hurried] == ["deadline", "too-slow", "too-slow", "too-slow"]  # first a probe
        assert all(r.hard and r.degraded and r.by == "edge" for r in hurried)
        assert len(cloud.seen) == 7
        await eventually(lambda: w.info("e0").withheld == 3)
        await cloud.advertise(8)  # it was taken for silent
        assert (await w.answer(await w.send(HARD))).by == "cloud"
