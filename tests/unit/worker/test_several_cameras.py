"""Several live cameras of one worker: equal shares of a model that is too slow for them, and no frame lost silently."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from halimede import topics
from halimede.api.jointinference import FrameSourceSpec
from halimede.frames import new_frame, pack
from halimede.pipeline.intake import EdgeLimits
from tests.simulated import eventually
from tests.unit.worker.world import NS, world

CAMERAS = ["cam0", "cam1", "cam2", "cam3"]
#: frames of each camera in one burst: the first one sends four times as many as the others
BURST = {"cam0": 8, "cam1": 2, "cam2": 2, "cam3": 2}
#: answers before the cameras have filled all places of the worker, and answers that are counted then
FIRST, COUNTED = EdgeLimits().inside + 24, 200


class SlowModel:
    """Takes 4 ms for a frame, and is sure."""

    def predict(self, _: Any) -> dict[str, Any]:
        time.sleep(0.004)
        return {"label": "one", "probabilities": [0.9, 0.1]}


async def test_cameras_get_equal_shares_and_each_dropped_frame_is_counted(tmp_path: Path) -> None:
    sent: Counter[str] = Counter()
    async with world(tmp_path) as w:
        source = FrameSourceSpec(cameras=CAMERAS)
        async with w.worker("edge", "e", SlowModel, source=source):
            while len(w.results) < FIRST + COUNTED:
                for camera, count in BURST.items():
                    for _ in range(count):
                        frame = new_frame(np.zeros((4, 4), np.uint8), camera=camera)
                        await w.camera.publish(topics.CAMERA_FRAME.at(ns=NS, camera=camera), pack(frame), qos=0)
                        sent[camera] += 1
                await asyncio.sleep(0.002)
        shares = Counter(result.camera for result in list(w.results.values())[FIRST : FIRST + COUNTED])
        fair = COUNTED / len(CAMERAS)
        assert all(abs(shares[camera] - fair) <= 0.1 * fair for camera in CAMERAS), shares
        assert sent.total() > 1.5 * len(w.results), "the model is the bottleneck"
        await eventually(lambda: w.info("e").skipped + len(w.results) == sent.total())
