"""Edge workers with a budget, audits, a deadline that the way does not meet, mixtures, and mining before inference."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.frames import new_frame, pack
from halimede.messages import Frame, Prediction, Reply, Result
from halimede.mining.calibration_file import CalibrationFile, MixtureRule, Reference, write_artefact
from halimede.worker.errors import WorkerError
from tests.simulated import eventually
from tests.unit.frames.clouds import ScriptedCloud
from tests.unit.worker.world import BREAKS_SMALL, EASY, HARD, NS, World, world

pytestmark = pytest.mark.simulated


class Shades:
    """Answers with the parity of a shade; the brighter, the less sure, and it counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def predict(self, data: Any) -> dict[str, Any]:
        self.asked += 1
        value = int(np.asarray(data).flat[0])
        sure = 1 - value / 520
        return {"label": f"is {value % 2}", "probabilities": [sure, 1 - sure]}


class Disagrees:
    """The same, but for one shade in five."""

    def predict(self, data: Any) -> dict[str, Any]:
        value = int(np.asarray(data).flat[0])
        return {"label": "else" if value % 5 == 0 else f"is {value % 2}", "probabilities": [0.9, 0.1]}


async def shades(w: World, n: int, chance: random.Random) -> list[Result]:
    """Send so many frames at a camera's pace; return the answers in order."""
    sent = []
    for _ in range(n):
        sent.append(await w.send(chance.randrange(200)))
        await asyncio.sleep(0.02)
    return [await w.answer(id_) for id_ in sent]


def calibration(folder: Path, **changes: Any) -> Path:
    path = folder / "calibration.json"
    path.write_bytes(write_artefact(CalibrationFile(service="helmet", **changes)))
    return path


async def test_the_budget_is_held_and_results_say_with_which_cut(tmp_path: Path) -> None:
    options: dict[str, Any] = {"target_upload_ratio": 0.2, "hem_parameters": {"threshold_margin": "1.0"}}
    async with world(tmp_path) as w, w.worker("cloud", "c0", Disagrees):
        async with w.worker("edge", "e0", Shades, **options):
            results = await shades(w, 600, random.Random(1))
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
            results = await shades(w, 100, random.Random(2))
            await eventually(lambda: w.info("e0").inference_number == 700)
            assert w.info("e0").upload_cloud_ratio == pytest.approx(0.2, abs=0.02)


async def test_audits_measure_easy_answers_without_holding_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "random", random.Random(2).random)  # which draws the audits
    options: dict[str, Any] = {"audit_share": 0.5, "hem_name": "EdgeOnly", "hem_parameters": {}}
    async with world(tmp_path) as w, w.worker("cloud", "c0", Disagrees), w.worker("edge", "e0", Shades, **options):
        results = await shades(w, 200, random.Random(1))
        audited = [r for r in results if r.audit]
        assert 70 < len(audited) < 130
        chance = random.Random(1)  # draws what was sent again
        agreed = sum(chance.randrange(200) % 5 != 0 and r.audit for r in results)
        assert agreed < len(audited)
        assert {(r.by, r.hard, r.degraded) for r in audited} == {("edge", False, False)}
        assert set(w.copies.values()) == {1}
        await eventually(lambda: w.info("e0").audited == len(audited))
        info = w.info("e0")
        assert info.audit_agreed == agreed
        assert (info.cloud_inference_number, info.hard_example_number) == (0, 0)
        assert info.upload_cloud_ratio == pytest.approx(len(audited) / 200)


async def test_an_audit_that_nobody_answers_changes_no_answer(tmp_path: Path) -> None:
    options: dict[str, Any] = {"audit_share": 1.0, "hem_name": "EdgeOnly", "hem_parameters": {}}
    async with world(tmp_path) as w, w.worker("edge", "e0", **options):
        result = await w.answer(await w.send(EASY))
        assert (result.by, result.audit, result.degraded) == ("edge", True, False)
        await asyncio.sleep(5)
        assert (w.info("e0").audited, w.info("e0").degraded) == (0, 0)


async def test_what_would_be_back_too_late_is_not_sent(tmp_path: Path) -> None:
    async with world(tmp_path) as w:

        async def slow(delivery: Delivery[Frame]) -> Reply:
            await asyncio.sleep(0.5)
            return Reply(id=delivery.body.id, worker="c0", prediction=Prediction(label="big"))

        cloud = ScriptedCloud(w.camera, "c0", slow)
        await cloud.start()
        async with w.worker("edge", "e0"):
            for _ in range(6):
                assert (await w.answer(await w.send(HARD))).by == "cloud"
            hurried = []
            for _ in range(4):
                frame = new_frame(np.full((4, 4), HARD, np.uint8))
                frame.deadline_ms = 100
                await w.camera.publish(topics.CAMERA_FRAME.at(ns=NS, camera="cam0"), pack(frame))
                hurried.append(await w.answer(frame.id.hex()))
            assert [r.reason for r in hurried] == ["deadline", "too-slow", "too-slow", "too-slow"]  # first a probe
            assert all(r.hard and r.degraded and r.by == "edge" for r in hurried)
            assert len(cloud.seen) == 7
            await eventually(lambda: w.info("e0").withheld == 3)
            await cloud.advertise(8)  # it was taken for silent
            assert (await w.answer(await w.send(HARD))).by == "cloud"


