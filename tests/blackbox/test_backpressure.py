"""More frames than a worker can hold: it holds back their source, its memory is bounded, and each is answered once."""

from __future__ import annotations

import asyncio

from tests.blackbox.models import EASY, HARD, big, small
from tests.blackbox.world import World
from tests.waiting import eventually

#: frames that an edge worker has accepted and not answered, at most
MOST_INSIDE = 96


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
    async with world.pair(big(seconds=0.005), small()):
        results = await world.answered([await world.send(HARD) for _ in range(200)])
        assert "cloud" in {result.by for result in results}
        assert {result.reason for result in results if result.degraded} <= {"window-full", "shed", "too-slow"}
        await eventually(lambda: world.counts("e0").inference_number == 200)
        degraded = sum(result.degraded for result in results)
        await eventually(lambda: world.counts("c0").served >= 200 - degraded)
        assert world.counts("e0").degraded == degraded
