"""The cloud's side answers every sample that can still use an answer, once, and refuses the others in time."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.frames import new_frame
from halimede.inference import Array
from halimede.messages import Box, Frame, Load, PicturePoint, Prediction, Reply, TextLine
from halimede.offload.channel import inference
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.intake import RequestLimits
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.responders import weight
from halimede.pipeline.workers import RequestWorker
from halimede.topic import Address, Filter
from tests.inbox import Inbox
from tests.simulated import eventually
from tests.unit.frames.clouds import BAD, NS, SERVICE, Brightness, cloud_bus, frame
from tests.unit.pipeline.answering import Held
from tests.worlds import connected


class Asker:
    """An edge worker's connection that sends requests by hand and keeps the replies."""

    def __init__(self, bus: MemoryBus, name: str) -> None:
        self.bus = bus
        self.address = topics.REPLY.at(ns=NS, service=SERVICE, worker=name)
        self.replies: list[tuple[Reply, bytes]] = []
        self.properties: list[dict[str, str]] = []

    async def start(self) -> None:
        async def keep(delivery: Delivery[Reply]) -> None:
            self.replies.append((delivery.body, delivery.packet.correlation))
            self.properties.append(delivery.properties)

        await self.bus.subscribe(Filter(topics.REPLY, self.address.text), keep)

    async def send(
        self, body: Frame, correlation: bytes = b"c", *, worker: str = "c0", deadline_ms: float = 60_000,
        reply_to: Address[Reply] | None = None,
    ) -> bool:  # fmt: skip
        address = topics.REQUEST_TO.at(ns=NS, service=SERVICE, worker=worker)
        body = msgspec.structs.replace(body, deadline_ms=deadline_ms)
        return await self.bus.publish(address, body, reply_to=reply_to or self.address, correlation=correlation)

    async def until(self, count: int) -> list[Reply]:
        await eventually(lambda: len(self.replies) >= count)
        return [reply for reply, _ in self.replies]


@contextlib.asynccontextmanager
async def serving(
    model: Brightness,
    limits: RequestLimits | None = None,
    broker: MemoryBroker | None = None,
    more: Sequence[ModelThread] = (),
) -> AsyncIterator[tuple[RequestWorker, Asker, MemoryBroker]]:
    broker = broker or MemoryBroker()
    async with (
        cloud_bus(broker, "c0") as bus,
        connected(MemoryBus("e0", broker)) as edge,
        ModelThread() as thread,
        asyncio.TaskGroup() as group,
    ):
        slot = ModelSlot(LoadedModel(model, thread, more=more))
        server = RequestWorker(bus, slot, inference(NS, SERVICE, "c0"), limits=limits)
        running = group.create_task(server.run())
        asker = Asker(edge, "e0")
        await asker.start()
        await asyncio.sleep(0.1)
        yield server, asker, broker
        running.cancel()


@contextlib.asynccontextmanager
async def busy(
    limits: RequestLimits | None = None, broker: MemoryBroker | None = None
) -> AsyncIterator[tuple[RequestWorker, Asker, Held]]:
    """A server whose model has the sample 1 in its thread until it is let go, at the latest at the end."""
    model = Held()
    async with serving(model, limits, broker) as (server, asker, _):
        await asker.send(frame(1))
        await asyncio.to_thread(model.entered.wait)
        yield server, asker, model
        model.gate.set()


@pytest.mark.simulated
async def test_a_request_is_answered_with_its_own_id_and_correlation() -> None:
    async with serving(Brightness()) as (server, asker, _):
        body = frame(7)
        await asker.send(body, b"mine")
        (reply,) = await asker.until(1)
        assert (reply.id, reply.worker, reply.batch, reply.error) == (body.id, "c0", 1, "")
        assert reply.prediction == Prediction(label="7", score=1.0)
        assert asker.replies[0][1] == b"mine"
        assert (server.intake.stats.served, server.intake.times.batch.count) == (1, 1)


@pytest.mark.simulated
async def test_a_reply_has_the_trace_of_its_request_if_that_has_one() -> None:
    traceparent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    async with serving(Brightness()) as (_, asker, __):
        address = topics.REQUEST_TO.at(ns=NS, service=SERVICE, worker="c0")
        for properties in ({}, {"traceparent": traceparent}):
            await asker.bus.publish(address, frame(7), reply_to=asker.address, correlation=b"c", properties=properties)
        await asker.until(2)
        assert [properties.get("traceparent", "")[:35] for properties in asker.properties] == ["", traceparent[:35]]


