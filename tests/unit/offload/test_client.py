"""A hard sample gets the cloud's answer, or a reason within its deadline; its caller sees exactly one of the two."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from halimede import topics
from halimede.bus import Delivery, Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.errors import DisconnectedError
from halimede.messages import Frame, Prediction, Reply
from halimede.offload import OffloadClient
from halimede.offload.channel import inference
from halimede.offload.client import PendingRequest
from halimede.offload.errors import OffloadError, OffloadReason
from halimede.offload.limits import CircuitBreaker, State
from tests.simulated import eventually
from tests.unit.frames.clouds import NS, SERVICE, ScriptedCloud, answering, cloud_bus, frame, silent
from tests.worlds import connected

pytestmark = pytest.mark.simulated


@contextlib.asynccontextmanager
async def client(
    broker: MemoryBroker,
    *,
    window: int = 4,
    waiters: int = 2,
    circuit: CircuitBreaker | None = None,
    connection: MemoryBus | None = None,
) -> AsyncIterator[tuple[OffloadClient, MemoryBus]]:
    async with connected(connection or MemoryBus("edge", broker)) as bus:
        made = OffloadClient(bus, inference(NS, SERVICE, "edge"), window=window, waiters=waiters, circuit=circuit)
        await made.start()
        await asyncio.sleep(0.1)
        yield made, bus


@contextlib.asynccontextmanager
async def working(
    broker: MemoryBroker, script: Any, name: str = "c0", **options: Any
) -> AsyncIterator[tuple[ScriptedCloud, MemoryBus]]:
    """Run a cloud worker; ``options``: how it starts."""
    async with cloud_bus(broker, name) as bus:
        cloud = ScriptedCloud(bus, name, script)
        await cloud.start(**options)
        await asyncio.sleep(0.1)
        yield cloud, bus


@contextlib.asynccontextmanager
async def one_cloud(
    script: Any, *, advertise: int | None = 8, broker: MemoryBroker | None = None, **options: Any
) -> AsyncIterator[tuple[OffloadClient, ScriptedCloud]]:
    """Run a client and a cloud worker, which has said how many samples it takes."""
    broker = broker or MemoryBroker()
    async with client(broker, **options) as (asking, _), working(broker, script, advertise=advertise) as (cloud, _):
        yield asking, cloud


def slow(seconds: float) -> Callable[[Delivery[Frame]], Awaitable[Reply | None]]:
    """Answer after so many seconds."""

    async def script(delivery: Delivery[Frame]) -> Reply | None:
        await asyncio.sleep(seconds)
        return await answering()(delivery)

    return script


def refusing(error: str, worker: str = "c0") -> Callable[[Delivery[Frame]], Awaitable[Reply | None]]:
    """Answer with an error."""

    async def script(delivery: Delivery[Frame]) -> Reply | None:
        return Reply(id=delivery.body.id, worker=worker, error=error)

    return script


async def reason_of(asking: OffloadClient, deadline_s: float = 2.0, side: int = 2) -> OffloadReason:
    with pytest.raises(OffloadError) as caught:
        await asking.ask(frame(1, (side, side)), deadline_s)
    return caught.value.reason


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_hard_sample_goes_to_an_advertised_worker_with_its_time_left() -> None:
    async with one_cloud(answering()) as (asking, cloud):
        sample = frame()
        reply = await asking.ask(sample, 2.0)
        assert reply.prediction == Prediction(label="c0")
        (seen,) = cloud.seen
        assert (seen.id, seen.service, seen.worker) == (sample.id, SERVICE, "edge")
        assert 0 < seen.deadline_ms <= 2000
        assert cloud.deliveries[0].address.topic is topics.REQUEST_TO


async def test_the_shared_topic_is_used_while_no_credits_are_known() -> None:
    async with one_cloud(answering(), advertise=None) as (asking, cloud):
        await asking.ask(frame(), 2.0)
        assert cloud.deliveries[0].address.topic is topics.REQUEST


async def test_nobody_listening_is_known_at_once_and_no_more_is_sent_until_a_worker_appears(
    memory_broker: MemoryBroker,
) -> None:
    async with client(memory_broker) as (asking, _):
        async with asyncio.timeout(0.1):
            assert await reason_of(asking) is OffloadReason.NO_CLOUD
            assert await reason_of(asking) is OffloadReason.CIRCUIT_OPEN
        async with cloud_bus(memory_broker, "c0") as bus:
            await ScriptedCloud(bus, "c0", answering()).start()
            await eventually(lambda: asking.circuit.state is State.CLOSED, 0.5)
            assert (await asking.ask(frame(), 2.0)).worker == "c0"


@pytest.mark.parametrize(
    ("reports", "reasons"),
    [(True, [OffloadReason.NO_CLOUD]), (False, [OffloadReason.DEADLINE, OffloadReason.NO_CLOUD])],
    ids=["reason code 16", "none"],
)
async def test_a_probe_finds_a_cloud_that_never_advertised(
    memory_broker: MemoryBroker, reports: bool, reasons: list[OffloadReason]
) -> None:
    memory_broker.reports_absence = reports
    async with client(memory_broker) as (asking, _):
        began = now()
        assert [await reason_of(asking, 0.5) for _ in reasons] == reasons
        assert now() - began < 0.6, "only the first sample waits for its deadline"
        async with working(memory_broker, answering(), advertise=None):
            assert await reason_of(asking) is OffloadReason.CIRCUIT_OPEN
            await asyncio.sleep(1.1)
            for _ in range(2):
                assert (await asking.ask(frame(), 2.0)).worker == "c0"
            assert asking.circuit.state is State.CLOSED


async def test_a_silent_worker_costs_one_deadline_and_later_samples_avoid_it(memory_broker: MemoryBroker) -> None:
    async with (
        client(memory_broker) as (asking, _),
        working(memory_broker, silent, advertise=9, shared=False),
        working(memory_broker, answering("c1"), "c1", advertise=1, shared=False),
    ):
        began = now()
        assert await reason_of(asking, 0.5) is OffloadReason.DEADLINE
        assert 0.4 < now() - began < 0.6
        assert (await asking.ask(frame(), 0.5)).worker == "c1"


async def test_timeouts_in_a_row_open_the_circuit() -> None:
    async with one_cloud(silent, advertise=None, circuit=CircuitBreaker(failures=2)) as (asking, cloud):
        reasons = [await reason_of(asking, 0.5) for _ in range(3)]
        assert reasons == [OffloadReason.DEADLINE, OffloadReason.DEADLINE, OffloadReason.CIRCUIT_OPEN]
        assert len(cloud.seen) == 2


async def test_a_late_answer_is_counted_and_a_forged_one_is_told_apart() -> None:
    async with one_cloud(slow(1.0)) as (asking, cloud):
        assert await reason_of(asking, 0.5) is OffloadReason.DEADLINE
        await asyncio.sleep(1)
        assert (asking.late, asking.unknown) == (1, 0)
        to = topics.REPLY.at(ns=NS, service=SERVICE, worker="edge")
        await cloud.bus.publish(to, cloud.good(cloud.deliveries[0]), correlation=b"made up")
        await eventually(lambda: asking.unknown == 1)
        assert asking.late == 1


@pytest.mark.parametrize(
    ("sample", "worker"), [(bytes(16), "c0"), (None, "c9")], ids=["of another sample", "of a worker that was not asked"]
)
async def test_a_repeated_answer_is_dropped_and_a_forged_one_is_not_believed(sample: bytes | None, worker: str) -> None:
    async def script(delivery: Delivery[Frame]) -> Reply | None:
        forged = Reply(id=sample or delivery.body.id, worker=worker, prediction=Prediction(label="forged"))
        for reply in (forged, cloud.good(delivery)):
            await cloud.bus.reply(delivery, topics.REPLY, reply)
        return cloud.good(delivery)

    async with one_cloud(script) as (asking, cloud):
        assert (await asking.ask(frame(), 2.0)).prediction == Prediction(label="c0")
        await asyncio.sleep(0.2)
        assert (asking.repeated, asking.unknown, asking.late) == (1, 1, 0)


async def test_what_a_dying_worker_had_is_sent_to_another_one_under_the_same_id(memory_broker: MemoryBroker) -> None:
    async with (
        client(memory_broker) as (asking, _),
        working(memory_broker, silent, advertise=9, shared=False) as (first, dying),
    ):
        sample = frame()
        asked = asyncio.create_task(asking.ask(sample, 5.0))
        await eventually(lambda: len(first.seen) == 1)
        async with working(memory_broker, answering("c1"), "c1", advertise=1, shared=False) as (second, _):
            dying.cut()
            assert (await asked).worker == "c1"
        assert [f.id for f in second.seen] == [sample.id]
        assert second.seen[0].deadline_ms < first.seen[0].deadline_ms
        assert second.deliveries[0].packet.correlation == first.deliveries[0].packet.correlation


async def test_the_last_worker_dying_ends_the_wait_at_once() -> None:
    async with one_cloud(silent) as (asking, cloud):
        asked = asyncio.create_task(reason_of(asking, 30.0))
        await eventually(lambda: len(cloud.seen) == 1)
        began = now()
        cloud.bus.cut()  # type: ignore[attr-defined]
        assert await asked is OffloadReason.NO_CLOUD
        assert now() - began < 1


async def test_a_sample_outlives_the_edges_own_short_disconnection(memory_broker: MemoryBroker) -> None:
    async with client(memory_broker) as (asking, own), working(memory_broker, silent) as (cloud, _):
        asked = asyncio.create_task(asking.ask(frame(), 10.0))
        await eventually(lambda: len(cloud.seen) == 1)
        cloud.script = answering()
        own.cut()
        await asyncio.sleep(0.5)
        own.heal()
        assert (await asked).prediction == Prediction(label="c0")
        assert cloud.seen[0].id == cloud.seen[1].id


async def test_a_sample_waits_for_the_broker_but_not_beyond_its_deadline() -> None:
    async with client(MemoryBroker()) as (asking, own):
        own.cut()
        await eventually(lambda: not own.connected)
        began = now()
        assert await reason_of(asking, 0.7) is OffloadReason.NO_CLOUD
        assert 0.6 < now() - began < 0.8


async def test_lost_messages_are_sent_again_while_time_is_left() -> None:
    broker = MemoryBroker(seed=3)
    async with one_cloud(answering(), advertise=50, window=50, broker=broker) as (asking, _):
        broker.faults.loss = 0.2
        replies = await asyncio.gather(*(asking.ask(frame(), 60.0) for _ in range(20)), return_exceptions=True)
        broker.faults.loss = 0
        answered = [reply for reply in replies if isinstance(reply, Reply)]
        # a reply whose publish failed at the cloud is the scripted cloud's loss: most get through all the same
        assert len(answered) >= 12
        assert all(isinstance(r, Reply | OffloadError) for r in replies)


async def test_more_samples_than_window_and_waiting_room_are_turned_away_at_once() -> None:
    async with one_cloud(silent, advertise=9, window=2, waiters=1) as (asking, cloud):
        asked = [asyncio.create_task(reason_of(asking, 1.0)) for _ in range(4)]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [OffloadReason.WINDOW_FULL]
        assert len(cloud.seen) <= 2
        reasons = [await task for task in asked]
        assert reasons.count(OffloadReason.DEADLINE) == 2
        assert reasons.count(OffloadReason.WINDOW_FULL) == 2


async def test_a_busy_cloud_sheds_after_the_wait_for_a_credit() -> None:
    async with one_cloud(answering(), advertise=0, waiters=2) as (asking, cloud):
        began = now()
        asked = [asyncio.create_task(reason_of(asking, 1.0)) for _ in range(3)]
        assert [await task for task in asked] == [OffloadReason.SHED] * 3
        assert 0.9 < now() - began < 1.1
        assert cloud.seen == []
        assert asking.circuit.state is State.CLOSED


async def test_of_those_that_wait_for_a_credit_the_newest_has_the_most_time_and_goes_first() -> None:
    async with one_cloud(answering(), advertise=0) as (asking, cloud):
        older = asyncio.create_task(asking.ask(frame(1), 5.0))
        await asyncio.sleep(0.1)
        newer = asyncio.create_task(asking.ask(frame(2), 5.0))
        await asyncio.sleep(0.1)
        await cloud.advertise(1)
        await asyncio.gather(older, newer)
        assert [int(seen.data[-1]) for seen in cloud.seen] == [2, 1]


async def test_a_timeout_of_a_cloud_that_answers_others_leaves_the_circuit_closed() -> None:
    async with one_cloud(silent, advertise=9, window=9, circuit=CircuitBreaker(failures=1)) as (asking, cloud):
        lost = asyncio.create_task(reason_of(asking, 1.0))
        await asyncio.sleep(0.1)
        cloud.script = answering()
        await asking.ask(frame(), 1.0)
        assert await lost is OffloadReason.DEADLINE
        assert asking.circuit.state is State.CLOSED


async def test_an_overloaded_worker_gets_nothing_more_and_another_one_answers(memory_broker: MemoryBroker) -> None:
    async with (
        client(memory_broker) as (asking, _),
        working(memory_broker, refusing("overloaded"), advertise=9, shared=False) as (busy, _),
        working(memory_broker, answering("c1"), "c1", advertise=2, shared=False),
    ):
        assert [(await asking.ask(frame(), 2.0)).worker for _ in range(2)] == ["c1", "c1"]
        assert len(busy.seen) == 1


async def test_what_one_worker_refuses_is_not_replaced_by_the_next_sample_that_waits() -> None:
    async with one_cloud(refusing("overloaded"), advertise=1) as (asking, busy):
        reasons = await asyncio.gather(reason_of(asking, 0.5), reason_of(asking, 0.5))
        assert reasons == [OffloadReason.SHED, OffloadReason.SHED]
        assert len(busy.seen) == 1


@pytest.mark.parametrize("error", ["expired", "invalid", "quarantined", "failed", ""])
async def test_an_error_reply_becomes_a_reason_and_shows_that_the_cloud_lives(error: str) -> None:
    async with one_cloud(refusing(error), circuit=CircuitBreaker(failures=1)) as (asking, _):
        assert await reason_of(asking) is (OffloadReason.DEADLINE if error == "expired" else OffloadReason.ERROR)
        assert asking.circuit.state is State.CLOSED


async def test_a_frame_over_the_brokers_limit_is_refused_with_that_limit_and_costs_no_connection() -> None:
    async with client(MemoryBroker(max_packet=10_000)) as (asking, own):
        with pytest.raises(OffloadError, match="over the broker's limit of 10000") as caught:
            await asking.ask(frame(shape=(200, 200)), 2.0)
        assert (caught.value.reason, caught.value.sent) == (OffloadReason.TOO_LARGE, False)
        assert own.connected


async def test_abandoning_ends_all_waits_now() -> None:
    async with one_cloud(silent, window=1) as (asking, cloud):
        asked = [asyncio.create_task(reason_of(asking, 600.0)) for _ in range(2)]
        await eventually(lambda: len(cloud.seen) == 1)
        began = now()
        asking.abandon()
        assert [await task for task in asked] == [OffloadReason.DEADLINE, OffloadReason.WINDOW_FULL]
        assert await reason_of(asking, 600.0) is OffloadReason.DEADLINE
        assert now() - began < 0.1


async def test_a_cancelled_probe_lets_the_next_sample_try(memory_broker: MemoryBroker) -> None:
    async with client(memory_broker) as (asking, _):
        assert await reason_of(asking) is OffloadReason.NO_CLOUD
        await asyncio.sleep(1.1)
        async with working(memory_broker, silent, advertise=None) as (cloud, _):
            probe = asyncio.create_task(asking.ask(frame(), 60.0))
            await eventually(lambda: len(cloud.seen) == 1)
            probe.cancel()
            await asyncio.wait([probe])
            cloud.script = answering()
            assert (await asking.ask(frame(), 2.0)).worker == "c0"


async def test_a_publish_that_always_breaks_ends_at_the_deadline_without_spinning() -> None:
    async with client(MemoryBroker()) as (asking, own):
        sent = 0

        async def broken(*_: object, **__: object) -> bool:
            nonlocal sent
            sent += 1
            raise DisconnectedError("lost")

        own.post = lambda _: None  # type: ignore[method-assign]
        own.publish = broken  # type: ignore[method-assign]
        assert await reason_of(asking, 1.0) is OffloadReason.DEADLINE
        assert 2 < sent < 50


async def test_abandoning_in_the_moment_of_a_deadline_breaks_nothing() -> None:
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    async with one_cloud(silent) as (asking, _):
        first, second = (asyncio.create_task(reason_of(asking, deadline)) for deadline in (1.0, 60.0))
        await asyncio.sleep(0)
        loop.call_at(now() + 1.0, asking.abandon)
        assert [await first, await second] == [OffloadReason.DEADLINE, OffloadReason.DEADLINE]
        assert now() < 5
        assert errors == []


async def test_a_connection_that_comes_back_is_reason_enough_to_ask_again(memory_broker: MemoryBroker) -> None:
    patient = CircuitBreaker(failures=1, retry_s=600.0, max_retry_s=600.0)
    async with (
        client(memory_broker, circuit=patient) as (asking, own),
        working(memory_broker, answering(), advertise=None),
    ):
        own.cut()
        await eventually(lambda: not own.connected)
        assert await reason_of(asking, 0.5) is OffloadReason.NO_CLOUD
        assert await reason_of(asking, 0.5) is OffloadReason.CIRCUIT_OPEN
        own.heal()
        await own.wait_connected(20)
        await asyncio.sleep(0.1)
        assert (await asking.ask(frame(), 2.0)).worker == "c0"


async def test_a_sample_that_ended_two_workers_goes_to_no_third_one(memory_broker: MemoryBroker) -> None:
    async with contextlib.AsyncExitStack() as stack:
        asking, _ = await stack.enter_async_context(client(memory_broker))
        clouds = []
        for name in ("c0", "c1", "c2"):
            cloud, bus = await stack.enter_async_context(working(memory_broker, silent, name))

            async def die(_: Delivery[Frame], bus: MemoryBus = bus) -> Reply | None:
                bus.cut()
                return None

            cloud.script = die
            clouds.append(cloud)
        with pytest.raises(OffloadError, match="2 cloud workers ended") as caught:
            await asking.ask(frame(), 60.0)
        assert (caught.value.reason, caught.value.sent) == (OffloadReason.ERROR, True)
        assert now() < 30
        assert sorted(len(cloud.seen) for cloud in clouds) == [0, 1, 1]


async def test_a_request_that_fails_leaves_nothing_for_the_garbage_collector() -> None:
    async with one_cloud(silent, advertise=100) as (asking, _):
        await reason_of(asking, 0.5)
        gc.collect()  # what tests before have left in this process
        gc.disable()
        try:
            for _ in range(20):
                with contextlib.suppress(OffloadError):
                    await asking.ask(frame(), 0.5)
            await asyncio.sleep(1)
            assert not any(isinstance(each, PendingRequest) for each in gc.get_objects())
        finally:
            gc.enable()


async def test_a_sample_without_time_left_is_not_sent_and_blames_no_worker() -> None:
    async with one_cloud(answering(), circuit=CircuitBreaker(failures=1)) as (asking, cloud):
        assert await reason_of(asking, -0.5) is OffloadReason.DEADLINE
        assert (cloud.seen, asking.circuit.state) == ([], State.CLOSED)
        assert (await asking.ask(frame(), 2.0)).worker == "c0"


async def test_of_requests_that_get_no_slot_in_time_the_older_ones_fail_at_once() -> None:
    async with one_cloud(slow(1.0), advertise=None, waiters=48) as (asking, cloud):
        for _ in range(2):  # one alone may be that of a model's first call
            await cloud.advertise(1, service_ms=1000)
        await asyncio.sleep(0.1)
        ended: dict[int, tuple[str, float]] = {}

        async def request(number: int) -> None:
            began = now()
            try:
                outcome = (await asking.ask(frame(), 5.0)).worker
            except OffloadError as error:
                outcome = str(error.reason)
            ended[number] = outcome, round(now() - began, 3)

        async with asyncio.TaskGroup() as group:
            for number in range(60):  # ten times what the cloud takes
                group.create_task(request(number))
                await asyncio.sleep(0.1)
        served = [number for number, (worker, _) in ended.items() if worker == "c0"]
        shed = {number: seconds for number, (worker, seconds) in ended.items() if worker == OffloadReason.SHED}
        assert len(served) >= 6
        assert len(shed) == 60 - len(served)
        late = [number for number, seconds in shed.items() if seconds > 1.0]
        assert not late or max(late) < 20, "once the rate is known, nobody waits longer than for one slot"
        assert all(seconds < 2.2 for number, (_, seconds) in ended.items() if number >= 20)


async def test_a_burst_waits_if_all_of_it_is_answered_in_time() -> None:
    async with one_cloud(slow(0.1), advertise=None, waiters=48) as (asking, cloud):
        await cloud.advertise(1, service_ms=100)
        await asyncio.sleep(0.1)
        replies = await asyncio.gather(*(asking.ask(frame(), 5.0) for _ in range(20)))
        assert {reply.worker for reply in replies} == {"c0"}


class Jammed(MemoryBus):
    """A connection that takes what it is given and brings it nowhere."""

    unanswered = 0

    @property
    def owed(self) -> int:
        return self.unanswered

    def post(self, packet: Packet) -> asyncio.Future[int] | None:
        self.unanswered += len(packet.payload) + len(packet.tail)
        return asyncio.get_running_loop().create_future()


async def test_a_full_way_is_known_at_once_and_is_tried_again_when_it_has_carried_what_it_had() -> None:
    bus = Jammed("edge", MemoryBroker())
    async with client(MemoryBroker(), window=32, connection=bus) as (asking, _):
        first = await asyncio.gather(*(reason_of(asking, side=100) for _ in range(4)))
        assert first == [OffloadReason.DEADLINE] * 4, "nothing is known of the way: all are sent"
        full, began = bus.unanswered, now()
        for _ in range(20):
            assert await reason_of(asking, side=100) is OffloadReason.TOO_SLOW
        assert bus.unanswered == full
        assert now() == began, "what is not sent is answered at once"
        bus.unanswered = 300  # a result is on its way, as always
        assert await reason_of(asking, side=100) is OffloadReason.DEADLINE
