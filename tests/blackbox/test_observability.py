"""What else workers show of themselves: health, traces, previews of hard frames, and the form in which frames go up."""

from __future__ import annotations

import io

import aiohttp
import numpy as np
import pytest
from PIL import Image

from halimede import topics
from halimede.bus import Delivery
from halimede.messages import Frame, HardSample, TraceReply, TraceRequest
from halimede.topic import Filter
from halimede.worker import preview_publisher
from tests.blackbox.models import EASY, HARD, big, small
from tests.blackbox.requester import asking
from tests.blackbox.scripted_cloud import ScriptedCloud
from tests.blackbox.world import Kind, World, frame
from tests.scraping import asked
from tests.waiting import eventually


@pytest.mark.parametrize("kind", ["edge", "cloud", "tier"])
async def test_a_worker_is_ready_while_it_is_connected(world: World, kind: Kind) -> None:
    async with world.worker(kind, "w0", big()), aiohttp.ClientSession() as session:
        url = world.infos["w0"][-1].http

        async def ready_is(status: int) -> bool:
            return (await asked(session, url, "readyz"))[0] == status

        await eventually(lambda: ready_is(200))
        world.buses.cut("w0")
        await eventually(lambda: ready_is(503))
        assert (await asked(session, url, "healthz"))[0] == 200
        world.buses.heal("w0")
        await eventually(lambda: ready_is(200))


async def test_a_hard_frame_leaves_a_trace_at_each_worker_that_had_it(world: World) -> None:
    replies: dict[str, TraceReply] = {}

    async def keep(delivery: Delivery[TraceReply]) -> None:
        replies[delivery.body.worker] = delivery.body

    answers = topics.TRACE_REPLY.at(client=world.namespace)
    await world.client.subscribe(Filter(topics.TRACE_REPLY, answers.text), keep)
    async with (
        world.worker("cloud", "c0", big(), TIER="cloud"),
        world.worker("tier", "g0", small()),
        world.worker("edge", "e0", small(), TIER="edge", NEXT_TIER="gate"),
    ):
        await world.knows("g0", "c0")
        await world.knows("e0", "g0")
        result = await world.ask(HARD)
        assert result.worker == "c0"
        request = topics.TRACE_REQUEST.at(client=world.namespace)

        async def all_steps() -> bool:
            await world.client.publish(request, TraceRequest(id=result.id), reply_to=answers, correlation=b"t")
            last = {"e0": "result", "g0": "reply", "c0": "reply"}
            return all(name in replies and step in steps(replies[name]) for name, step in last.items())

        await eventually(all_steps)
        assert {"receive", "decode", "wait", "model", "mine", "offload", "result"} <= steps(replies["e0"])
        assert {"receive", "queue", "decode", "compute", "offload", "reply"} <= steps(replies["g0"])
        assert {"receive", "queue", "decode", "compute", "reply"} <= steps(replies["c0"])
        assert [replies[name].role for name in ("e0", "g0", "c0")] == ["edge", "cloud", "cloud"]
        sent = next(span for span in replies["e0"].spans if span.name == "offload")
        assert sent.attributes["sent"] is True
        assert sent.duration_ns > 0


def steps(reply: TraceReply) -> set[str]:
    return {span.name for span in reply.spans}


@pytest.mark.parametrize(("switch", "number"), [("on", 1), ("off", 0)])
async def test_a_preview_of_a_hard_frame_is_published(
    world: World, monkeypatch: pytest.MonkeyPatch, switch: str, number: int
) -> None:
    monkeypatch.setattr(
        preview_publisher, "MIN_PERIOD_S", 60.0
    )  # seconds between two previews: the others here come too early
    seen: list[HardSample] = []

    async def keep(delivery: Delivery[HardSample]) -> None:
        seen.append(delivery.body)

    await world.client.subscribe(topics.HARD_SAMPLE.filter(ns=world.namespace), keep)
    async with world.worker("cloud", "c0", big()), world.worker("edge", "e0", small(), HARD_SAMPLES=switch):
        await world.knows("e0", "c0")
        result = await world.ask(HARD)
        await eventually(lambda: len(seen) >= number)
        for _ in range(3):
            await world.ask(HARD)
    assert len(seen) == number
    for preview in seen:
        assert (preview.id.hex(), preview.camera, preview.worker, preview.by) == (result.id, "cam0", "e0", "cloud")
        assert (preview.edge_label, preview.label, preview.degraded) == ("small", "big", False)
        Image.open(io.BytesIO(preview.data)).load()


@pytest.mark.parametrize("encoding", ["as-it-came", "raw", "jpeg", "png"])
@pytest.mark.parametrize("kind", ["edge", "tier"])
async def test_a_frame_goes_up_as_the_service_wants_it(world: World, kind: Kind, encoding: str) -> None:
    cloud = ScriptedCloud(world, tier="cloud" if kind == "tier" else "")
    await cloud.start()
    picture = io.BytesIO()
    Image.fromarray(np.full((16, 16), HARD, np.uint8)).save(picture, format="PNG")
    data = memoryview(picture.getvalue())
    body = frame(HARD, encoding="png", data=data, dtype="", shape=[])
    async with world.worker(kind, "c0", small(), UPLOAD_ENCODING=encoding):
        await world.knows("c0", "scripted")
        if kind == "edge":
            await world.send(HARD, encoding="png", data=data, dtype="", shape=[])
        else:
            requester = await asking(world)
            await requester.send(body)
        await cloud.asked(1)
        up = cloud.requests[0].body
        assert up.encoding == ("png" if encoding == "as-it-came" else encoding)
        assert grey_of(up) == pytest.approx(HARD, abs=2)
        await cloud.answer(0)
        if kind == "edge":
            await eventually(lambda: len(world.results) == 1)
            await eventually(lambda: world.counts("c0").uploaded_bytes == len(up.data))


def grey_of(body: Frame) -> float:
    """Return the mean grey value of a frame."""
    if body.encoding == "raw":
        return float(np.frombuffer(body.data, body.dtype).mean())
    return float(np.asarray(Image.open(io.BytesIO(body.data))).mean())


async def test_a_frame_that_is_too_large_to_go_up_stays(world: World) -> None:
    noise = np.random.default_rng(1).integers(120, 180, (64, 64), np.uint8)
    noise[0, 0] = HARD
    cloud = world.worker("cloud", "c0", big())
    async with cloud, world.worker("edge", "e0", small(), UPLOAD_ENCODING="jpeg", UPLOAD_MAX_BYTES="1024"):
        await world.knows("e0", "c0")
        result = await world.ask(HARD, shape=[64, 64], data=memoryview(noise.tobytes()))
        assert result.by == "cloud"  # it was made smaller
        await eventually(lambda: world.counts("e0").inference_number == 1)
        assert 0 < world.counts("e0").uploaded_bytes <= 1024
        floats = memoryview(np.full(400, HARD, np.float32).tobytes())
        result = await world.ask(HARD, dtype="float32", shape=[400], data=floats)
        assert (result.by, result.hard, result.degraded, result.reason) == ("edge", True, True, "no-picture")
        assert (await world.ask(EASY)).by == "edge"