@pytest.mark.simulated
async def test_requests_on_the_shared_topic_reach_one_of_several_servers(thread: ModelThread) -> None:
    async with serving(Brightness()) as (_, asker, broker), cloud_bus(broker, "c1") as bus:
        other = RequestWorker(bus, ModelSlot(LoadedModel(Brightness(), thread)), inference(NS, SERVICE, "c1"))
        running = asyncio.create_task(other.run())
        await asyncio.sleep(0.1)
        for value in range(6):
            address = topics.REQUEST.at(ns=NS, service=SERVICE)
            await asker.bus.publish(address, frame(value), reply_to=asker.address, correlation=b"c")
        replies = await asker.until(6)
        await asyncio.sleep(0.5)
        assert len(asker.replies) == 6
        assert {reply.worker for reply in replies} == {"c0", "c1"}
        running.cancel()


async def test_what_waits_is_batched_by_shape_and_never_waited_for() -> None:
    async with busy() as (_, asker, model):
        for value in (2, 3, 4):
            await asker.send(frame(value))
        for value in (5, 6):
            await asker.send(frame(value, (3, 3)))
        model.gate.set()
        replies = await asker.until(6)
        # the first call goes alone, as a measure of the model's speed
        assert model.batches[0] == [1]
        assert sorted(map(sorted, model.batches[1:])) == [[2, 3, 4], [5, 6]]
        assert [reply.prediction.label for reply in replies if reply.prediction] == list("123456")


async def test_a_full_queue_refuses_at_once_and_the_edge_is_told() -> None:
    async with busy(RequestLimits(queue=2)) as (server, asker, model):
        await asker.send(frame(2))
        await asker.send(frame(3))
        (refusal,) = await asker.until(1)
        assert (refusal.error, refusal.prediction) == ("overloaded", None)
        model.gate.set()
        await asker.until(3)
        assert (server.intake.stats.served, server.intake.stats.refused) == (2, 1)


async def test_a_sample_whose_time_is_over_is_not_computed() -> None:
    async with busy() as (server, asker, model):
        await asker.send(frame(2), deadline_ms=20)
        await asker.send(frame(3))
        await asyncio.sleep(0.05)
        model.gate.set()
        await asker.until(2)
        assert model.batches == [[1], [3]]
        assert (server.intake.stats.expired, server.intake.stats.served) == (1, 2)
        await server.drain(5)
        assert len(asker.replies) == 2  # its asker has given up: a reply would only be late


@pytest.mark.simulated
async def test_a_sample_that_cannot_be_in_time_is_refused_while_that_is_still_news() -> None:
    async with serving(Brightness()) as (server, asker, _):
        server.pipeline.rate.learn(1, 300.0)
        await asker.send(frame(1), deadline_ms=100)
        (reply,) = await asker.until(1)
        assert reply.error == "expired"
        await asker.send(frame(2), deadline_ms=100)
        assert (await asker.until(2))[1].prediction is not None


async def test_a_sample_is_refused_at_once_where_those_before_it_leave_it_no_time() -> None:
    async with busy() as (server, asker, model):
        server.pipeline.rate.learn(1, 3000.0)
        await asker.send(frame(2), deadline_ms=5000)
        (refusal,) = await asker.until(1)
        assert (refusal.error, server.intake.stats.refused) == ("overloaded", 1)
        await asker.send(frame(3), deadline_ms=60_000)
        model.gate.set()
        await asker.until(3)
        assert model.batches == [[1], [3]]


async def test_a_bad_frame_is_isolated_and_the_others_are_answered() -> None:
    async with busy() as (server, asker, model):
        for value in (2, BAD, 3, 4):
            await asker.send(frame(value))
        model.gate.set()
        assert sorted(reply.error for reply in await asker.until(5)) == ["", "", "", "", "failed"]
        assert (server.intake.stats.served, server.intake.stats.failed) == (4, 1)


@pytest.mark.simulated
async def test_a_frame_that_broke_the_model_twice_is_quarantined() -> None:
    model = Brightness()
    async with serving(model) as (_, asker, _):
        bad, other, errors = frame(BAD), Asker(asker.bus, "e1"), list[str]()
        await other.start()
        for who in (asker, asker, asker, other):
            who.replies.clear()
            await who.send(bad)
            errors.append((await who.until(1))[0].error)
        assert errors == ["failed", "quarantined", "quarantined", "quarantined"]
        assert model.batches == [[BAD], [BAD]]


@pytest.mark.simulated
async def test_what_is_no_picture_or_does_not_fit_the_model_is_invalid() -> None:
    async with serving(Brightness()) as (_, asker, _):
        broken = Frame(id=bytes(16), encoding="png", data=memoryview(b"\x89PNG\r\n\x1a\n broken"))
        await asker.send(broken)
        await asker.send(frame(1, (2, 2, 3)))
        assert [reply.error for reply in await asker.until(2)] == ["invalid", "invalid"]
        await asker.send(new_frame(np.full((1, 1), 5, np.uint8), encoding="png"))
        assert (await asker.until(3))[2].prediction == Prediction(label="5", score=1.0)


