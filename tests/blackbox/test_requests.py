"""Workers that answer requests: replies, batches, what is refused and why, and frames that break the model."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np
import pytest

from halimede import topics
from halimede.bus import Packet
from halimede.messages import Prediction
from halimede.worker import settings
from tests.blackbox.models import EASY, HARD, POISON, big
from tests.blackbox.requester import REQUESTED, asking, requested, serving
from tests.blackbox.world import Kind, World, frame, packed
from tests.waiting import eventually

kinds = pytest.mark.parametrize("kind", REQUESTED)


@kinds
async def test_a_request_is_answered_with_its_own_id_and_correlation(world: World, kind: Kind) -> None:
    async with requested(world, kind, big()) as requester:
        body = frame(EASY)
        reply = await requester.ask(body, b"mine")
        assert (reply.id, reply.worker, reply.error, reply.batch) == (body.id, "c0", "", 1)
        assert reply.prediction == Prediction(label="big", score=0.9, probabilities=[0.9, 0.1])
        assert (reply.tier, reply.by, reply.reason) == ("gate" if kind == "tier" else "", "", "")
        assert reply.compute_ms > 0
        assert reply.queue_ms >= 0
        assert requester.got[0].correlation == b"mine"


@kinds
async def test_what_waits_goes_to_the_model_together_and_no_batch_is_larger_than_allowed(
    world: World, kind: Kind
) -> None:
    model = big()
    async with requested(world, kind, model, MAX_BATCH_SIZE="4") as requester:
        await requester.ask(frame(EASY))  # how fast the model is has to be known before it gets several
        with model.held():
            await requester.send(frame(1))
            await eventually(lambda: len(model.calls) == 2)
            await requester.send_all(*range(2, 12))
            await eventually(lambda: world.loads["c0"].queued == 11)
        replies = await requester.replies(12)
        assert {reply.error for reply in replies} == {""}
        assert model.seen == [EASY, *range(1, 12)]
        assert 1 < max(len(call) for call in model.calls) <= 4
        assert [reply.batch for reply in replies[2:]] == [len(call) for call in model.calls[2:] for _ in call]
        # a batch is counted once its answers have left
        await eventually(lambda: (world.counts("c0").served, world.counts("c0").batches) == (12, len(model.calls)))


@pytest.mark.slow
@kinds
async def test_a_sample_waits_for_others_where_that_is_set_and_no_longer(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    monkeypatch.setattr(settings, "MOST_DELAY_MS", 60_000)  # more than users may set: a busy machine takes its time
    model = big()
    async with requested(world, kind, model, MAX_BATCH_SIZE="3", MAX_QUEUE_DELAY_MS="60000") as requester:
        await requester.ask(frame(EASY))
        began = asyncio.get_running_loop().time()
        await requester.send_all(1, 2, 3)
        await requester.replies(4)
        assert asyncio.get_running_loop().time() - began < 20  # half of their time would be 30 s
        assert model.calls[1:] == [[1, 2, 3]]
        alone = await requester.ask(frame(4), deadline_ms=20_000)  # half of its time, which is less
        assert alone.batch == 1
        assert 9000 < alone.queue_ms < 19_000


@kinds
async def test_one_bad_sample_of_a_batch_fails_alone(world: World, kind: Kind) -> None:
    model = big(fails_at={POISON})
    async with requested(world, kind, model) as requester:
        await requester.ask(frame(EASY))
        with model.held():
            await requester.send(frame(EASY))
            await eventually(lambda: len(model.calls) == 2)
            bodies = await requester.send_all(1, 2, POISON, 3)
            await eventually(lambda: world.loads["c0"].queued == 5)
        replies = {reply.id: reply for reply in await requester.replies(6)}
        assert [replies[body.id].error for body in bodies] == ["", "", "failed", ""]
        assert "this picture breaks the model" in replies[bodies[2].id].message
        assert replies[bodies[2].id].prediction is None


@kinds
async def test_a_frame_that_broke_the_model_twice_is_quarantined(world: World, kind: Kind) -> None:
    model = big(fails_at={POISON})
    async with serving(world, kind, model):
        requester, other, bad = await asking(world), await asking(world, "other"), frame(POISON)
        errors = [(await asker.ask(bad)).error for asker in (requester, requester, requester, other)]
        assert errors == ["failed", "quarantined", "quarantined", "quarantined"]
        assert model.seen.count(POISON) == 2
        assert (await requester.ask(frame(POISON))).error == "failed"
        assert (await requester.ask(frame(EASY))).error == ""


@kinds
@pytest.mark.parametrize(
    "fields",
    [
        {"encoding": "png", "data": memoryview(b"\x89PNG\r\n\x1a\n broken")},
        {"encoding": "jpeg", "data": memoryview(b"\xff\xd8\xff broken")},
        {"dtype": "complex8"},
        {"shape": [5, 5]},
    ],
    ids=["broken PNG", "broken JPEG", "unknown dtype", "wrong shape"],
)
async def test_what_cannot_be_read_is_refused_as_invalid(world: World, kind: Kind, fields: dict[str, object]) -> None:
    model = big()
    async with requested(world, kind, model) as requester:
        reply = await requester.ask(msgspec.structs.replace(frame(EASY), **fields))
        assert (reply.error, reply.prediction) == ("invalid", None)
        assert reply.message
        assert (await requester.ask(frame(EASY))).error == ""
        assert model.seen == [EASY]
        await eventually(lambda: world.counts("c0").rejected == 1)


@kinds
async def test_a_request_that_is_no_frame_is_dead_lettered(world: World, kind: Kind) -> None:
    async with requested(world, kind, big()) as requester:
        topic = world.address(topics.REQUEST_TO, "c0").text
        await world.client.send(Packet(topic, b"this is no frame", response_topic="x", correlation=b"c"))
        await eventually(lambda: len(world.letters) == 1)
        assert world.letters[0].topic == topic
        assert (await requester.ask(frame(EASY))).error == ""
        await eventually(lambda: world.counts("c0").rejected == 1)


@kinds
@pytest.mark.parametrize("case", ["no response topic", "no correlation", "another service", "a result topic"])
async def test_a_request_that_cannot_be_answered_is_dead_lettered_and_gets_no_answer(
    world: World, kind: Kind, case: str
) -> None:
    model = big()
    async with requested(world, kind, model) as requester:
        reply_to = world.address(topics.REPLY, "asker").text
        elsewhere = {
            "no response topic": "",
            "another service": topics.REPLY.at(ns=world.namespace, service="other", worker="asker").text,
            "a result topic": world.address(topics.RESULT).text,
        }.get(case, reply_to)
        topic, correlation = world.address(topics.REQUEST_TO, "c0").text, b"" if case == "no correlation" else b"c"
        payload = packed(frame(HARD, deadline_ms=1000))
        await world.client.send(Packet(topic, payload, response_topic=elsewhere, correlation=correlation))
        await eventually(lambda: len(world.letters) == 1)
        assert (await requester.ask(frame(EASY))).error == ""
        assert (model.seen, len(requester.got), world.results) == ([EASY], 1, {})
        await eventually(lambda: world.counts("c0").rejected == 1)


@kinds
async def test_a_full_queue_refuses_at_once(world: World, kind: Kind) -> None:
    model = big()
    async with requested(world, kind, model) as requester:
        await requester.ask(frame(EASY))
        with model.held():
            await requester.send(frame(EASY))
            await eventually(lambda: len(model.calls) == 2)
            await requester.send_all(*[EASY] * 100)
            await eventually(lambda: len(requester.got) >= 38)
            refused = {got.reply.error for got in requester.got[1:]}
            assert refused == {"overloaded"}
            await eventually(lambda: world.loads["c0"].credits == 0)
        replies = await requester.replies(102)
        errors = [reply.error for reply in replies]
        assert (errors.count("overloaded"), errors.count("")) == (37, 65)


@kinds
async def test_a_request_whose_time_is_over_is_not_computed_and_gets_no_answer(world: World, kind: Kind) -> None:
    model = big()
    async with requested(world, kind, model) as requester:
        with model.held():
            await requester.send(frame(1))
            await eventually(lambda: len(model.calls) == 1)
            await requester.send(frame(2), deadline_ms=20)
            await requester.send(frame(3))
            await eventually(lambda: world.loads["c0"].queued == 3)
            await asyncio.sleep(0.05)
        await eventually(lambda: len(requester.got) >= 2)
        await requester.ask(frame(4))
        assert model.seen == [1, 3, 4]
        assert len(requester.got) == 3


@kinds
async def test_a_request_that_the_model_has_no_time_for_is_refused_as_expired(world: World, kind: Kind) -> None:
    model = big(seconds=3.0)
    async with requested(world, kind, model) as requester:
        await requester.ask(frame(EASY))
        reply = await requester.ask(frame(EASY), deadline_ms=2500)
        assert (reply.error, reply.prediction) == ("expired", None)
        assert len(model.calls) == 1


@kinds
async def test_a_prediction_that_cannot_be_written_fails_alone(world: World, kind: Kind) -> None:
    class Nested:
        def predict(self, data: object) -> object:
            value: list[object] = []
            for _ in range(100_000 if int(np.asarray(data).flat[0]) == POISON else 0):
                value = [value]
            return value

    async with requested(world, kind, Nested()) as requester:
        assert (await requester.ask(frame(POISON))).error == "failed"
        assert (await requester.ask(frame(EASY))).error == ""


async def test_requests_on_the_shared_topic_reach_one_of_several_workers(world: World) -> None:
    async with world.worker("cloud", "c0", big()), world.worker("cloud", "c1", big()):
        requester = await asking(world)
        for _ in range(10):
            reply_to = world.address(topics.REPLY, "asker")
            shared = world.address(topics.REQUEST)
            await world.client.publish(shared, frame(EASY), reply_to=reply_to, correlation=b"c")
        replies = await requester.replies(10)
        assert {reply.worker for reply in replies} == {"c0", "c1"}


@kinds
async def test_the_load_says_what_a_worker_can_take_and_is_cleared_when_it_dies(world: World, kind: Kind) -> None:
    model = big(seconds=0.02)
    running = await world.start(kind, "c0", model)
    requester = await asking(world)
    await requester.ask(frame(EASY))
    await eventually(lambda: world.loads["c0"].service_ms >= 10)
    credits_ = world.loads["c0"].credits
    assert credits_ > 1
    assert world.loads["c0"].tier == ("gate" if kind == "tier" else "")
    with model.held():
        await requester.send_all(1, 2, 3)
        await eventually(lambda: (world.loads["c0"].queued, world.loads["c0"].credits) == (3, credits_ - 3))
    await requester.replies(4)
    await eventually(lambda: world.loads["c0"].queued == 0)
    await running.kill()
    await eventually(lambda: "c0" not in world.loads)