async def test_two_answers_become_a_mixture_and_what_it_overrules_is_counted(tmp_path: Path) -> None:
    class Sure:
        def predict(self, _: object) -> dict[str, Any]:
            return {"label": "a", "probabilities": [0.9, 0.1]}

    class Unsure:
        def predict(self, _: object) -> dict[str, Any]:
            return {"label": "b", "probabilities": [0.45, 0.55]}

    path = calibration(tmp_path, labels=["a", "b"], mixture=MixtureRule(kind="product", edge=1.0, cloud=1.0))
    options: dict[str, Any] = {"calibration": path, "hem_name": "CloudOnly", "hem_parameters": {}}
    async with world(tmp_path) as w, w.worker("cloud", "c0", Unsure):
        async with w.worker("edge", "e0", Sure, **options, fusion="mixture"):
            result = await w.answer(await w.send(HARD))
            assert (result.by, result.mixed, result.label) == ("cloud", True, "a")
            assert result.prediction.label == "a"
            await eventually(lambda: w.info("e0").overruled == 1)
        async with w.worker("edge", "e1", Sure, **options):
            result = await w.answer(await w.send(HARD))
            assert (result.by, result.mixed, result.label) == ("cloud", False, "b")


async def test_mining_before_inference_spares_the_small_model_what_goes_up(tmp_path: Path) -> None:
    small = Shades()
    options: dict[str, Any] = {"hem_mode": "mining-then-inference", "hem_name": "Random"}
    every: dict[str, Any] = options | {"hem_parameters": {"random_ratio": "1"}}
    none: dict[str, Any] = options | {"hem_parameters": {"random_ratio": "0"}}
    async with world(tmp_path) as w:
        async with w.worker("edge", "e0", small, **every):
            async with w.worker("cloud", "c0", Disagrees):
                asked = small.asked
                result = await w.answer(await w.send(EASY))
                assert (result.by, result.hard, result.edge, small.asked) == ("cloud", True, None, asked)
            result = await w.answer(await w.send(EASY))  # nobody is there: the small model answers after all
            assert (result.by, result.degraded, result.label) == ("edge", True, "is 0")
            assert small.asked == asked + 1
        async with w.worker("edge", "e1", small, **none), w.worker("cloud", "c0", Disagrees):
            result = await w.answer(await w.send(EASY))
            assert (result.by, result.hard, result.label) == ("edge", False, "is 0")
            assert w.info("e1").mining_errors == 0


async def test_what_the_small_model_fails_on_goes_up_though_the_budget_is_spent(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("cloud", "c0"), w.worker("edge", "e0", target_upload_ratio=0.0):
        assert (await w.answer(await w.send(HARD))).by == "edge"
        result = await w.answer(await w.send(BREAKS_SMALL))
        assert (result.by, result.hard) == ("cloud", True)


async def test_where_nothing_may_go_up_what_the_small_model_fails_on_stays(tmp_path: Path) -> None:
    options: dict[str, Any] = {"hem_name": "EdgeOnly", "hem_parameters": {}}
    async with world(tmp_path) as w, w.worker("cloud", "c0"), w.worker("edge", "e0", **options):
        result = await w.answer(await w.send(BREAKS_SMALL))
        assert (result.by, result.degraded, result.reason) == ("edge", True, "error")
        await eventually(lambda: w.info("e0").inference_number == 1)
        assert w.info("e0").uploaded_bytes == 0


async def test_samples_unlike_those_of_the_calibration_are_told(tmp_path: Path) -> None:
    reference = Reference(hardness=[-1 + i / 100 for i in range(51)], classes={"is 0": 0.5, "is 1": 0.5}, samples=500)
    options: dict[str, Any] = {"calibration": calibration(tmp_path, reference=reference)}
    async with world(tmp_path) as w, w.worker("edge", "e0", Shades, **options):
        for _ in range(700):
            await w.send(2 * random.Random(1).randrange(20))
        await eventually(lambda: w.info("e0").drifting == 1)


async def test_a_broken_calibration_is_named_as_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text("not json")
    async with world(tmp_path) as w:
        with pytest.raises(WorkerError) as caught:
            async with w.worker("edge", "e0", calibration=path):
                pass
        assert caught.value.reason == "CalibrationInvalid"
