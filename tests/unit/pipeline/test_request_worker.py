"""The cloud's side answers every sample that can still use an answer, once, and refuses the others in time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence

import msgspec
import numpy as np
import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.frames import new_frame
from halimede.inference import Array
from halimede.messages import Box, Frame, Load, Prediction, Reply
from halimede.offload.channel import inference
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.intake import RequestLimits
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.responders import REMEMBERED_BYTES, weight
from halimede.pipeline.workers import RequestWorker
from halimede.topic import Address, Filter
from tests.simulated import eventually, simulated
from tests.unit.frames.clouds import BAD, NS, SERVICE, Brightness, cloud_bus, frame


class Held(Brightness):
    """Waits in its thread until it is let go, so that a test knows what waits in the queue.

    Simulated time stands while a thread works: these tests run on the real clock.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.gate = threading.Event()

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        self.entered.set()
        assert self.gate.wait(10)
        return super().predict(batch)


class Asker:
    """An edge worker's connection that sends requests by hand and keeps the replies."""

    def __init__(self, bus: MemoryBus, name: str) -> None:
        self.bus = bus
        self.address = topics.REPLY.at(ns=NS, service=SERVICE, worker=name)
        self.replies: list[tuple[Reply, bytes]] = []

    async def start(self) -> None:
        async def keep(delivery: Delivery[Reply]) -> None:
            self.replies.append((delivery.body, delivery.packet.correlation))

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
    model: Brightness, limits: RequestLimits | None = None, broker: MemoryBroker | None = None
) -> AsyncIterator[tuple[RequestWorker, Asker, MemoryBroker]]:
    broker = broker or MemoryBroker()
    async with (
        cloud_bus(broker, "c0") as bus,
        MemoryBus("e0", broker) as edge,
        ModelThread() as thread,
        asyncio.TaskGroup() as group,
    ):
        server = RequestWorker(bus, ModelSlot(LoadedModel(model, thread)), inference(NS, SERVICE, "c0"), limits=limits)
        running = group.create_task(server.run())
        await edge.wait_connected(1)
        asker = Asker(edge, "e0")
        await asker.start()
        await asyncio.sleep(0.1)
        yield server, asker, broker
        running.cancel()


@simulated
async def test_a_request_is_answered_with_its_own_id_and_correlation() -> None:
    async with serving(Brightness()) as (server, asker, _):
        body = frame(7)
        await asker.send(body, b"mine")
        (reply,) = await asker.until(1)
        assert (reply.id, reply.worker, reply.batch, reply.error) == (body.id, "c0", 1, "")
        assert reply.prediction == Prediction(label="7", score=1.0)
        assert asker.replies[0][1] == b"mine"
        assert (server.intake.stats.served, server.intake.times.batch.count) == (1, 1)


@simulated
async def test_requests_on_the_shared_topic_reach_one_of_several_servers() -> None:
    async with serving(Brightness()) as (_, asker, broker), cloud_bus(broker, "c1") as bus, ModelThread() as thread:
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
    model = Held()
    async with serving(model) as (_, asker, _):
        await asker.send(frame(1))
        await asyncio.to_thread(model.entered.wait)
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
    model = Held()
    async with serving(model, RequestLimits(queue=2)) as (server, asker, _):
        await asker.send(frame(1))
        await asyncio.to_thread(model.entered.wait)
        await asker.send(frame(2))
        await asker.send(frame(3))
        (refusal,) = await asker.until(1)
        assert (refusal.error, refusal.prediction) == ("overloaded", None)
        model.gate.set()
        await asker.until(3)
        assert (server.intake.stats.served, server.intake.stats.refused) == (2, 1)


async def test_the_queue_is_bounded_in_bytes_too() -> None:
    model = Held()
    async with serving(model, RequestLimits(queue_bytes=10_000)) as (_, asker, _):
        await asker.send(frame(1, (90, 90)))
        await asyncio.to_thread(model.entered.wait)
        await asker.send(frame(2, (90, 90)))
        (refusal,) = await asker.until(1)
        assert refusal.error == "overloaded"
        model.gate.set()


async def test_the_bound_in_bytes_holds_for_a_sample_that_comes_again_larger() -> None:
    model = Held()
    async with serving(model, RequestLimits(queue_bytes=10_000)) as (_, asker, _):
        await asker.send(frame(1))
        await asyncio.to_thread(model.entered.wait)
        small = frame(2)
        await asker.send(small)
        await asker.send(msgspec.structs.replace(frame(2, (110, 110)), id=small.id))
        (refusal,) = await asker.until(1)
        assert (refusal.id, refusal.error) == (small.id, "overloaded")
        model.gate.set()
        await asker.until(3)


