"""Device, gate and cloud: each tier asks the next one about what it finds hard, and passes its answer on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.blackbox.models import EASY, Estimator
from tests.blackbox.requester import asking
from tests.blackbox.scripted_cloud import ScriptedCloud
from tests.blackbox.world import World, frame
from tests.waiting import eventually

#: grey values: the gate is sure of MIDDLE and the device is not; the cloud alone is sure of HARDEST
MIDDLE, HARDEST = 150, 230
DEVICE = {"TIER": "edge", "NEXT_TIER": "gate"}
DEADLINE_MS = 2000


def device() -> Estimator:
    return Estimator("device", sure_below=100)


def gate() -> Estimator:
    return Estimator("gate", sure_below=220)


@contextlib.asynccontextmanager
async def chain(world: World) -> AsyncIterator[None]:
    """Run a device ``e0``, a gate ``g0`` and a cloud worker ``c0``."""
    async with (
        world.worker("cloud", "c0", Estimator("cloud"), TIER="cloud"),
        world.worker("tier", "g0", gate()),
        world.worker("edge", "e0", device(), **DEVICE),
    ):
        await world.knows("g0", "c0")
        await world.knows("e0", "g0")
        yield


async def test_each_tier_answers_what_it_is_sure_of(world: World) -> None:
    async with chain(world):
        results = [await world.ask(value) for value in (EASY, MIDDLE, HARDEST)]
        assert [(r.by, r.tier, r.worker, r.label) for r in results] == [
            ("edge", "edge", "e0", "device"),
            ("cloud", "gate", "g0", "gate"),
            ("cloud", "cloud", "c0", "cloud"),
        ]
        assert [(r.degraded, r.reason) for r in results] == [(False, "")] * 3
        assert set(world.copies.values()) == {1}
        await eventually(lambda: world.counts("g0").deferred == 1 and world.counts("e0").inference_number == 3)
        between, first = world.counts("g0"), world.counts("e0")
        assert (between.inference_number, between.served, between.uploaded_bytes) == (0, 2, 16)
        assert (first.cloud_inference_number, first.hard_example_number, first.uploaded_bytes) == (2, 2, 32)
        await eventually(lambda: world.counts("c0").served == 1)


async def test_a_burst_through_all_tiers_has_one_result_for_each_frame(world: World) -> None:
    async with chain(world):
        values = [(EASY, MIDDLE, HARDEST)[number % 3] for number in range(90)]
        sent = []
        for value in values:
            sent.append(await world.send(value))
            await asyncio.sleep(0.005)
        results = await world.answered(sent)
        expected = {EASY: "edge", MIDDLE: "gate", HARDEST: "cloud"}
        assert all(r.degraded or r.reason or r.tier == expected[v] for r, v in zip(results, values, strict=True))
        assert {r.tier for r in results} == {"edge", "gate", "cloud"}


async def test_a_tier_gives_its_own_answer_in_time_where_the_next_one_is_silent(world: World) -> None:
    cloud = ScriptedCloud(world, tier="cloud")
    await cloud.start()
    async with world.worker("tier", "c0", gate()):
        await world.knows("c0", "scripted")
        requester = await asking(world)
        reply = await requester.ask(frame(HARDEST), deadline_ms=DEADLINE_MS)
        assert (reply.error, reply.by, reply.tier, reply.reason) == ("", "", "gate", "deadline")
        assert reply.prediction is not None
        assert reply.prediction.label == "gate"
        await cloud.answer(0)
        await eventually(lambda: world.counts("c0").late == 1)
        assert len(requester.got) == 1


async def test_a_tier_says_that_the_next_one_is_not_there(world: World) -> None:
    async with world.worker("tier", "c0", gate()):
        requester = await asking(world)
        reply = await requester.ask(frame(HARDEST), deadline_ms=DEADLINE_MS)
        assert (reply.error, reply.tier, reply.reason) == ("", "gate", "no-cloud")


async def test_a_device_says_that_the_gate_is_not_there(world: World) -> None:
    async with world.worker("edge", "e0", device(), DEADLINE_MS=str(DEADLINE_MS), **DEVICE):
        result = await world.ask(HARDEST)
        assert (result.by, result.label, result.degraded, result.reason) == ("edge", "device", True, "no-cloud")


async def test_a_tier_can_judge_samples_before_its_model(world: World) -> None:
    rule = {
        "MINING_MODE": "mining-then-inference",
        "HEM_NAME": "Random",
        "HEM_PARAMETERS": '[{"key": "random_ratio", "value": "1"}]',
    }
    async with (
        world.worker("cloud", "c1", Estimator("cloud"), TIER="cloud"),
        world.worker("tier", "c0", gate(), **rule),
    ):
        await world.knows("c0", "c1")
        requester = await asking(world)
        assert (await requester.ask(frame(EASY))).by == "c1"


async def test_a_request_that_is_sent_again_while_the_next_tier_has_it_asks_it_once(world: World) -> None:
    cloud = ScriptedCloud(world, tier="cloud")
    await cloud.start()
    model = gate()
    async with world.worker("tier", "c0", model):
        await world.knows("c0", "scripted")
        requester = await asking(world)
        body = frame(HARDEST)
        await requester.send(body, b"first")
        await cloud.asked(1)
        await requester.send(body, b"second")
        await requester.received()
        await cloud.answer(0)
        (reply,) = await requester.replies(1)
        assert (reply.by, requester.got[0].correlation) == ("scripted", b"second")
        again = await requester.ask(body, b"third")
        assert (again.by, again.prediction) == ("scripted", reply.prediction)
        assert (len(cloud.requests), model.seen) == (1, [HARDEST])
