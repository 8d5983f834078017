"""Hard frames whose cloud is silent, late, busy or absent: the edge answers in time, and says why."""

from __future__ import annotations

import pytest

from halimede import topics
from halimede.messages import Prediction, Reply, Result
from halimede.topic import Address
from tests.blackbox.models import EASY, HARD, POISON, big, small
from tests.blackbox.scripted_cloud import ScriptedCloud, scripted
from tests.blackbox.world import World
from tests.waiting import eventually, patience


async def test_a_silent_cloud_costs_the_deadline_and_its_late_answer_is_counted_and_dropped(world: World) -> None:
    async with scripted(world, DEADLINE_MS="2000") as cloud:
        result = await world.ask(HARD)
        assert (result.by, result.hard, result.degraded, result.reason) == ("edge", True, True, "deadline")
        assert (result.label, result.worker, result.edge) == ("small", "e0", None)
        assert 1990 <= result.offload_ms <= result.total_ms < patience(3000)
        await cloud.asked(1)
        await cloud.answer(0)
        await eventually(lambda: world.counts("e0").late == 1)
        await eventually(lambda: world.counts("e0").degraded == 1)
        assert (world.copies[result.id], world.counts("e0").cloud_inference_number) == (1, 0)


async def test_a_request_says_what_the_next_tier_needs_to_know(world: World) -> None:
    async with scripted(world, DEADLINE_MS="5000") as cloud:
        id_ = await world.send(HARD, sequence=5)
        await cloud.asked(1)
        request = cloud.requests[0]
        asked = request.body
        assert (asked.id.hex(), asked.service, asked.worker, asked.camera) == (id_, "svc", "e0", "cam0")
        assert (asked.sequence, asked.encoding, asked.dtype, asked.shape) == (5, "raw", "uint8", [4, 4])
        assert bytes(asked.data) == bytes([HARD]) * 16
        assert asked.edge == Prediction(label="small", score=0.55, probabilities=[0.55, 0.45])
        assert 0 < asked.deadline_ms <= 5000
        assert request.packet.response_topic == world.address(topics.REPLY, "e0").text
        assert request.packet.correlation
        await cloud.answer(0)
        result = await world.result(id_)
        assert (result.by, result.label, result.worker) == ("cloud", "scripted", "scripted")


async def test_an_answer_to_nothing_that_was_asked_is_counted_and_dropped(world: World) -> None:
    async with world.worker("edge", "e0", small()):
        address: Address[Reply] = world.address(topics.REPLY, "e0")
        stray = Reply(id=bytes(16), worker="nobody", prediction=Prediction(label="stray"))
        await world.client.publish(address, stray, correlation=b"unknown")
        await eventually(lambda: world.counts("e0").unasked == 1)
        assert not world.results


async def test_without_a_cloud_the_edge_answers_at_once(world: World) -> None:
    async def refused_by_circuit() -> Result | None:
        result = await world.ask(HARD)
        return result if result.reason == "circuit-open" else None

    async with world.worker("edge", "e0", small(), DEADLINE_MS="60000"):
        first = await world.ask(HARD)
        assert first.reason == "no-cloud"
        second = await eventually(refused_by_circuit)  # the circuit is open for a second, then for longer each time
        assert [(r.by, r.hard, r.degraded) for r in (first, second)] == [("edge", True, True)] * 2
        assert max(first.total_ms, second.total_ms) < patience(3000)
        async with world.worker("cloud", "c0", big()):
            await world.knows("e0", "c0")
            third = await world.ask(HARD)
            assert (third.by, third.degraded) == ("cloud", False)


async def test_a_frame_that_wants_its_answer_earlier_gets_it(world: World) -> None:
    async with scripted(world, DEADLINE_MS="60000"):
        result = await world.ask(HARD, deadline_ms=2000)
        assert (result.degraded, result.reason) == (True, "deadline")
        assert result.total_ms < patience(5000)


@pytest.mark.parametrize(("error", "reason"), [("failed", "error"), ("invalid", "error"), ("expired", "deadline")])
async def test_what_the_cloud_refuses_the_edge_answers_at_once(world: World, error: str, reason: str) -> None:
    async with scripted(world, DEADLINE_MS="60000") as cloud:
        id_ = await world.send(HARD)
        await cloud.asked(1)
        await cloud.refuse(0, error)
        result = await world.result(id_)
        assert (result.by, result.degraded, result.reason, result.label) == ("edge", True, reason, "small")
        assert result.total_ms < patience(5000)


async def test_what_one_worker_is_too_busy_for_goes_to_another_under_the_same_id(world: World) -> None:
    busy = ScriptedCloud(world, "busy")
    await busy.start()
    async with world.worker("edge", "e0", small()):
        await world.knows("e0", "busy")
        id_ = await world.send(HARD)
        await busy.asked(1)
        async with world.worker("cloud", "c0", big()):
            await world.knows("e0", "c0")
            await busy.refuse(0, "overloaded")
            result = await world.result(id_)
            assert (result.by, result.worker) == ("cloud", "c0")


async def test_what_a_dead_worker_had_goes_to_another_under_the_same_id(world: World) -> None:
    first = big()
    dying = await world.start("cloud", "c0", first)
    async with world.worker("edge", "e0", small()):
        await world.knows("e0", "c0")
        with first.held():
            sent = [await world.send(HARD) for _ in range(4)]
            await eventually(lambda: world.loads["c0"].queued == 4)
            async with world.worker("cloud", "c1", big()):
                await world.knows("e0", "c1")
                await dying.kill()
                results = await world.answered(sent)
        assert {(r.by, r.worker, r.degraded) for r in results} == {("cloud", "c1", False)}


async def test_easy_frames_are_answered_while_hard_ones_wait_for_a_silent_cloud(world: World) -> None:
    async with scripted(world, credits_=64, DEADLINE_MS="60000", GRACE_S="0.6") as cloud:
        for _ in range(150):
            await world.send(HARD)
        easy = await world.ask(EASY)
        assert (easy.hard, easy.by) == (False, "edge")
        await eventually(lambda: cloud.requests)
        held = len(cloud.requests)
        assert 0 < held < 96
        assert {r.reason for r in world.results.values() if r.degraded} <= {"window-full", "shed"}


async def test_two_models_that_fail_do_not_hold_up_the_frames_after_them(world: World) -> None:
    async with world.pair(big(fails_at={POISON}), small(fails_at={POISON})):
        sent = [await world.send(value) for value in (EASY, POISON, HARD, POISON, EASY)]
        results = await world.answered(sent)
        assert [(r.by, r.reason) for r in results] == [
            ("edge", ""), ("edge", "error"), ("cloud", ""), ("edge", "error"), ("edge", ""),
        ]  # fmt: skip
        assert [(r.degraded, r.prediction) for r in results if r.reason] == [(True, Prediction())] * 2