async def test_a_sample_whose_time_is_over_is_not_computed() -> None:
    model = Held()
    async with serving(model) as (server, asker, _):
        await asker.send(frame(1))
        await asyncio.to_thread(model.entered.wait)
        await asker.send(frame(2), deadline_ms=20)
        await asker.send(frame(3))
        await asyncio.sleep(0.05)
        model.gate.set()
        await asker.until(2)
        assert model.batches == [[1], [3]]
        assert (server.intake.stats.expired, server.intake.stats.served) == (1, 2)
        await server.drain(5)
        assert len(asker.replies) == 2  # its asker has given up: a reply would only be late


@simulated
async def test_a_sample_that_cannot_be_in_time_is_refused_while_that_is_still_news() -> None:
    async with serving(Brightness()) as (server, asker, _):
        server.pipeline.rate.learn(1, 300.0)
        await asker.send(frame(1), deadline_ms=100)
        (reply,) = await asker.until(1)
        assert reply.error == "expired"
        await asker.send(frame(2), deadline_ms=100)
        assert (await asker.until(2))[1].prediction is not None


async def test_a_sample_is_refused_at_once_where_those_before_it_leave_it_no_time() -> None:
    model = Held()
    async with serving(model) as (server, asker, _):
        server.pipeline.rate.learn(1, 3000.0)
        await asker.send(frame(1))
        await asyncio.to_thread(model.entered.wait)
        await asker.send(frame(2), deadline_ms=5000)
        (refusal,) = await asker.until(1)
        assert (refusal.error, server.intake.stats.refused) == ("overloaded", 1)
        await asker.send(frame(3), deadline_ms=60_000)
        model.gate.set()
        await asker.until(3)
        assert model.batches == [[1], [3]]


async def test_a_bad_frame_is_isolated_and_the_others_are_answered() -> None:
    model = Held()
    async with serving(model) as (server, asker, _):
        await asker.send(frame(1))
        await asyncio.to_thread(model.entered.wait)
        for value in (2, BAD, 3, 4):
            await asker.send(frame(value))
        model.gate.set()
        replies = {reply.id: reply for reply in await asker.until(5)}
        errors = [reply.error for reply in replies.values()]
        assert sorted(errors) == ["", "", "", "", "failed"]
        assert (server.intake.stats.served, server.intake.stats.failed) == (4, 1)


@simulated
async def test_a_frame_that_broke_the_model_twice_is_quarantined() -> None:
    model = Brightness()
    async with serving(model) as (_, asker, _):
        bad, other = frame(BAD), Asker(asker.bus, "e1")
        await other.start()
        for who, expected in (
            (asker, "failed"),
            (asker, "quarantined"),
            (asker, "quarantined"),
            (other, "quarantined"),
        ):
            who.replies.clear()
            await who.send(bad)
            assert (await who.until(1))[0].error == expected
        assert model.batches == [[BAD], [BAD]]


@simulated
async def test_what_is_no_picture_or_does_not_fit_the_model_is_invalid() -> None:
    async with serving(Brightness()) as (_, asker, _):
        broken = Frame(id=bytes(16), encoding="png", data=memoryview(b"\x89PNG\r\n\x1a\n broken"))
        await asker.send(broken)
        await asker.send(frame(1, (2, 2, 3)))
        assert [reply.error for reply in await asker.until(2)] == ["invalid", "invalid"]
        await asker.send(new_frame(np.full((1, 1), 5, np.uint8), encoding="png"))
        assert (await asker.until(3))[2].prediction == Prediction(label="5", score=1.0)


@simulated
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
        replies = await asker.until(2)
        assert sorted((reply.error, reply.message) for reply in replies) == [
            ("", ""),
            ("failed", "the prediction cannot be sent"),
        ]


@simulated
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
    model = Held()
    async with serving(model) as (_, asker, _):
        await asker.send(frame(1))
        await asyncio.to_thread(model.entered.wait)
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
def test_an_answer_goes_to_reply_topics_of_its_service_alone(hostile: Address[Reply]) -> None:
    @simulated
    async def check() -> None:
        model = Brightness()
        async with serving(model) as (_, asker, broker):
            heard: list[str] = []
            async with MemoryBus("spy", broker) as spy:
                await spy.wait_connected(1)

                async def note(delivery: Delivery[object]) -> None:
                    heard.append(str(delivery.address))

                await spy.subscribe(Filter(hostile.topic, hostile.text), note)
                await asker.send(frame(1), reply_to=hostile)
                await asker.send(frame(2))
                await asker.until(1)
            assert heard == []
            assert model.batches == [[2]]

    check()


@simulated
async def test_a_request_without_correlation_is_refused() -> None:
    model = Brightness()
    async with serving(model) as (_, asker, _):
        await asker.send(frame(1), b"")
        await asker.send(frame(1), b"x" * 65)
        await asker.send(frame(2))
        await asker.until(1)
        assert model.batches == [[2]]


