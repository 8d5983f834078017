"""A member whose model is broken costs nobody else an answer, and one that has little time to stop loses nothing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from halimede.api.jointinference import FrameSourceSpec
from tests.simulated import eventually, simulated
from tests.unit.multiedge.world import Pixel, members


class Slow(Pixel):
    """Takes its time."""

    def predict(self, data: Any) -> dict[str, Any]:
        time.sleep(0.005)
        return super().predict(data)


class Broken(Pixel):
    """Fails at once, so that it seems to be quick."""

    tried = 0

    def predict(self, data: Any) -> dict[str, Any]:
        Broken.tried += 1
        raise RuntimeError("no memory on this device")


@simulated
async def test_what_a_peer_fails_at_is_done_at_home(tmp_path: Path) -> None:
    async with members(tmp_path) as world:
        world.model = Slow
        a = await world.start("a", "shared")
        world.model = Broken
        b = await world.start("b", "shared", source=FrameSourceSpec(cameras=["cam1"]))
        ids = [await world.send(value) for value in range(60)]
        results = [await world.answer(id_) for id_ in ids]
        assert Broken.tried > 0
        assert [(result.label, result.degraded) for result in results] == [(str(value), False) for value in range(60)]
        assert all(count == 1 for count in world.copies.values())
        for running in (a, b):
            running.stop.set()
            await running.task


@simulated
async def test_one_that_has_no_time_to_finish_leaves_its_frames_to_the_others(tmp_path: Path) -> None:
    async with members(tmp_path) as world:
        # nobody brings findings together, so they wait for that until their deadline
        a = await world.start("a", "together", cloud=True, grace_s=0.3, deadline_s=30.0)
        b = await world.start("b", "together", cloud=True, deadline_s=0.2, source=FrameSourceSpec(cameras=["cam1"]))
        ids = [await world.send(100 + value % 50) for value in range(150)]
        await asyncio.sleep(0.5)
        a.stop.set()
        await a.task
        await eventually(lambda: set(world.results) >= set(ids))
        b.stop.set()
        await b.task


@simulated
async def test_one_that_stops_does_not_stay_to_tell_another_all_that_it_knows(tmp_path: Path) -> None:
    async with members(tmp_path) as world:
        world.broker.faults.delay_s = (0.01, 0.01)
        a = await world.start("a", "elephant")
        b = await world.start("b", "elephant")
        await asyncio.sleep(2)
        began = asyncio.get_running_loop().time()
        a.stop.set()
        await a.task
        assert asyncio.get_running_loop().time() - began < 5
        b.stop.set()
        await b.task
