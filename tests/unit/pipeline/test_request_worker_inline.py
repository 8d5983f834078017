"""A cloud worker with a short model answers in the very turn in which samples come, and all the same in bounds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from halimede import topics
from halimede.bus import Delivery, Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.port import PUBLISH_TIMEOUT
from halimede.messages import Frame
from halimede.offload.channel import inference
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.inference import InferenceOutcome
from halimede.pipeline.intake import RequestLimits
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.workers import RequestWorker
from halimede.topic import Address
from tests.simulated import eventually
from tests.unit.frames.clouds import NS, SERVICE, frame
from tests.unit.pipeline.answering import Ours, short
from tests.worlds import connected

pytestmark = pytest.mark.simulated

LIMITS = RequestLimits(queue=16, replies=4)
SAMPLES = 200


class Unanswered(MemoryBus):
    """A connection over which replies leave and are not acknowledged, until they ``go_on``."""

    def __init__(self, client_id: str, broker: MemoryBroker) -> None:
        super().__init__(client_id, broker)
        self.stalled: list[asyncio.Future[int]] | None = []

    def post(self, packet: Packet) -> asyncio.Future[int] | None:
        if self.stalled is None:
            return super().post(packet)
        self.stalled.append(asyncio.get_running_loop().create_future())
        return self.stalled[-1]

    def go_on(self) -> None:
        for answer in self.stalled or ():
            answer.set_result(0)
        self.stalled = None


@contextlib.asynccontextmanager
async def answering_at_once() -> AsyncIterator[tuple[RequestWorker, Unanswered, asyncio.Task[None]]]:
    async with connected(Unanswered("c0", MemoryBroker())) as bus, ModelThread() as thread:
        slot = ModelSlot(LoadedModel(Ours(), thread))
        slot.current.inline_policy = short()
        watching = asyncio.create_task(slot.watch(1e6))
        await asyncio.sleep(0)
        server = RequestWorker(bus, slot, inference(NS, SERVICE, "c0"), limits=LIMITS)
        running = asyncio.create_task(server.run())
        await asyncio.sleep(0.1)
        try:
            yield server, bus, running
        finally:
            running.cancel()
            watching.cancel()
            await asyncio.wait([running, watching])


def hand_over(server: RequestWorker, value: int) -> None:
    """Hand a request over as the bus does."""
    body = frame(value % 50)
    to: Address[Frame] = topics.REQUEST_TO.at(ns=NS, service=SERVICE, worker="c0")
    response = topics.REPLY.at(ns=NS, service=SERVICE, worker="e0").text
    packet = Packet(to.text, b"", response_topic=response, correlation=b"c")
    server.intake.take(Delivery(to, {}, body, packet))


async def test_replies_that_the_broker_does_not_take_hold_the_model_back() -> None:
    async with answering_at_once() as (server, _, __):
        before = len(asyncio.all_tasks())
        for value in range(SAMPLES):
            hand_over(server, value)
            await asyncio.sleep(0.001)
        waiting = SAMPLES - server.intake.stats.refused
        assert waiting <= LIMITS.replies + LIMITS.queue + 2
        assert len(asyncio.all_tasks()) - before <= 2
        assert server.pipeline.inside == LIMITS.queue
        # each four are given up after a while: their requesters repeat the requests
        await asyncio.sleep(PUBLISH_TIMEOUT * (LIMITS.queue // LIMITS.replies + 2))
        assert server.pipeline.inside == server.intake.responder.outbox.pending == 0


async def test_requests_of_one_turn_of_the_loop_are_answered_in_the_next_one() -> None:
    async with answering_at_once() as (server, bus, _):
        bus.go_on()
        for count in (1, 5):  # the first one measures the model
            before = server.intake.stats.served
            for value in range(count):
                hand_over(server, value)
            await asyncio.sleep(0)
            assert server.intake.stats.served == before + count
            await asyncio.sleep(0.1)


async def test_once_the_broker_takes_replies_again_all_that_was_taken_is_answered() -> None:
    async with answering_at_once() as (server, bus, _):
        for value in range(12):
            hand_over(server, value)
            await asyncio.sleep(0.001)
        assert server.pipeline.inside
        bus.go_on()
        await eventually(lambda: server.intake.stats.served == 12 and not server.pipeline.inside, 30)
        assert await server.drain(30)


async def test_a_defect_while_answering_ends_the_server_and_leaves_no_sample_unanswered_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> list[InferenceOutcome] | None:
        raise RuntimeError("a defect")

    async with answering_at_once() as (server, _, running):
        monkeypatch.setattr(server.pipeline.slot.current, "try_inline", fail)
        hand_over(server, 1)
        done, _ = await asyncio.wait([running], timeout=1)
        assert done
        with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="a defect"), flatten_subgroups=True):
            await running
