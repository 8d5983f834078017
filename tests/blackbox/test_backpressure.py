"""More frames than a worker can hold: it holds back their source, its memory is bounded, and each is answered once."""

from __future__ import annotations

import asyncio

import numpy as np
from PIL import Image

from tests.blackbox.models import EASY, HARD, big, small
from tests.blackbox.world import World
from tests.waiting import eventually

#: frames that an edge worker has accepted and not answered, at most
MOST_INSIDE = 96
#: of a source that waits, such as a folder
MOST_PATIENT = 16


async def test_a_folder_waits_for_a_slow_cloud_and_loses_nothing(world: World) -> None:
    folder = world.folder / "pictures"
    folder.mkdir()
    for number in range(80):
        Image.fromarray(np.full((4, 4), HARD, np.uint8)).save(folder / f"{number:03}.png")
    model = big(seconds=0.001)
    async with world.worker("cloud", "c0", model):
        with model.held():
            async with world.worker("edge", "e0", small(), SOURCE=f'{{"path": "{folder}"}}', DEADLINE_MS="60000"):
                await world.holds("e0", MOST_PATIENT)
                model.release()
                await eventually(lambda: len(world.results) == 80)
                await eventually(lambda: world.counts("e0").inference_number == 80)
    assert set(world.copies.values()) == {1}
    assert {(result.by, result.degraded) for result in world.results.values()} == {("cloud", False)}


async def test_a_busy_edge_worker_holds_its_cameras_back_and_answers_all(world: World) -> None:
    model = small()
    async with world.worker("edge", "e0", model):
        await world.ask(EASY)
        with model.held():
            sent = [await world.send(EASY) for _ in range(300)]
            await eventually(lambda: len(model.calls) == 2)
            for _ in range(5):
                assert 0 < await world.metric("e0", "queued_frames") <= MOST_INSIDE
                await asyncio.sleep(0.01)
        await world.answered(sent)
        await eventually(lambda: world.counts("e0").inference_number == 301)
        assert (world.counts("e0").lost, world.counts("e0").skipped) == (0, 0)


async def test_cameras_that_overwhelm_the_cloud_get_all_their_answers(world: World) -> None:
    async with world.worker("cloud", "c0", big(seconds=0.005)), world.worker("edge", "e0", small()):
        await world.knows("e0", "c0")
        results = await world.answered([await world.send(HARD) for _ in range(200)])
        assert "cloud" in {result.by for result in results}
        assert {result.reason for result in results if result.degraded} <= {"window-full", "shed", "too-slow"}
        await eventually(lambda: world.counts("e0").inference_number == 200)
        degraded = sum(result.degraded for result in results)
        await eventually(lambda: world.counts("c0").served >= 200 - degraded)
        assert world.counts("e0").degraded == degraded
