"""``balance`` as its workers run it: one has all the frames, its peers answer what it has no time for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from halimede.api.deferral import Parameter
from halimede.api.jointinference import FrameSourceSpec
from halimede.api.multiedge import ApplicationSpec
from halimede.bus.memory import MemoryBus
from halimede.multiedge.settings import MemberSettings
from tests.simulated import eventually, simulated
from tests.unit.multiedge.world import Members, Pixel, Running


class Slow(Pixel):
    """Takes its time, in which the model's thread is busy."""

    def predict(self, data: Any) -> dict[str, Any]:
        time.sleep(0.002)
        return super().predict(data)


class Balanced(Members):
    """Each member has the camera that is named like it."""

    model = Slow
    share = "true"

    def member_settings(self, name: str, application: str, *, cloud: bool = False, **changes: Any) -> MemberSettings:
        settings = super().member_settings(
            name, application, source=FrameSourceSpec(cameras=[f"cam-{name}"]), **changes
        )
        parameters = [Parameter(key="share", value=self.share)]
        return replace(settings, application=ApplicationSpec(name="balance", parameters=parameters))


@contextlib.asynccontextmanager
async def balanced(folder: Path, share: str = "true") -> AsyncIterator[tuple[Balanced, list[Running]]]:
    made = Balanced(folder)
    made.share = share
    async with MemoryBus("camera", made.broker) as camera:
        await made.listen(camera)
        running = [await made.start(name, "") for name in "abc"]
        await asyncio.sleep(0.5)
        yield made, running
        for one in running:
            one.stop.set()
            with contextlib.suppress(asyncio.CancelledError):
                await one.task


async def sent(world: Balanced, count: int) -> list[str]:
    return [await world.send(value % 200, camera="cam-a") for value in range(count)]


@simulated
async def test_peers_answer_what_one_worker_has_no_time_for(tmp_path: Path) -> None:
    async with balanced(tmp_path) as (world, _):
        results = [await world.answer(id_) for id_ in await sent(world, 150)]
        assert [result.label for result in results] == [str(value % 200) for value in range(150)]
        by = Counter((result.by, result.worker) for result in results)
        assert set(by) == {("edge", "a"), ("peer", "b"), ("peer", "c")}
        assert set(world.copies.values()) == {1}
        assert not any(result.degraded for result in results)


@simulated
async def test_without_sharing_each_answers_its_own(tmp_path: Path) -> None:
    async with balanced(tmp_path, share="false") as (world, _):
        results = [await world.answer(id_) for id_ in await sent(world, 50)]
        assert {(result.by, result.worker) for result in results} == {("edge", "a")}


@simulated
async def test_what_a_peer_had_when_it_was_killed_is_answered_by_others(tmp_path: Path) -> None:
    async with balanced(tmp_path) as (world, running):
        ids = asyncio.create_task(sent(world, 150))
        await eventually(lambda: any(result.worker == "b" for result in world.results.values()), every_s=0.001)
        await running[1].kill()
        results = [await world.answer(id_) for id_ in await ids]
        assert [result.label for result in results] == [str(value % 200) for value in range(150)]
        assert set(world.copies.values()) == {1}
