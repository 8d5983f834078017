"""A frame or a request that comes again is not answered anew: one result for each id, one call of the model."""

from __future__ import annotations

import msgspec
import pytest

from tests.blackbox.models import EASY, HARD, big, small
from tests.blackbox.requester import REQUESTED, Got, Requester, requested, serving
from tests.blackbox.world import Kind, World, frame, packed
from tests.waiting import eventually


@pytest.mark.parametrize("value", [EASY, HARD])
async def test_a_frame_that_comes_twice_has_one_result(world: World, value: int) -> None:
    model = small()
    async with world.pair(big(), model):
        body = frame(value)
        for _ in range(2):
            await world.publish(packed(body))
        await world.result(body.id.hex())
        await world.publish(packed(body))
        await world.answered([await world.send(EASY)])

        async def counted() -> bool:
            return await world.metric("e0", "duplicate_frames_total") == 2

        await eventually(counted)
        assert world.copies[body.id.hex()] == 1
        assert model.seen == [value, EASY]


async def test_a_frame_that_was_refused_may_come_again(world: World) -> None:
    async with world.worker("edge", "e0", small()):
        body = frame(EASY)
        await world.publish(packed(msgspec.structs.replace(body, dtype="complex8")))
        await eventually(lambda: len(world.letters) == 1)
        await world.publish(packed(body))
        assert (await world.result(body.id.hex())).label == "small"


@pytest.mark.parametrize("kind", REQUESTED)
async def test_a_request_that_is_sent_again_gets_the_same_answer_without_the_model(world: World, kind: Kind) -> None:
    model = big()
    async with requested(world, kind, model) as requester:
        body = frame(EASY)
        first = await requester.ask(body, b"first")
        calls = len(model.calls)
        assert await requester.ask(body, b"second") == first
        assert [got.correlation for got in requester.got] == [b"first", b"second"]
        assert len(model.calls) == calls
        await eventually(lambda: world.counts("c0").served == 1)


@pytest.mark.parametrize("kind", REQUESTED)
async def test_a_request_that_is_sent_again_while_it_waits_is_answered_once_on_the_latest_correlation(
    world: World, kind: Kind
) -> None:
    model = big()
    async with requested(world, kind, model) as requester:
        in_model, waiting = frame(EASY), frame(HARD)
        with model.held():
            await requester.send(in_model, b"m1")
            await eventually(lambda: len(model.calls) == 1)
            for correlation in (b"w1", b"w2", b"w3"):
                await requester.send(waiting, correlation)
            await requester.send(in_model, b"m2")
            await requester.received()
        await eventually(lambda: len(requester.got) >= 2)
        assert _answers(requester.got) == {(in_model.id, b"m2"), (waiting.id, b"w3")}
        assert model.seen == [EASY, HARD]
        await eventually(lambda: world.counts("c0").served == 2)


@pytest.mark.parametrize("kind", REQUESTED)
async def test_two_workers_that_ask_about_one_frame_both_get_an_answer(world: World, kind: Kind) -> None:
    async with serving(world, kind, big()):
        one, other = Requester(world, "c0", "one"), Requester(world, "c0", "other")
        body = frame(EASY)
        for requester in (one, other):
            await requester.start()
            assert (await requester.ask(body)).prediction is not None


def _answers(got: list[Got]) -> set[tuple[bytes, bytes]]:
    return {(each.reply.id, each.correlation) for each in got}
