"""A worker that is stopped under load answers what it has accepted, within its grace period, and takes nothing new."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from PIL import Image

from tests.blackbox.models import EASY, HARD, FromFile, big, small, write_desired
from tests.blackbox.requester import REQUESTED, asking, serving
from tests.blackbox.world import Kind, World, frame, packed
from tests.waiting import eventually

#: of a multi-edge service, what its member is started with
MEMBER = {
    "APPLICATION": '{"name": "balance"}', "PART": "w0", "MEMBERS": '["w0"]', "JOINT": "members", "CAMERAS": '["cam0"]',
}  # fmt: skip


@pytest.mark.parametrize("kind", ["edge", "member"])
async def test_a_stopped_worker_answers_the_frames_that_it_has_accepted(world: World, kind: Kind) -> None:
    model = small()
    running = await world.start(kind, "w0", model, **(MEMBER if kind == "member" else {}))
    await world.ask(EASY)
    with model.held():
        sent = [await world.send(EASY) for _ in range(12)]
        await world.holds("w0", 12)
        running.stop.set()
        await asyncio.sleep(0.1)
        assert not running.task.done()
    await running.task
    await world.answered(sent)
    await eventually(lambda: world.status("w0") == "completed")
    assert (world.counts("w0").inference_number, world.counts("w0").lost) == (13, 0)


async def test_a_stopped_edge_worker_waits_for_the_clouds_answers(world: World) -> None:
    model = big()
    async with world.worker("cloud", "c0", model):
        running = await world.start("edge", "e0", small())
        await world.knows("e0", "c0")
        with model.held():
            sent = [await world.send(HARD) for _ in range(5)]
            await eventually(lambda: world.loads["c0"].queued > 0)
            await world.holds("e0", 5)
            running.stop.set()
            await asyncio.sleep(0.1)
        await running.task
        results = await world.answered(sent)
        assert "cloud" in {result.by for result in results}


async def test_a_stopped_folder_worker_leaves_the_rest_to_its_successor(world: World) -> None:
    folder = world.folder / "pictures"
    folder.mkdir()
    for number in range(60):
        Image.fromarray(np.full((4, 4), EASY, np.uint8)).save(folder / f"{number:03}.png")
    source = {"SOURCE": f'{{"path": "{folder}"}}'}
    model = small()
    with model.held():
        running = await world.start("edge", "e0", model, **source)
        await world.holds("e0", 16)
        running.stop.set()
        await asyncio.sleep(0.1)
    await running.task
    await eventually(lambda: len(world.results) >= 16)
    assert len(world.results) < 60
    async with world.worker("edge", "e0", small(), **source):
        await eventually(lambda: len(world.results) == 60)
    assert set(world.copies.values()) == {1}


@pytest.mark.parametrize("kind", ["edge", "member"])
@pytest.mark.parametrize("successor", [True, False])
async def test_a_replaced_worker_leaves_the_frames_of_its_restart_to_its_successor(
    world: World, kind: Kind, successor: bool
) -> None:
    file, model = world.folder / "w0.json", world.folder / "a.model"
    model.write_text("a")
    write_desired(file, model, "v-a", spec={"format": "python"})
    environ = {"MODEL_FILE": str(file)} | (MEMBER if kind == "member" else {})
    running = await world.start(kind, "w0", FromFile, **environ)
    sent = [await world.send(EASY) for _ in range(5)]
    write_desired(file, model, "v-a", spec={"format": "python"}, successor=successor)
    await running.end()
    meanwhile = packed(frame(EASY))
    taken = await world.client.publish(world.camera(), meanwhile)
    assert taken is successor, "a worker that does not start again keeps no subscription"
    if taken:
        sent += [await world.send(EASY) for _ in range(30)]
    write_desired(file, model, "v-a", spec={"format": "python"})
    async with world.worker(kind, "w0", FromFile, **environ):
        sent += [await world.send(EASY) for _ in range(5)]
        await world.answered(sent)
    await eventually(lambda: world.status("w0") == "completed")
    assert (world.counts("w0").inference_number, world.counts("w0").lost) == (len(sent) + taken, 0)


@pytest.mark.parametrize("kind", REQUESTED)
async def test_a_stopped_worker_answers_the_requests_that_it_has_and_takes_no_new_ones(
    world: World, kind: Kind
) -> None:
    model = big()
    async with serving(world, kind, model) as running:
        requester = await asking(world)
        await requester.ask(frame(EASY))
        with model.held():
            await requester.send(frame(EASY))
            await eventually(lambda: len(model.calls) == 2)
            await requester.send_all(1, 2, 3, 4)
            await eventually(lambda: world.loads["c0"].queued == 5)
            running.stop.set()
            await eventually(lambda: "c0" not in world.loads or world.loads["c0"].leaving)
            assert not running.task.done()
        await running.task
        replies = await requester.replies(6)
        assert {reply.error for reply in replies} == {""}
        await eventually(lambda: world.status("c0") == "completed" and "c0" not in world.loads)
        assert world.counts("c0").served == 6
        await requester.send(frame(EASY))
        await requester.replies(6)


async def test_a_cloud_worker_that_stops_leaves_its_edge_worker_no_degraded_answers(world: World) -> None:
    stopping = await world.start("cloud", "c0", big(seconds=0.01))
    async with world.worker("cloud", "c1", big()), world.worker("edge", "e0", small()):
        await world.knows("e0", "c0", "c1")
        sent = []
        for number in range(60):
            sent.append(await world.send(HARD))
            await asyncio.sleep(0.01)
            if number == 20:
                stopping.stop.set()
        await stopping.task
        results = await world.answered(sent)
        assert {(result.by, result.degraded) for result in results} == {("cloud", False)}
        assert {result.worker for result in results[-20:]} == {"c1"}
