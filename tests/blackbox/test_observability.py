"""What else workers show of themselves: their health, and traces of frames."""

from __future__ import annotations

import aiohttp
import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.messages import TraceReply, TraceRequest
from halimede.topic import Filter
from tests.blackbox.models import HARD, big, small
from tests.blackbox.world import Kind, World
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
        assert "is not connected" in (await asked(session, url, "readyz"))[1]["broker"]
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
