"""One hard frame is one trace across edge and cloud: real workers, a real Mosquitto, a collector on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

from halimede import topics
from halimede.bus.mqtt import MqttBus
from halimede.frames import new_id, pack
from halimede.messages import Frame
from halimede.tracing import TraceContext, read, write
from tests.collector import Span, collector
from tests.digits import ALL_HARD, Digits
from tests.inbox import Inbox
from tests.integration.workers import Site
from tests.ports import free_port
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = pytest.mark.timeout(180)

EDGE_STEPS = {"receive", "decode", "wait", "model", "mine", "offload", "offload.request", "result"}
CLOUD_STEPS = {"receive", "queue", "decode", "compute", "reply"}
START_S = 30.0


def frame(picture: bytes) -> Frame:
    return Frame(id=new_id(), encoding="png", data=memoryview(picture))


async def workers(s: Site, digits: Digits, **environment: str) -> None:
    s.start("cloud", s.cloud, digits.big, **environment)
    s.start("edge", s.edge, digits.small, **ALL_HARD, **environment)
    await s.running(s.cloud, s.edge)


def only(spans: list[Span], name: str, worker: str = "") -> Span:
    found = [s for s in spans if s.name == name and s.resource["service.instance.id"].endswith(worker)]
    assert len(found) == 1, [s.name for s in spans]
    return found[0]


@pytest.mark.slow
async def test_one_hard_frame_is_one_trace_from_the_camera_to_the_result(s: Site, digits: Digits) -> None:
    results: Inbox[Any] = Inbox()
    replies: Inbox[Any] = Inbox()
    async with collector() as there, MqttBus("consumer-t", s.broker.url) as bus:
        await bus.wait_connected(patience(5))
        await bus.subscribe(topics.RESULT.filter(ns="default", service=s.service), results)
        await bus.subscribe(topics.REPLY.filter(ns="default", service=s.service), replies)
        await workers(s, digits, OTEL_EXPORTER_OTLP_ENDPOINT=there.url)
        camera = TraceContext(trace=0xABCDEF0123456789, span=0x1122334455667788, state="vendor=1")
        one, other = frame(digits.pictures[0]), frame(digits.pictures[1])
        await s.publish(pack(one), properties=write(camera))
        await s.publish(pack(other))
        await eventually(lambda: len(results.deliveries) == 2, START_S)
        trace = f"{camera.trace:032x}"
        roots = {"edge frame", "cloud request"}
        await eventually(lambda: {x.name for x in there.of(trace)} == EDGE_STEPS | CLOUD_STEPS | roots, START_S)

        spans = there.of(trace)
        edge, cloud = only(spans, "edge frame"), only(spans, "cloud request")
        offload = only(spans, "offload")
        assert (edge.parent, offload.parent, cloud.parent) == (f"{camera.span:016x}", edge.id, offload.id)
        for step in EDGE_STEPS - {"offload.request"}:
            assert only(spans, step, "-e").parent == edge.id
        assert only(spans, "offload.request").parent == offload.id
        for step in CLOUD_STEPS:
            assert only(spans, step, "-c").parent == cloud.id
        assert len({x.id for x in spans}) == len(spans)
        assert edge.attributes["halimede.frame"] == one.id.hex()
        assert only(spans, "offload.request").attributes["halimede.to"] == s.cloud
        assert edge.resource["service.name"] == f"{s.service}-edge"
        assert all(edge.start <= x.start <= x.end for x in spans if x.resource == edge.resource)

        # each model call is a trace of its own, linked both ways
        def calls() -> list[Span]:
            return [x for x in there.spans if x.name == "batch" and (trace, edge.id) in x.links]

        await eventually(lambda: len(calls()) == 1, START_S)
        (call,) = calls()
        assert only(spans, "model").links == [(call.trace, call.id)]
        assert call.attributes["halimede.batch"] == len(call.links)
        (computed,) = only(spans, "compute").links
        assert (trace, cloud.id) in next(x for x in there.spans if (x.trace, x.id) == computed).links

        # the result says where it belongs; a frame without a context is a trace by its own id
        contexts = {d.body.id: read(d.packet.properties) for d in (*results.deliveries, *replies.deliveries)}
        assert contexts[one.id.hex()] == TraceContext(camera.trace, int(edge.id, 16), state="vendor=1")
        assert contexts[one.id] == TraceContext(camera.trace, int(cloud.id, 16), state="vendor=1")
        await eventually(lambda: bool(there.of(other.id.hex())), START_S)
        assert only(there.of(other.id.hex()), "edge frame").parent == ""


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take whatever comes, for as long as it comes, and never answer."""
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()


@pytest.mark.slow
@pytest.mark.parametrize("there", [False, True], ids=["away", "silent"])
async def test_a_collector_that_does_not_answer_neither_slows_nor_stops_a_worker(
    s: Site, digits: Digits, *, there: bool
) -> None:
    port = free_port()
    told = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_TIMEOUT": "60000"}
    told["GRACE_S"] = "60"
    async with contextlib.AsyncExitStack() as stack:
        if there:
            server = await asyncio.start_server(silence, "127.0.0.1", port)
            stack.callback(server.close)
        await workers(s, digits, **told)
        await s.send_all(digits.pictures[:200])
        assert len(s.by("cloud")) > 100
        began = time.monotonic()
        codes = await asyncio.gather(*(worker.terminate() for worker in s.workers))
        assert codes == [0, 0]
        assert time.monotonic() - began < patience(10), "they wait for the collector, or for the grace period"
        assert "traces lost" in s.workers[1].log.read_text()
