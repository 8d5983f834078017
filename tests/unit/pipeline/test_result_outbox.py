"""Every result put into the outbox reaches the broker, sooner or later, and its taking is told once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.acked_publisher import RETURN_S, AckedPublisher
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.message import FAILURE, NO_SUBSCRIBER, SUCCESS, Packet
from halimede.errors import DisconnectedError
from halimede.messages import Prediction, Result
from halimede.pipeline.responders import PATIENCE_S, TOO_LARGE, result_outbox
from tests.simulated import eventually, simulated
from tests.waiting import patience

ADDRESS = topics.RESULT.at(ns="default", service="helmet")


def result(number: int, value: object = None) -> Result:
    return Result(
        id=f"{number:032x}", service="helmet", by="edge", prediction=Prediction(value=value), worker="edge"
    )  # fmt: skip


def note(taken: list[int], number: int, reason: int) -> None:
    """Note a result that the broker has taken."""
    assert reason < FAILURE
    taken.append(number)


@contextlib.asynccontextmanager
async def sending(
    broker: MemoryBroker, capacity: int = 8, limit: int = 2
) -> AsyncIterator[tuple[AckedPublisher[Result], MemoryBus, list[Result]]]:
    heard: list[Result] = []

    async def hear(delivery: Delivery[Result]) -> None:
        heard.append(delivery.body)

    async with MemoryBus("edge", broker) as bus, MemoryBus("consumer", broker) as consumer:
        await bus.wait_connected(1)
        await consumer.wait_connected(1)
        await consumer.subscribe(topics.RESULT.filter(), hear)
        outbox = result_outbox(bus, limit=limit, capacity=capacity)
        running = asyncio.create_task(outbox.run())
        await asyncio.sleep(0.01)
        yield outbox, bus, heard
        running.cancel()


@simulated
async def test_results_are_sent_and_told_as_taken() -> None:
    async with sending(MemoryBroker()) as (outbox, _, heard):
        taken: list[int] = []
        for n in range(5):
            outbox.put(ADDRESS, result(n), partial(note, taken, n))
        assert await outbox.drain(5)
        assert sorted(taken) == [0, 1, 2, 3, 4]
        assert len(heard) == 5


@simulated
async def test_a_result_waits_for_the_broker_and_is_told_as_taken_only_then() -> None:
    async with sending(MemoryBroker()) as (outbox, bus, heard):
        bus.cut()
        taken: list[int] = []
        outbox.put(ADDRESS, result(1), partial(note, taken, 1))
        assert not await outbox.drain(60)
        assert taken == heard == []
        bus.heal()
        assert await outbox.drain(10)
        assert taken == [1]
        assert [r.id for r in heard] == [result(1).id]


@simulated
async def test_lost_acknowledgements_cost_repetitions_but_no_result() -> None:
    broker = MemoryBroker(seed=5)
    async with sending(broker, capacity=100, limit=8) as (outbox, _, heard):
        broker.faults.loss = 0.3
        taken: list[int] = []
        for n in range(60):
            outbox.put(ADDRESS, result(n), partial(note, taken, n))
        assert await outbox.drain(60)
        await asyncio.sleep(60)
        assert sorted(taken) == list(range(60))
        assert {int(r.id, 16) for r in heard} == set(range(60))


@simulated
async def test_a_full_outbox_holds_its_caller_back() -> None:
    async with sending(MemoryBroker(), capacity=2, limit=1) as (outbox, bus, _):
        bus.cut()
        await eventually(lambda: not bus.connected)
        for n in range(3):
            assert outbox.ready
            outbox.put(ADDRESS, result(n))
            await asyncio.sleep(0.1)
        assert not outbox.ready
        blocked = asyncio.create_task(outbox.wait_ready())
        await asyncio.sleep(30)
        assert not blocked.done()
        bus.heal()
        await asyncio.wait_for(blocked, patience(10))


@contextlib.asynccontextmanager
async def restarted(
    broker: MemoryBroker, *, subscribed: bool
) -> AsyncIterator[tuple[AckedPublisher[Result], MemoryBus, list[Result], list[int]]]:
    """Yield an outbox after a restart of the broker, with its consumer still away, and reasons of acknowledgements."""
    heard: list[Result] = []
    reasons: list[int] = []

    async def hear(delivery: Delivery[Result]) -> None:
        heard.append(delivery.body)

    async with MemoryBus("edge", broker) as bus, MemoryBus("consumer", broker) as consumer:
        await consumer.wait_connected(1)
        await bus.wait_connected(1)
        if subscribed:
            await consumer.subscribe(topics.RESULT.filter(), hear)
        outbox = result_outbox(bus, limit=2, capacity=8)
        running = asyncio.create_task(outbox.run())
        await asyncio.sleep(0.01)
        outbox.put(ADDRESS, result(0), reasons.append)
        assert await outbox.drain(5)
        consumer.cut()
        broker.restart()
        await eventually(lambda: bus.connected)
        yield outbox, consumer, heard, reasons
        running.cancel()


@simulated
async def test_after_a_restart_of_the_broker_a_result_waits_for_its_consumer() -> None:
    async with restarted(MemoryBroker(), subscribed=True) as (outbox, consumer, heard, reasons):
        outbox.put(ADDRESS, result(1), reasons.append)
        outbox.put(ADDRESS, result(2), reasons.append)
        await asyncio.sleep(RETURN_S * 0.65)
        assert outbox.pending == 2
        consumer.heal()
        await eventually(lambda: consumer.connected)
        # the pauses do not grow: what waits is sent as soon as somebody receives it
        await asyncio.sleep(0.5)
        assert outbox.pending == 0
        assert reasons == [SUCCESS] * 3
        assert sorted(r.id for r in heard) == [result(n).id for n in range(3)]


@simulated
async def test_a_consumer_that_does_not_return_is_waited_for_once_and_not_long() -> None:
    async with restarted(MemoryBroker(), subscribed=True) as (outbox, _, _, reasons):
        outbox.put(ADDRESS, result(1), reasons.append)
        await asyncio.sleep(RETURN_S + 1)
        outbox.put(ADDRESS, result(2), reasons.append)
        await asyncio.sleep(0.1)
        assert reasons == [SUCCESS, NO_SUBSCRIBER, NO_SUBSCRIBER]


@simulated
async def test_reconnects_do_not_make_the_wait_for_a_consumer_longer() -> None:
    broker = MemoryBroker()
    async with restarted(broker, subscribed=True) as (outbox, _, _, reasons):
        outbox.put(ADDRESS, result(1), reasons.append)
        for _ in range(4):
            await asyncio.sleep(RETURN_S / 4)
            broker.restart()
        await asyncio.sleep(2)
        assert reasons == [SUCCESS, NO_SUBSCRIBER]


@simulated
async def test_at_the_end_of_its_worker_no_result_waits_for_a_consumer() -> None:
    async with restarted(MemoryBroker(), subscribed=True) as (outbox, _, _, reasons):
        outbox.put(ADDRESS, result(1), reasons.append)
        await asyncio.sleep(1)
        assert reasons == [SUCCESS]
        assert await outbox.drain(0.5)
        assert reasons == [SUCCESS, NO_SUBSCRIBER]


@simulated
async def test_without_a_consumer_before_the_restart_no_result_waits() -> None:
    async with restarted(MemoryBroker(), subscribed=False) as (outbox, _, _, reasons):
        outbox.put(ADDRESS, result(1), reasons.append)
        assert await outbox.drain(0.1)
        assert reasons == [NO_SUBSCRIBER] * 2


@simulated
async def test_a_result_that_is_too_large_goes_out_without_its_prediction() -> None:
    async with sending(MemoryBroker(max_packet=5000)) as (outbox, _, heard):
        outbox.put(ADDRESS, result(1, "x" * 9000))
        assert await outbox.drain(5)
        await eventually(lambda: len(heard) == 1)
        assert (heard[0].reason, heard[0].prediction) == (TOO_LARGE, Prediction())


@simulated
async def test_a_result_nested_too_deeply_to_be_written_goes_out_without_its_prediction() -> None:
    async with sending(MemoryBroker()) as (outbox, _, heard):
        value: list[object] = []
        for _ in range(100_000):  # deeper than any Python writes
            value = [value]
        outbox.put(ADDRESS, result(1, value))
        outbox.put(ADDRESS, result(2))
        assert await outbox.drain(5)
        assert sorted((each.id, each.reason) for each in heard) == [
            (result(1).id, "result-too-large"),
            (result(2).id, ""),
        ]


@simulated
async def test_a_result_that_json_cannot_say_goes_out_without_its_prediction() -> None:
    async with sending(MemoryBroker()) as (outbox, _, heard):
        outbox.put(ADDRESS, result(1, object()))
        assert await outbox.drain(5)
        await eventually(lambda: len(heard) == 1)
        assert heard[0].reason == TOO_LARGE


class Silent(MemoryBus):
    """A connection whose broker takes what is posted, and answers when the test says so."""

    posted: list[asyncio.Future[int]]

    def post(self, packet: Packet) -> asyncio.Future[int] | None:
        if len(self.posted) == 3:
            return None
        self.posted.append(asyncio.get_running_loop().create_future())
        return self.posted[-1]


@contextlib.asynccontextmanager
async def silence() -> AsyncIterator[tuple[AckedPublisher[Result], Silent, list[int]]]:
    async with Silent("edge", MemoryBroker()) as bus:
        bus.posted = []
        await bus.wait_connected(1)
        outbox = result_outbox(bus, limit=3)
        running = asyncio.create_task(outbox.run())
        await asyncio.sleep(0.01)
        taken: list[int] = []
        for n in range(3):
            outbox.put(ADDRESS, result(n), partial(note, taken, n))
        assert len(bus.posted) == 3
        yield outbox, bus, taken
        running.cancel()
        await asyncio.wait([running])


@simulated
async def test_an_acknowledgement_that_never_comes_costs_a_repetition_and_one_that_comes_late_nothing() -> None:
    async with silence() as (outbox, bus, taken):
        bus.posted[1].set_result(0)
        await asyncio.sleep(PATIENCE_S - 1)
        assert taken == [1]
        assert not await outbox.drain(0.5)
        assert await outbox.drain(5)  # sent again, the long way
        bus.posted[0].set_result(0)
        await asyncio.sleep(1)
        assert sorted(taken) == [0, 1, 2]


@simulated
async def test_what_the_broker_refuses_and_what_is_cut_off_is_sent_again() -> None:
    async with silence() as (outbox, bus, taken):
        bus.posted[0].set_result(0x97)
        bus.posted[1].set_exception(DisconnectedError("the connection was lost"))
        bus.posted[2].cancel()
        await asyncio.sleep(0.01)
        assert taken == []
        assert await outbox.drain(5)
        assert sorted(taken) == [0, 1, 2]


@simulated
async def test_answers_after_the_end_are_nobodys() -> None:
    async with silence() as (_, bus, taken):
        pass
    for answer in bus.posted:
        answer.set_exception(DisconnectedError("closed"))
        answer.exception()
    await asyncio.sleep(2 * PATIENCE_S)
    assert taken == []
