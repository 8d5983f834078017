"""Every result put into the outbox reaches the broker, sooner or later, and its taking is told once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from functools import partial

import pytest
from structlog.testing import capture_logs

from halimede import topics
from halimede.bus.acked_publisher import AckedPublisher
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.message import FAILURE, NO_SUBSCRIBER, SUCCESS, Packet
from halimede.errors import DisconnectedError
from halimede.messages import Prediction, Result
from halimede.pipeline.responders import TOO_LARGE, result_outbox
from tests.inbox import Inbox
from tests.simulated import eventually
from tests.waiting import patience
from tests.worlds import connected

pytestmark = pytest.mark.simulated

#: stated here again, so that a change in the product is noticed
RETURN_S, REPEAT_S = 10.0, 60.0

ADDRESS = topics.RESULT.at(ns="default", service="helmet")


def result(number: int, value: object = None) -> Result:
    prediction = Prediction(value=value)
    return Result(id=f"{number:032x}", service="helmet", by="edge", prediction=prediction, worker="edge")


def note(taken: list[int], number: int, reason: int) -> None:
    """Note a result that the broker has taken."""
    assert reason < FAILURE
    taken.append(number)


@contextlib.asynccontextmanager
async def running(outbox: AckedPublisher[Result]) -> AsyncIterator[AckedPublisher[Result]]:
    task = asyncio.create_task(outbox.run())
    await asyncio.sleep(0.01)
    yield outbox
    task.cancel()
    await asyncio.wait([task])


@contextlib.asynccontextmanager
async def sending(
    broker: MemoryBroker, capacity: int = 8, limit: int = 2, *, subscribed: bool = True
) -> AsyncIterator[tuple[AckedPublisher[Result], MemoryBus, Inbox[Result], MemoryBus]]:
    """Yield an outbox, its connection, and a consumer with its own connection."""
    heard = Inbox[Result]()
    async with connected(MemoryBus("edge", broker)) as bus, connected(MemoryBus("consumer", broker)) as consumer:
        if subscribed:
            await consumer.subscribe(topics.RESULT.filter(), heard)
        async with running(result_outbox(bus, limit=limit, capacity=capacity)) as outbox:
            yield outbox, bus, heard, consumer


async def test_a_result_waits_for_the_broker_and_is_told_as_taken_only_then() -> None:
    async with sending(MemoryBroker()) as (outbox, bus, heard, _):
        bus.cut()
        taken: list[int] = []
        outbox.put(ADDRESS, result(1), partial(note, taken, 1))
        assert not await outbox.drain(60)
        assert taken == heard.deliveries == []
        bus.heal()
        assert await outbox.drain(10)
        assert taken == [1]
        assert [r.id for r in heard.bodies] == [result(1).id]


async def test_a_full_outbox_holds_its_caller_back() -> None:
    async with sending(MemoryBroker(), capacity=2, limit=1) as (outbox, bus, _, _):
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
    broker: MemoryBroker, *, subscribed: bool = True
) -> AsyncIterator[tuple[AckedPublisher[Result], MemoryBus, Inbox[Result], list[int]]]:
    """Yield an outbox after a restart of the broker, with its consumer still away, and reasons of acknowledgements."""
    reasons: list[int] = []
    async with sending(broker, subscribed=subscribed) as (outbox, bus, heard, consumer):
        outbox.put(ADDRESS, result(0), reasons.append)
        assert await outbox.drain(5)
        consumer.cut()
        broker.restart()
        await eventually(lambda: bus.connected)
        yield outbox, consumer, heard, reasons


async def test_after_a_restart_of_the_broker_a_result_waits_for_its_consumer() -> None:
    async with restarted(MemoryBroker()) as (outbox, consumer, heard, reasons):
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
        assert sorted(r.id for r in heard.bodies) == [result(n).id for n in range(3)]


async def test_a_consumer_that_does_not_return_is_waited_for_once_and_not_long() -> None:
    broker, attempts = MemoryBroker(), list[str]()
    async with restarted(broker) as (outbox, _, _, reasons):
        route = broker.route
        broker.route = lambda packet: attempts.append(packet.topic) or route(packet)  # type: ignore[method-assign]
        outbox.put(ADDRESS, result(1), reasons.append)
        await asyncio.sleep(RETURN_S + 1)
        assert 50 <= attempts.count(ADDRESS.text) <= 53, "every 0.2 s"
        outbox.put(ADDRESS, result(2), reasons.append)
        await asyncio.sleep(0.1)
        assert reasons == [SUCCESS, NO_SUBSCRIBER, NO_SUBSCRIBER]


async def test_reconnects_do_not_make_the_wait_for_a_consumer_longer() -> None:
    broker = MemoryBroker()
    async with restarted(broker) as (outbox, _, _, reasons):
        outbox.put(ADDRESS, result(1), reasons.append)
        for _ in range(4):
            await asyncio.sleep(RETURN_S / 4)
            broker.restart()
        await asyncio.sleep(2)
        assert reasons == [SUCCESS, NO_SUBSCRIBER]


async def test_at_the_end_of_its_worker_no_result_waits_for_a_consumer() -> None:
    async with restarted(MemoryBroker()) as (outbox, _, _, reasons):
        outbox.put(ADDRESS, result(1), reasons.append)
        await asyncio.sleep(1)
        assert reasons == [SUCCESS]
        assert await outbox.drain(0.5)
        assert reasons == [SUCCESS, NO_SUBSCRIBER]


async def test_without_a_consumer_before_the_restart_no_result_waits() -> None:
    async with restarted(MemoryBroker(), subscribed=False) as (outbox, _, _, reasons):
        outbox.put(ADDRESS, result(1), reasons.append)
        assert await outbox.drain(0.1)
        assert reasons == [NO_SUBSCRIBER] * 2


def nested() -> list[object]:
    value: list[object] = []
    for _ in range(100_000):  # deeper than any Python writes
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", ["x" * 9000, nested(), object()], ids=["too large", "nested too deeply", "nothing that JSON can say"]
)
async def test_a_result_that_cannot_be_written_goes_out_without_its_prediction(value: object) -> None:
    async with sending(MemoryBroker(max_packet=5000)) as (outbox, _, heard, _):
        outbox.put(ADDRESS, result(1, value))
        outbox.put(ADDRESS, result(2))
        assert await outbox.drain(0.05)
        await eventually(lambda: len(heard.deliveries) == 2)
        assert sorted((each.id, each.reason, each.prediction) for each in heard.bodies) == [
            (result(1).id, TOO_LARGE, Prediction()),
            (result(2).id, "", Prediction()),
        ]


class Silent(MemoryBus):
    """A connection whose broker takes three messages that are posted, and answers when the test says so."""

    def __init__(self) -> None:
        super().__init__("edge", MemoryBroker())
        self.posted: list[asyncio.Future[int]] = []

    def post(self, packet: Packet) -> asyncio.Future[int] | None:
        if len(self.posted) == 3:
            return None
        self.posted.append(asyncio.get_running_loop().create_future())
        return self.posted[-1]


@contextlib.asynccontextmanager
async def silence() -> AsyncIterator[tuple[AckedPublisher[Result], Silent, list[int]]]:
    async with connected(Silent()) as bus, running(result_outbox(bus, limit=3)) as outbox:
        taken: list[int] = []
        for n in range(3):
            outbox.put(ADDRESS, result(n), partial(note, taken, n))
        assert len(bus.posted) == 3
        yield outbox, bus, taken


async def test_messages_of_both_ways_count_against_the_limit() -> None:
    async with connected(Silent()) as bus, running(result_outbox(bus, limit=5, capacity=2)) as outbox:
        # three are sent at once, two have tasks, two wait
        for number in range(7):
            assert (outbox.pending, outbox.waiting) == (number, max(0, number - 5))
            assert (outbox.immediate, outbox.ready) == (number < 5, True)
            outbox.put(ADDRESS, result(number))
        assert (len(bus.posted), outbox.pending, outbox.ready) == (3, 7, False)


async def test_an_acknowledgement_that_never_comes_costs_a_repetition_and_one_that_comes_late_nothing() -> None:
    async with silence() as (outbox, bus, taken):
        bus.posted[1].set_result(0)
        await asyncio.sleep(REPEAT_S - 1)
        assert taken == [1]
        assert not await outbox.drain(0.5)
        assert await outbox.drain(1)  # sent again, the long way
        bus.posted[0].set_result(0)
        await asyncio.sleep(1)
        assert sorted(taken) == [0, 1, 2]


async def test_what_the_broker_refuses_and_what_is_cut_off_is_sent_again() -> None:
    async with silence() as (outbox, bus, taken):
        bus.posted[0].set_result(0x97)
        bus.posted[1].set_exception(DisconnectedError("the connection was lost"))
        bus.posted[2].cancel()
        await asyncio.sleep(0.01)
        assert taken == []
        assert await outbox.drain(0.1)
        assert sorted(taken) == [0, 1, 2]


async def test_answers_after_the_end_are_nobodys() -> None:
    async with silence() as (_, bus, taken):
        pass
    for answer in bus.posted:
        answer.set_exception(DisconnectedError("closed"))
        answer.exception()
    await asyncio.sleep(2 * REPEAT_S)
    assert taken == []


class Failing(MemoryBus):
    """A connection on which nothing can be posted, and of whose publishes the first ones fail."""

    def __init__(self, failures: int) -> None:
        super().__init__("edge", MemoryBroker())
        self.failures = failures
        self.reason = SUCCESS
        self.times: list[float] = []

    def post(self, packet: Packet) -> asyncio.Future[int] | None:
        return None

    async def send(self, packet: Packet, timeout_s: float = 10.0) -> int:
        assert timeout_s == REPEAT_S
        self.times.append(asyncio.get_running_loop().time())
        if len(self.times) <= self.failures:
            raise DisconnectedError("lost")
        return self.reason


async def test_pauses_between_attempts_double_up_to_five_seconds_and_end_at_a_reconnect() -> None:
    async with connected(Failing(9)) as bus:
        outbox = result_outbox(bus)
        outbox.put(ADDRESS, result(1))
        await asyncio.sleep(0.01)
        assert (bus.times, outbox.waiting) == ([], 1)
        began = asyncio.get_running_loop().time()
        async with running(outbox):
            assert not await outbox.drain(20)
            assert bus.times[0] == began
            pauses = [round(later - earlier, 3) for earlier, later in itertools.pairwise(bus.times)]
            assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
            bus.renew()
            assert await outbox.drain(1)


async def test_a_message_that_is_not_to_be_repeated_is_sent_once_and_waits_for_no_subscriber() -> None:
    reasons = list[tuple[int, int]]()
    async with connected(Silent()) as bus:
        publisher = AckedPublisher[Result](
            bus, "reply", limit=2, capacity=9, timeout_s=5.0, retry=False, substitute=lambda *_: None
        )

        async def put(number: int, outcome: int | Exception | None = None, value: object = None) -> None:
            """Publish a message, which the broker acknowledges with a reason or whose connection ends with an error."""
            publisher.put(ADDRESS, result(number, value), lambda reason: reasons.append((number, reason)))
            if isinstance(outcome, int):
                bus.posted[-1].set_result(outcome)
            elif outcome:
                bus.posted[-1].set_exception(outcome)
            await asyncio.sleep(0.01)

        async with running(publisher):
            await put(0, SUCCESS)
            bus.renew()
            await eventually(lambda: bus.stats.connects == 2)
            await bus.wait_connected(1)
            await put(1, NO_SUBSCRIBER)
            await put(2)
            await asyncio.sleep(4.89)
            assert reasons == [(0, SUCCESS), (1, NO_SUBSCRIBER)]
            await asyncio.sleep(0.2)
            await put(3)
            bus.cut()
            await put(4)
            assert reasons[2:] == [(2, FAILURE), (3, NO_SUBSCRIBER), (4, FAILURE)]
            await put(5, value=object())
            assert reasons[5:] == [(5, FAILURE)]
            bus.posted.clear()
            with capture_logs() as logs:
                await put(6, 0x80)
                await put(7, DisconnectedError("lost"))
            assert [entry["error"] for entry in logs if entry["event"] == "message not delivered"] == ["0x80", "lost"]
            assert await publisher.drain(0)


@pytest.mark.parametrize(("reason", "level"), [(0x87, "warning"), (0, "debug")])
async def test_an_operator_reads_of_a_refused_result_and_not_of_each_lost_connection(reason: int, level: str) -> None:
    async with connected(Failing(0 if reason else 1)) as bus, running(result_outbox(bus)) as outbox:
        bus.reason = reason
        with capture_logs() as logs:
            outbox.put(ADDRESS, result(1))
            await asyncio.sleep(0.05)
    assert [entry["log_level"] for entry in logs] == [level]
