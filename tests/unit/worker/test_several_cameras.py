"""Several live cameras of one worker: equal shares of a model that is too slow for them, and no frame lost silently."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.api.jointinference import FrameSourceSpec
from halimede.frames import new_frame
from halimede.pipeline.intake import EdgeLimits
from halimede.worker import frame_backlog
from tests.simulated import eventually
from tests.unit.worker.world import World, world
from tests.waiting import patience

CAMERAS = ["cam0", "cam1", "cam2", "cam3"]
#: frames of each camera in one burst: the first one sends four times as many as the others
BURST = {"cam0": 8, "cam1": 2, "cam2": 2, "cam3": 2}
#: answers before the cameras have filled all places of the worker, and answers that are counted then
FIRST, COUNTED = EdgeLimits().inside + 24, 200
#: frames that the model takes in the time of one burst, and the longest time that it waits for the next burst, in s
PERMITS, WAIT_S = 4, 20.0


class PacedModel:
    """Takes as many frames as the test permits, however fast the machine is, and is sure."""

    def __init__(self) -> None:
        self.permits = threading.Semaphore(0)
        self.calls = 0

    def predict(self, _: Any) -> dict[str, Any]:
        assert self.permits.acquire(timeout=patience(WAIT_S))
        self.calls += 1
        return {"label": "one", "probabilities": [0.9, 0.1]}

    def has_calls(self, count: int) -> bool:
        return self.calls >= count


class SlowModel:
    """Takes some time for a frame, and is sure."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def predict(self, _: Any) -> dict[str, Any]:
        time.sleep(self._seconds)
        return {"label": "one", "probabilities": [0.9, 0.1]}


async def test_cameras_get_equal_shares_and_each_dropped_frame_is_counted(w: World) -> None:
    sent: Counter[str] = Counter()
    source, model, permit_count = FrameSourceSpec(cameras=CAMERAS), PacedModel(), 0
    async with w.worker("edge", "e", model, source=source):
        while len(w.results) < FIRST + COUNTED:
            for camera, count in BURST.items():
                for _ in range(count):
                    await w.show(new_frame(np.zeros((4, 4), np.uint8), camera=camera), camera, qos=0)
                    sent[camera] += 1
            permit_count += PERMITS
            model.permits.release(PERMITS)
            await eventually(partial(model.has_calls, permit_count), every_s=0.001)
        model.permits.release(sent.total())
    shares = Counter(result.camera for result in list(w.results.values())[FIRST : FIRST + COUNTED])
    fair = COUNTED / len(CAMERAS)
    assert all(abs(shares[camera] - fair) <= 0.1 * fair for camera in CAMERAS), shares
    assert sent.total() > 1.5 * len(w.results), "the model is the bottleneck"
    await eventually(lambda: w.info("e").skipped + len(w.results) == sent.total())


@pytest.mark.parametrize("qos", [0, 1])
async def test_frames_that_are_too_old_are_dropped_and_counted_and_those_answered_are_not_old(
    w: World, qos: int
) -> None:
    sent, times, ages = 0, dict[str, float](), list[float]()
    max_age_ms, call_s = 100, 0.04
    source = FrameSourceSpec(cameras=CAMERAS, max_age_ms=max_age_ms)
    async with w.worker("edge", "e", SlowModel(call_s), source=source):
        while len(ages) < 60:
            for camera in CAMERAS:
                frame = new_frame(np.zeros((4, 4), np.uint8), camera=camera)
                times[frame.id.hex()] = time.monotonic()
                await w.show(frame, camera, qos=qos)
                sent += 1
            await asyncio.sleep(0.005)
            ages += [time.monotonic() - times.pop(id_) for id_ in list(w.results) if id_ in times]
    assert sent > 3 * len(w.results), "the model is the bottleneck"
    # without a maximum, 96 accepted frames of 40 ms wait: they are over three seconds old
    assert sorted(ages)[len(ages) // 2] < 2.5
    await eventually(lambda: w.info("e").skipped + len(w.results) == sent)
    assert (w.info("e").lost, w.letters) == (0, [])


async def test_frames_of_qos_1_without_a_maximum_age_are_all_answered_and_a_backlog_is_reported(
    w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_backlog, "BACKLOG_S", 0.2)
    count, source, model = 3 * EdgeLimits().inside, FrameSourceSpec(cameras=CAMERAS), PacedModel()
    async with w.worker("edge", "e", model, source=source, period_s=0.05):
        for number in range(count):
            await w.send(0, CAMERAS[number % 4])
        await eventually(lambda: w.infos["e"][-1].reason == "ModelTooSlow")
        assert "source.maxAgeMs" in w.infos["e"][-1].message
        model.permits.release(count)
        await eventually(lambda: len(w.results) == count, 60)
        assert w.info("e").skipped == 0
        await eventually(lambda: not w.infos["e"][-1].reason)


async def test_frames_that_wait_for_the_cloud_are_no_slow_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_backlog, "BACKLOG_S", 0.0)
    options: dict[str, Any] = {"hem_name": "CloudOnly", "hem_parameters": {}, "deadline_s": 60.0, "period_s": 0.05}
    async with world(tmp_path) as w:
        requests = await w.silent_cloud()
        async with w.worker("edge", "e0", SlowModel(0.0), grace_s=0.5, **options):
            count = 3 * EdgeLimits().inside
            for value in range(count):
                await w.send(value % 256)
            # the other samples wait for the cloud
            await eventually(lambda: len(requests) > 30 and len(w.results) >= count - 80)
            await eventually(lambda: not w.infos["e0"][-1].reason)
            reported = len(w.infos["e0"])
            await eventually(lambda: len(w.infos["e0"]) > reported + 3)
            assert {info.reason for info in w.infos["e0"][reported:]} == {""}