def advertised(broker: MemoryBroker) -> Load | None:
    payload = broker.retained(f"{NS}/sedna/inference/{SERVICE}/load/c0")
    return msgspec.json.decode(payload, type=Load) if payload else None


async def test_load_is_advertised_follows_the_queue_and_is_cleared_at_death() -> None:
    model = Held()
    broker = MemoryBroker()
    async with serving(model, RequestLimits(queue=4), broker) as (_, asker, _):
        assert advertised(broker) == Load(credits=4, places=4)
        await asker.send(frame(1))
        await asyncio.to_thread(model.entered.wait)
        await asker.send(frame(2))
        await eventually(lambda: advertised(broker) == Load(credits=2, queued=2, places=4))
        model.gate.set()
        await asker.until(2)
        await eventually(lambda: (load := advertised(broker)) is not None and load.credits == 4)
        broker.links["c0"].abort("killed")
        assert advertised(broker) is None


@simulated
async def test_load_is_repeated_while_nothing_changes_and_after_a_broker_restart() -> None:
    broker = MemoryBroker()
    async with serving(Brightness(), broker=broker) as (_, asker, _):
        heard = 0

        async def count(_: Delivery[Load]) -> None:
            nonlocal heard
            heard += 1

        await asker.bus.subscribe(topics.LOAD.filter(ns=NS, service=SERVICE), count)
        await asyncio.sleep(20)
        assert 8 <= heard <= 13
        broker.restart()
        await eventually(lambda: "c0" in broker.links, 5.0)
        await eventually(lambda: advertised(broker) is not None, 0.3)


async def test_draining_answers_what_is_here_takes_nothing_new_and_withdraws_the_load() -> None:
    model = Held()
    broker = MemoryBroker()
    async with serving(model, broker=broker) as (server, asker, _):
        await asker.send(frame(1))
        await asyncio.to_thread(model.entered.wait)
        await asker.send(frame(2))
        draining = asyncio.create_task(server.drain(5))
        await eventually(lambda: advertised(broker) is None)
        model.gate.set()
        assert await draining
        assert len(await asker.until(2)) == 2
        assert not await asker.send(frame(3))


async def test_a_draining_that_takes_too_long_ends_at_its_deadline() -> None:
    model = Held()
    async with serving(model) as (server, asker, _):
        await asker.send(frame(1))
        await asyncio.to_thread(model.entered.wait)
        assert not await server.drain(0.1)
        model.gate.set()


@simulated
async def test_a_prediction_that_cannot_travel_becomes_an_error() -> None:
    class Odd(Brightness):
        def predict(self, batch: Sequence[Array]) -> list[Prediction]:
            return [Prediction(value=object()) for _ in batch]

    async with serving(Odd()) as (_, asker, _):
        await asker.send(frame(1))
        assert (await asker.until(1))[0].error == "failed"


@pytest.mark.parametrize(
    "prediction",
    [
        Prediction(value=[0.5] * 300_000),
        Prediction(probabilities=[0.5] * 100_000),
        Prediction(boxes=[Box(0, 0, 1, 1, 0.5)] * 10_000),
        Prediction(embeddings=b"\0" * 1_000_000),
    ],
)
def test_large_replies_are_not_worth_remembering(prediction: Prediction) -> None:
    assert weight(prediction) > REMEMBERED_BYTES


def test_usual_replies_are_worth_remembering() -> None:
    usual = Prediction(label="x", score=0.5, probabilities=[0.001] * 1000, value={"any": "thing"})
    assert weight(usual) < REMEMBERED_BYTES
    assert weight(None) == 0


@simulated
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


async def test_calls_run_side_by_side_where_the_model_has_several_threads() -> None:
    model, broker = Held(), MemoryBroker()
    async with (
        cloud_bus(broker, "c0") as bus,
        MemoryBus("e0", broker) as edge,
        ModelThread() as one,
        ModelThread() as other,
        asyncio.TaskGroup() as group,
    ):
        loaded = LoadedModel(model, one, more=[other])
        server = RequestWorker(bus, ModelSlot(loaded), inference(NS, SERVICE, "c0"))
        running = group.create_task(server.run())
        await edge.wait_connected(1)
        asker = Asker(edge, "e0")
        await asker.start()
        await asyncio.sleep(0.1)
        await asker.send(frame(1))
        await asker.send(frame(2))
        await eventually(lambda: one.busy_s > 0 and other.busy_s > 0)
        assert loaded.busy_s > 0
        model.gate.set()
        await asker.until(2)
        assert sorted(model.batches) == [[1], [2]]
        running.cancel()


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
