"""What a bus knows of its connection, and when it gives one up whose broker does not answer; in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from halimede import topics
from halimede.bus import Announcement
from halimede.bus.connection import RENEWED, ConnectionLog
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.message import Packet
from halimede.bus.port import refusal_text, refused_names
from halimede.bus.settings import MqttSettings
from halimede.bus.transport import Deliver, PendingAck, Transport
from halimede.errors import DisconnectedError, RefusedError, TooLargeError
from halimede.messages import DeadLetter
from tests.inbox import Inbox, Packets
from tests.simulated import eventually
from tests.worlds import connected

pytestmark = pytest.mark.simulated


async def nothing(_: Packet) -> None: ...


class Unready(MemoryBus):
    """A connection whose broker refuses so many subscriptions, and never answers those of the filter "never"."""

    refusals = 0

    async def _open(self, will: Packet | None, deliver: Deliver) -> Transport:
        link: Any = await super()._open(will, deliver)
        link.subscribe = partial(self._answer, link.subscribe)
        return link

    def _answer(self, subscribe: Callable[[str, int], PendingAck], filter_: str, qos: int) -> PendingAck:
        answer = PendingAck()
        if filter_ == "never":
            return answer
        self.refusals -= 1
        if self.refusals < 0:
            return subscribe(filter_, qos)
        answer.set_result(0x87)
        return answer


async def test_a_broker_that_does_not_answer_subscriptions_within_ten_seconds_is_left() -> None:
    async with connected(Unready("a", MemoryBroker())) as bus:
        listening = asyncio.create_task(bus.listen("never", 1, nothing, 10))
        await asyncio.sleep(9.9)
        assert bus.connected
        await asyncio.sleep(0.2)
        await listening
        assert (bus.connected, bus.cause) == (False, "no answer to a subscription")
        await eventually(lambda: bus.stats.connects == 2, 1)
        await asyncio.sleep(9.9)
        assert bus.cause == "no answer to a subscription"
        await asyncio.sleep(0.2)
        assert bus.cause == "no answer to subscriptions or birth"


async def test_a_new_subscription_waits_thirty_seconds_for_a_usable_connection() -> None:
    loop = asyncio.get_running_loop()
    async with Unready("a", MemoryBroker()) as bus:
        await bus.listen("never", 1, nothing, 10)
        await asyncio.sleep(1)
        began = loop.time()
        await bus.listen("t", 1, nothing, 10)
        assert loop.time() - began == pytest.approx(30.0, abs=0.1)
        assert not bus.connected


async def test_a_bus_knows_what_it_owes_and_what_is_owed_to_it() -> None:
    broker, received = MemoryBroker(), Packets()
    async with MemoryBus("a", broker) as bus:
        assert not bus.resumed
        assert (bus.owed, bus.max_packet, bus.unacknowledged, bus.oldest_s) == (0, 0, 0, 0)
        await bus.wait_connected(1)
        assert bus.max_packet == broker.max_packet
        await bus.listen("t", 1, received, 10, later=True)
        broker.faults.delay_s = (0.5, 0.5)
        for payload in (b"one", b"second"):
            bus.post(Packet("t", payload))
        assert bus.owed == 9
        await asyncio.sleep(2)
        assert (bus.owed, bus.unacknowledged, len(received)) == (0, 2, 2)
        await asyncio.sleep(1)
        assert bus.oldest_s == pytest.approx(2.0)
        for count, packet in enumerate(received):
            assert bus.unacknowledged == 2 - count
            packet.done()
            packet.done()
        assert (bus.unacknowledged, bus.oldest_s) == (0, 0)


async def test_a_message_is_posted_while_the_connection_has_a_slot_and_under_the_prefix() -> None:
    broker, received = MemoryBroker(max_packet=600_000), Packets()
    async with connected(MemoryBus("b", broker)) as other, MemoryBus("a", broker, prefix="site") as bus:
        assert bus.post(Packet("t", b"x")) is None
        await bus.wait_connected(1)
        await other.listen("#", 1, received, 10)
        broker.faults.delay_s = (0.5, 0.5)
        answers = [bus.post(Packet("t", b"x")) for _ in range(1001)]
        assert [answer is None for answer in answers] == [False] * 1000 + [True]
        with pytest.raises(TooLargeError):
            bus.post(Packet("t", bytes(600_000)))
        await asyncio.sleep(2)
        assert (received[0].topic, bus.owed) == ("site/t", 0)
        bus.cut()
        assert bus.post(Packet("t", b"x")) is None


async def test_who_subscribes_before_the_bus_is_entered_is_told_so() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await MemoryBus("a", MemoryBroker()).listen("t", 1, nothing, 10)


@pytest.mark.parametrize("settled", [False, True])
async def test_of_two_clients_with_one_id_the_newcomer_pauses_and_the_other_says_so(settled: bool) -> None:
    broker, inbox = MemoryBroker(), Inbox[DeadLetter]()
    async with connected(MemoryBus("gm", broker)) as gm, connected(MemoryBus("a", broker)) as bus:
        await gm.subscribe(topics.DEAD_LETTER.filter(), inbox)
        if settled:
            await asyncio.sleep(6)
            bus.renew()
            await eventually(lambda: bus.stats.connects == 2, 1)
            await bus.wait_connected(1)
        bus.resolve_id_conflict()
        await asyncio.sleep(19)
        assert bus.connected is settled
        await asyncio.sleep(22)
        assert bus.connected
        assert inbox.read(lambda body: body.topic) == ["client/a"]
        assert "another client uses the same client id" in inbox.read(lambda body: body.reason)[0]


async def test_there_is_no_attempt_while_there_is_an_obstacle() -> None:
    bus = MemoryBus("a", MemoryBroker())
    obstacles = ["the store is not open yet"]
    bus.obstacle = lambda: obstacles[-1] if obstacles else ""
    async with bus:
        await asyncio.sleep(5)
        assert (bus.connected, bus.cause) == (False, "the store is not open yet")
        with pytest.raises(DisconnectedError, match=r"no connection .* within 1 s \(the store is not open yet\)"):
            await bus.wait_connected(1)
        obstacles.clear()
        await asyncio.sleep(0.06)
        assert bus.connected


def test_each_reason_is_logged_once_and_eight_at_most_between_two_connections() -> None:
    log = ConnectionLog("broker", "a")
    with capture_logs() as logs:
        for number in range(20):
            log.log_down(f"reason {number}")
            log.log_down(f"reason {number}")
        log.log_connected("broker 2")
        log.log_connected("")
        log.log_down(RENEWED)
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [
        *[("bus down", "warning")] * 8,
        ("bus connected", "info"),
        ("bus connected", "info"),
        ("bus down", "info"),
    ]
    assert [entry["broker"] for entry in logs[8:]] == ["broker 2", "broker", "broker"]
    assert str(log.error()) == f"no connection to the broker at broker ({RENEWED})"
    assert log.cause == RENEWED


async def test_a_birth_that_is_not_granted_is_repeated_later_and_later() -> None:
    loop, broker, times = asyncio.get_running_loop(), MemoryBroker(), list[float]()

    class Refusing(MemoryBus):
        async def send(self, packet: Packet, timeout_s: float = 10.0) -> int:
            times.append(loop.time())
            assert timeout_s == 20.0
            if len(times) == 2:
                raise DisconnectedError("no acknowledgement")
            return 0x80 if len(times) < 5 else 0x10

    birth = Packet("birth", b"x", retain=True)
    async with Refusing("a", broker, lambda: Announcement(birth, None, lambda: birth)) as bus:
        await bus.wait_connected(1)
        began = loop.time()
        await asyncio.sleep(120)
        assert bus.refused == {"birth": "unspecified error"}
        await asyncio.sleep(500)
        assert (bus.refused, len(times)) == ({}, 5)
    for pause, (earlier, later) in zip((20, 40, 60, 60, 60), zip([began, *times], times, strict=False), strict=True):
        assert 0.5 * pause <= later - earlier <= 1.5 * pause


def test_twenty_refused_names_of_all_connections_are_told_without_the_birth_that_tells_them() -> None:
    buses = [MemoryBus(name, MemoryBroker()) for name in "ab"]
    for number in range(25):
        buses[number % 2].refused[f"n{number:02}"] = "not authorised"
    buses[0].refused["birth"] = "not authorised"
    assert refused_names(buses, birth="birth") == [f"n{number:02}" for number in range(20)]
    assert refused_names(buses[:1])[0] == "birth"
    assert refusal_text(["a", "b"]) == "the broker refuses its subscription or birth: a, b"
    assert not refusal_text([])


def test_a_broker_in_memory_has_the_limits_of_the_real_one() -> None:
    broker = MemoryBroker()
    assert (broker.max_packet, broker.max_queued) == (MqttSettings("broker").max_packet, 20_000)


async def test_a_client_leaves_a_silent_broker_after_two_seconds() -> None:
    broker, loop = MemoryBroker(), asyncio.get_running_loop()
    async with connected(MemoryBus("a", broker)) as bus:
        broker.faults.delay_s = (100.0, 100.0)
        began = loop.time()
    assert loop.time() - began == 2
    assert bus.cause == "closed"


async def test_who_waits_when_the_connection_has_just_ended_has_the_next_one_at_once() -> None:
    loop = asyncio.get_running_loop()
    async with connected(MemoryBus("a", MemoryBroker())) as bus:
        await asyncio.sleep(10)
        began = loop.time()
        bus.renew()
        await bus.wait_connected(1)
        assert (bus.stats.connects, loop.time() - began < 0.25) == (2, True)


async def test_a_subscription_of_a_session_ends_as_soon_as_its_messages_are_acknowledged() -> None:
    received, loop = Packets(), asyncio.get_running_loop()
    async with connected(MemoryBus("a", MemoryBroker(), session_s=60)) as bus:
        await bus.listen("t", 1, received, 10, later=True)
        await bus.send(Packet("t", b"x"))
        await asyncio.sleep(1)
        began = loop.time()
        ending = asyncio.create_task(bus.unlisten("t"))
        await asyncio.sleep(5)
        assert not ending.done()
        received[0].done()
        await ending
        assert loop.time() - began == pytest.approx(5, abs=0.01)


async def test_a_session_keeps_no_subscription_whose_end_was_lost_with_the_connection() -> None:
    broker = MemoryBroker()
    async with connected(MemoryBus("a", broker, session_s=60)) as bus:
        await bus.listen("t", 1, nothing, 10)
        broker.faults.delay_s = (1.0, 1.0)
        ending = asyncio.create_task(bus.unlisten("t"))
        await asyncio.sleep(0.5)
        bus.renew()
        await ending
        assert broker.sessions["a"].filters == {}


@pytest.mark.parametrize(("refusals", "granted", "connects"), [(0, True, 1), (3, True, 4), (6, True, 7), (7, False, 7)])
async def test_a_first_subscription_is_tried_on_six_more_connections(
    refusals: int, granted: bool, connects: int
) -> None:
    async with connected(Unready("a", MemoryBroker())) as bus:
        bus.refusals = refusals
        with nullcontext() if granted else pytest.raises(RefusedError, match="t: not authorised"):
            await bus.listen("t", 1, nothing, 10)
        assert (bus.stats.connects, bus.connected, bus.refused) == (connects, True, {})


@pytest.mark.parametrize(("error", "cause"), [(TimeoutError(), "it took too long"), (OSError("no route"), "no route")])
async def test_the_cause_of_a_failed_attempt_has_words(error: Exception, cause: str) -> None:
    class Failing(MemoryBus):
        async def _open(self, will: Packet | None, deliver: Deliver) -> Transport:
            raise error

    async with Failing("a", MemoryBroker()) as bus:
        assert bus.cause == "no answer yet"
        await asyncio.sleep(1)
        assert bus.cause == cause
