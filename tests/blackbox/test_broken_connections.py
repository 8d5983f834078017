"""Connections that break in the middle: no accepted frame is without a result, and no id has two different ones."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.blackbox.models import EASY, HARD, big, model_file, small
from tests.blackbox.requester import REQUESTED, requested
from tests.blackbox.world import Kind, World, frame, packed
from tests.waiting import eventually


async def all_answered(world: World, edge: str) -> None:
    """Wait until an edge worker has answered what it accepted; each id has one answer, however often it came."""

    async def settled() -> bool:
        accepted = await world.metric(edge, "accepted_frames_total")
        return accepted == await world.metric(edge, "answers_total") == len(world.results)

    await eventually(settled)
    assert not world.contradictions
    await eventually(lambda: world.counts(edge).inference_number == len(world.results))
    assert world.counts(edge).lost == 0


@pytest.mark.parametrize("value", [EASY, HARD])
async def test_an_edge_worker_that_is_cut_off_in_the_middle_answers_what_it_has_accepted(
    world: World, value: int
) -> None:
    async with world.pair(big(), small(seconds=0.001)):
        await world.ask(value)
        for number in range(120):
            await world.client.publish(world.camera(), packed(frame(value)))
            if number == 40:
                world.buses.cut("e0")
            if number == 60:
                world.buses.heal("e0")
            await asyncio.sleep(0.002)
        await world.ask(value)  # it is back
        await all_answered(world, "e0")
        assert len(world.results) > 20


async def test_results_wait_until_the_connection_is_back(world: World, onnx_file: Path) -> None:
    model = small()
    # a worker of another service: one of the same would answer the frames after 0.5 s
    other = {"SERVICE_NAME": "other", "SOURCE": '{"cameras": ["cam1"]}', **model_file(world.folder, onnx_file, "small")}
    async with world.worker("edge", "e0", model), world.worker("edge", "e1", **other):
        await world.ask(EASY)
        await world.ask(EASY, "cam1")
        with model.held():
            sent = [await world.send(EASY) for _ in range(8)]
            await world.holds("e0", 8)
            world.buses.cut("e0")
        for _ in range(3):
            await asyncio.sleep(0.05)
            assert not world.results.keys() & set(sent)
        await world.ask(EASY, "cam1")  # others go on
        world.buses.heal("e0")
        await world.answered(sent)
        assert not world.contradictions


async def test_accepted_frames_survive_a_restart_of_the_broker(world: World) -> None:
    model = big()
    async with world.pair(model, small(), DEADLINE_MS="300000"):
        await world.ask(HARD)
        with model.held():
            easy, *hard = [await world.send(value) for value in (EASY, HARD, HARD, HARD)]
            await world.result(easy)
            await world.holds("e0", 3)
            await eventually(lambda: len(model.calls) == 2)
            for worker in ("e0", "c0"):
                world.buses.cut(worker)
            await world.restart_broker()  # whoever reads results is back before those who send them
            world.buses.heal("c0")
            await eventually(lambda: "c0" in world.loads)
            world.buses.heal("e0")
        await eventually(lambda: world.results.keys() >= set(hard))
        assert {(world.results[id_].by, world.results[id_].degraded) for id_ in hard} == {("cloud", False)}
        await world.knows("e0", "c0")
        assert (await world.ask(HARD)).by == "cloud"
        await all_answered(world, "e0")


@pytest.mark.parametrize("kind", REQUESTED)
async def test_a_request_whose_reply_was_lost_is_answered_when_it_is_sent_again(world: World, kind: Kind) -> None:
    model = big()
    async with requested(world, kind, model) as requester:
        body = frame(EASY)
        with model.held():
            await requester.send(body, b"lost")
            await eventually(lambda: len(model.calls) == 1)
            world.buses.cut("c0")
            await eventually(lambda: "c0" not in world.loads)
        world.buses.heal("c0")
        await eventually(lambda: "c0" in world.loads)
        await eventually(lambda: world.counts("c0").served == 1)
        reply = await requester.ask(body, b"again")
        assert (reply.id, reply.error, requester.got[-1].correlation) == (body.id, "", b"again")
        assert model.seen == [EASY]
