"""Workers whose models are ONNX files: these may be called on the event loop, and the rules are the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.blackbox.models import EASY, HARD, model_file
from tests.blackbox.requester import REQUESTED, asking, requested, serving
from tests.blackbox.world import Kind, World, frame, packed
from tests.waiting import eventually

kinds = pytest.mark.parametrize("kind", REQUESTED)


async def test_a_burst_of_frames_has_one_result_each_in_the_cameras_order(world: World, onnx_file: Path) -> None:
    async with world.worker("edge", "e0", **model_file(world.folder, onnx_file, "small")):
        sent = [await world.send(EASY) for _ in range(200)]
        results = await world.answered(sent)
        assert list(world.results) == sent
        assert {(r.by, r.label, r.model) for r in results} == {("edge", "small", "v-small")}
        await eventually(lambda: world.counts("e0").inference_number == 200)


async def test_easy_and_hard_frames_of_a_burst_have_one_result_each(world: World, onnx_file: Path) -> None:
    cloud = world.worker("cloud", "c0", **model_file(world.folder, onnx_file, "big"))
    async with cloud, world.worker("edge", "e0", **model_file(world.folder, onnx_file, "small")):
        await world.knows("e0", "c0")
        values = [HARD if number % 3 == 0 else EASY for number in range(120)]
        sent = []
        for value in values:
            sent.append(await world.send(value))
            await asyncio.sleep(0.003)
        results = await world.answered(sent)
        assert [r.hard for r in results] == [value == HARD for value in values]
        assert {(r.by, r.label) for r in results if not r.degraded} == {("edge", "small"), ("cloud", "big")}
        up = [r for r in results if r.by == "cloud"]
        assert all(r.edge is not None and r.edge.label == "small" for r in up)
        await eventually(lambda: world.counts("e0").cloud_inference_number == len(up))
        await eventually(lambda: world.counts("c0").served >= len(up))


@kinds
async def test_requests_that_come_together_have_one_reply_each(world: World, onnx_file: Path, kind: Kind) -> None:
    async with requested(
        world, kind, None, **model_file(world.folder, onnx_file, "big"), MAX_BATCH_SIZE="8"
    ) as requester:
        await requester.ask(frame(EASY))
        for _ in range(4):
            before = len(requester.got)
            bodies = [frame(EASY) for _ in range(30)]
            await asyncio.gather(*(requester.send(body) for body in bodies))
            replies = (await requester.replies(before + 30))[before:]
            assert {reply.id for reply in replies} == {body.id for body in bodies}
            assert {(reply.error, reply.model) for reply in replies} == {("", "v-big")}
            assert max(reply.batch for reply in replies) <= 8
        await eventually(lambda: world.counts("c0").served == 121)


@kinds
async def test_a_frame_of_the_wrong_shape_is_refused_alone(world: World, onnx_file: Path, kind: Kind) -> None:
    async with requested(world, kind, None, **model_file(world.folder, onnx_file, "big")) as requester:
        wrong = frame(EASY, side=5)
        bodies = [frame(EASY), wrong, frame(EASY)]
        await asyncio.gather(*(requester.send(body) for body in bodies))
        errors = {reply.id: reply.error for reply in await requester.replies(3)}
        assert [errors[body.id] for body in bodies] == ["", "invalid", ""]
        assert (await requester.ask(wrong)).error == "invalid"
        await eventually(lambda: (world.counts("c0").served, world.counts("c0").rejected) == (2, 1))


@kinds
async def test_a_resend_has_the_same_answer(world: World, onnx_file: Path, kind: Kind) -> None:
    async with requested(world, kind, None, **model_file(world.folder, onnx_file, "big")) as requester:
        body = frame(EASY)
        first = await requester.ask(body, b"first")
        assert await requester.ask(body, b"second") == first
        assert requester.got[-1].correlation == b"second"
        await eventually(lambda: world.counts("c0").served == 1)


@kinds
async def test_what_was_taken_before_the_stop_is_answered(world: World, onnx_file: Path, kind: Kind) -> None:
    async with serving(world, kind, None, **model_file(world.folder, onnx_file, "big")) as running:
        requester = await asking(world)
        await requester.ask(frame(EASY))
        sending = [asyncio.create_task(requester.send(frame(EASY))) for _ in range(30)]
        await eventually(lambda: len(requester.got) >= 5)
        await running.end()
        await asyncio.gather(*sending)
        await eventually(lambda: world.status("c0") == "completed")
        await eventually(lambda: world.counts("c0").served == len(requester.got))  # the last replies are on their way
        assert {got.reply.error for got in requester.got} == {""}


async def test_several_calls_at_a_time_answer_each_request_once(world: World, onnx_file: Path) -> None:
    options = {**model_file(world.folder, onnx_file, "big"), "MODEL_SESSIONS": "2"}
    async with world.worker("cloud", "c0", **options):
        requester = await asking(world)
        await requester.ask(frame(EASY))
        bodies = [frame(EASY) for _ in range(60)]
        await asyncio.gather(*(requester.send(body) for body in bodies))
        replies = await requester.replies(61)
        assert {reply.id for reply in replies[1:]} == {body.id for body in bodies}
        assert {reply.error for reply in replies} == {""}


async def test_repeated_and_unreadable_frames_make_no_result(world: World, onnx_file: Path) -> None:
    async with world.worker("edge", "e0", **model_file(world.folder, onnx_file, "small")):
        body = frame(EASY)
        for _ in range(3):
            await world.publish(packed(body))
        await world.publish(packed(msgspec.structs.replace(frame(EASY), shape=[9, 9])))
        await world.publish(packed(frame(EASY, side=5)))  # not what the model takes
        await world.answered([body.id.hex(), await world.send(EASY)])
        await eventually(lambda: world.counts("e0").rejected == 2)
        assert len(world.results) == 2
        assert await world.metric("e0", "duplicate_frames_total") == 2