@pytest.mark.simulated
async def test_an_answer_nested_too_deeply_to_be_written_costs_its_sample_and_nothing_else() -> None:
    class Nesting(Brightness):
        def predict(self, batch: Sequence[Array]) -> list[Prediction]:
            value: list[object] = []
            for _ in range(100_000 if batch[0].flat[0] == 1 else 0):  # deeper than any Python writes
                value = [value]
            return [Prediction(value=value) for _ in batch]

    async with serving(Nesting()) as (_, asker, __):
        await asker.send(frame(1))
        await asker.send(frame(2))
        replies = sorted((reply.error, reply.message) for reply in await asker.until(2))
        assert replies == [("", ""), ("failed", "the prediction cannot be sent")]


@pytest.mark.simulated
async def test_a_resend_of_an_answered_sample_gets_the_same_answer_without_the_model() -> None:
    model = Brightness()
    async with serving(model) as (server, asker, _):
        body = frame(5)
        await asker.send(body, b"first")
        first = (await asker.until(1))[0]
        await asker.send(body, b"second")
        assert (await asker.until(2))[1] == first
        assert asker.replies[1][1] == b"second"
        assert (model.batches, server.intake.stats.served) == ([[5]], 1)


async def test_a_resend_of_a_waiting_sample_is_computed_once_for_the_latest_correlation() -> None:
    async with busy() as (_, asker, model):
        body = frame(2)
        await asker.send(body, b"first")
        await asker.send(body, b"second")
        model.gate.set()
        await asker.until(2)
        await asyncio.sleep(0.5)
        assert [correlation for reply, correlation in asker.replies if reply.id == body.id] == [b"second"]
        assert model.batches == [[1], [2]]


@pytest.mark.parametrize(
    "hostile",
    [
        topics.DELETE.at(node="edge0", ns="default", plural="models", name="m"),
        topics.REPLY.at(ns=NS, service="another", worker="e0"),
        topics.REPLY.at(ns="kube-system", service=SERVICE, worker="e0"),
    ],
)
@pytest.mark.simulated
async def test_an_answer_goes_to_reply_topics_of_its_service_alone(hostile: Address[Reply]) -> None:
    model, inbox = Brightness(), Inbox[Any]()
    async with serving(model) as (_, asker, broker), connected(MemoryBus("spy", broker)) as spy:
        await spy.subscribe(Filter(hostile.topic, hostile.text), inbox)
        await asker.send(frame(1), reply_to=hostile)
        await asker.send(frame(2))
        await asker.until(1)
        assert inbox.deliveries == []
        assert model.batches == [[2]]


def advertised(broker: MemoryBroker) -> Load | None:
    payload = broker.retained_payload(f"{NS}/sedna/inference/{SERVICE}/load/c0")
    return msgspec.json.decode(payload, type=Load) if payload else None


async def test_load_is_advertised_follows_the_queue_and_is_cleared_at_death() -> None:
    model, broker = Held(), MemoryBroker()
    async with serving(model, RequestLimits(queue=4), broker) as (_, asker, _):
        assert advertised(broker) == Load(credits=4, places=4)
        await asker.send(frame(1))
        await asker.send(frame(2))
        await eventually(lambda: advertised(broker) == Load(credits=2, queued=2, places=4))
        model.gate.set()
        await asker.until(2)
        await eventually(lambda: (load := advertised(broker)) is not None and load.credits == 4)
        broker.links["c0"].abort("killed")
        assert advertised(broker) is None


@pytest.mark.simulated
async def test_load_is_repeated_while_nothing_changes_and_after_a_broker_restart() -> None:
    inbox = Inbox[Load]()
    async with serving(Brightness()) as (_, asker, broker):
        await asker.bus.subscribe(topics.LOAD.filter(ns=NS, service=SERVICE), inbox)
        await asyncio.sleep(20)
        assert 8 <= len(inbox.deliveries) <= 13
        broker.restart()
        await eventually(lambda: "c0" in broker.links, 5.0)
        await eventually(lambda: advertised(broker) is not None, 0.3)


async def test_draining_answers_what_is_here_takes_nothing_new_and_withdraws_the_load() -> None:
    broker = MemoryBroker()
    async with busy(broker=broker) as (server, asker, model):
        await asker.send(frame(2))
        draining = asyncio.create_task(server.drain(5))
        await eventually(lambda: advertised(broker) is None)
        model.gate.set()
        assert await draining
        assert len(await asker.until(2)) == 2
        assert not await asker.send(frame(3))


async def test_a_draining_that_takes_too_long_ends_at_its_deadline() -> None:
    async with busy() as (server, _, __):
        assert not await server.drain(0.1)


