"""Fusion as it runs: members with a camera each, findings over the bus, one answer for all frames of an instant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede import topics
from halimede.api.deferral import Parameter
from halimede.api.jointinference import FrameSourceSpec
from halimede.api.multiedge import ApplicationSpec
from halimede.bus import Delivery
from halimede.bus.memory import MemoryBus
from halimede.frames import new_frame, pack
from halimede.messages import Fused
from halimede.multiedge.settings import MemberSettings
from tests.simulated import eventually
from tests.unit.multiedge.world import NS, Members, members

NOON_NS = 1_795_262_400_000_000_000
CAMERAS = {"a": "cam0", "b": "cam1", "c": "cam2"}
FUSION = ApplicationSpec(name="fusion", parameters=[Parameter(key="rule", value="vote")])


class Scene(Members):
    """Three members that fuse, and who hears of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fused: list[Fused] = []

    async def listen(self, camera: MemoryBus) -> None:
        await super().listen(camera)

        async def fused(delivery: Delivery[Fused]) -> None:
            self.fused.append(delivery.body)

        await camera.subscribe(topics.FUSED.filter(), fused)

    def member_settings(self, name: str, application: str, **changes: Any) -> MemberSettings:
        source = FrameSourceSpec(cameras=[CAMERAS[name]])
        made = super().member_settings(name, application, source=source, **changes)
        return replace(made, application=FUSION, cameras=tuple(CAMERAS.values()))

    async def film(self, values: dict[str, int], instant: int) -> list[str]:
        """Have cameras take a picture each at one time; return the frames' ids."""
        frames = []
        for i, (camera, value) in enumerate(values.items()):
            frame = new_frame(np.full((4, 4), value, np.uint8))
            frame.captured_ns = NOON_NS + instant * 1_000_000_000 + i * 1_000_000
            await self.camera.publish(topics.CAMERA_FRAME.at(ns=NS, camera=camera), pack(frame))
            frames.append(frame.id.hex())
        return frames


@pytest.mark.simulated
async def test_every_frame_of_an_instant_gets_what_the_sources_say_together(tmp_path: Path) -> None:
    async with members(tmp_path, Scene) as scene:
        running = {name: await scene.start(name, "fusion") for name in CAMERAS}
        ids = await scene.film({"cam0": 10, "cam1": 12, "cam2": 12}, 0)
        results = await scene.answers(ids)
        assert {(result.by, result.label) for result in results} == {("joint", "12")}
        assert [result.edge.label for result in results if result.edge] == ["10", "12", "12"]
        await eventually(lambda: len(scene.fused) == 1)
        assert [(s.camera, s.worker, s.label) for s in scene.fused[0].sources] == [
            ("cam0", "a", "10"), ("cam1", "b", "12"), ("cam2", "c", "12")]  # fmt: skip

        # one that has nothing to say is waited for, but not for ever
        (alone,) = await scene.film({"cam1": 13}, 1)
        result = await scene.answer(alone)
        assert (result.by, result.label, result.degraded) == ("joint", "13", False)
        assert result.prediction.value["missing"] == ["cam0", "cam2"]

        # the worker where findings come together dies: the next one goes on, with what comes from now on
        await running["a"].kill()
        await eventually(lambda: "a" not in scene.peers)
        ids = await scene.film({"cam1": 14, "cam2": 14}, 2)
        assert {(result.by, result.label) for result in await scene.answers(ids)} == {("joint", "14")}
    assert set(scene.copies.values()) == {1}