@pytest.mark.parametrize(
    ("prediction", "size"),
    [
        (Prediction(probabilities=[0.5] * 3), 96),
        (Prediction(boxes=[Box(0, 0, 1, 1, 0.5)] * 2), 512),
        (Prediction(landmarks=[[PicturePoint(1, 2)] * 3, [PicturePoint(1, 2)]]), 512),
        (Prediction(lines=[TextLine(text="four", score=0.5, corners=[])] * 2), 1056),
        (Prediction(embeddings=b"vector"), 6),
        (Prediction(value="text"), 20),
        (
            Prediction(
                probabilities=[0.5] * 8, boxes=[Box(0, 0, 1, 1, 0.5)], landmarks=[[PicturePoint(1, 2)] * 2],
                lines=[TextLine(text="", score=0.5, corners=[])], embeddings=bytes(256), value="text",
            ),
            1556,
        ),
        (Prediction(value=2**64), sys.maxsize),
        (None, 0),
    ],
)  # fmt: skip
def test_each_part_of_a_reply_counts_with_the_memory_that_it_takes(prediction: Prediction | None, size: int) -> None:
    assert weight(prediction) == size


@pytest.mark.simulated
async def test_a_sample_waits_for_others_where_that_is_wanted_and_no_longer() -> None:
    async with serving(Brightness(), RequestLimits(batch=3, delay_s=0.05)) as (server, asker, _):
        server.pipeline.rate.learn(1, 1.0)
        began = asyncio.get_running_loop().time()
        await asker.send(frame(1))
        await asyncio.sleep(0.03)
        await asker.send(frame(2))
        assert [reply.batch for reply in await asker.until(2)] == [2, 2]
        assert 0.04 <= asyncio.get_running_loop().time() - began <= 0.1
        began = asyncio.get_running_loop().time()
        for value in (3, 4, 5):
            await asker.send(frame(value))
        assert [reply.batch for reply in await asker.until(5)][2:] == [3, 3, 3]
        assert asyncio.get_running_loop().time() - began < 0.04


async def test_calls_run_side_by_side_where_the_model_has_several_threads(thread: ModelThread) -> None:
    model = Held()
    async with serving(model, more=[thread]) as (server, asker, _):
        await asker.send(frame(1))
        await asker.send(frame(2))
        loaded = server.pipeline.slot.current
        await eventually(lambda: all(thread.busy_s > 0 for thread in loaded.threads))
        assert loaded.busy_s > 0
        model.gate.set()
        await asker.until(2)
        assert sorted(model.batches) == [[1], [2]]


async def test_replies_that_nobody_acknowledges_are_bounded_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halimede.pipeline.responders.PUBLISH_TIMEOUT", 0.2)
    async with serving(Brightness(), RequestLimits(replies=2)) as (server, asker, _):
        bus, outbox = server.intake._bus, server.intake.responder.outbox
        asked: list[asyncio.Future[int]] = []

        def post(_: object) -> asyncio.Future[int]:
            asked.append(asyncio.get_running_loop().create_future())
            return asked[-1]

        monkeypatch.setattr(bus, "post", post)
        for value in range(6):
            await asker.send(frame(value, (2, 2, 2)))  # it does not fit: each is refused
        await asyncio.sleep(0.1)
        assert len(asked) == outbox.pending == 2
        await eventually(lambda: outbox.pending == 0)
        assert asker.replies == [], "the requester repeats its request"


def test_the_usual_limits_of_requests_are_these() -> None:
    usual = RequestLimits(queue=64, queue_bytes=268_435_456, batch=32, replies=128, horizon_s=1.0, delay_s=0.0)
    assert RequestLimits() == usual


class Odd(Brightness):
    """Returns what cannot travel."""

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        return [Prediction(value=object()) for _ in batch]


class Verbose(Brightness):
    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        raise RuntimeError("x" * 10_000)


class Unprepared(Brightness):
    def prepare(self, image: Array) -> Array:
        raise RuntimeError("no such axis")


@pytest.mark.parametrize(
    ("model", "error", "message", "counts"),
    [
        (Odd(), "failed", "the prediction cannot be sent", (0, 0)),
        (Verbose(), "failed", "(?s).{4096}", (1, 0)),
        (Unprepared(), "invalid", ".*pre-processing failed.*", (1, 1)),
    ],
    ids=["a prediction that cannot travel", "a long reason", "a failed preparation"],
)
@pytest.mark.simulated
async def test_a_model_that_fails_says_why_in_4096_characters(
    model: Brightness, error: str, message: str, counts: tuple[int, int]
) -> None:
    async with serving(model) as (server, asker, _):
        await asker.send(frame(1))
        (reply,) = await asker.until(1)
        assert reply.error == error
        assert re.fullmatch(message, reply.message)
        assert (server.intake.stats.failed, server.intake.stats.unfit) == counts
