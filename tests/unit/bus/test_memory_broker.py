"""The broker in memory, to the second and the message: sessions, retained messages, shares, and its faults."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from halimede.bus import Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.memory.connection import Faults
from tests.inbox import Packets
from tests.simulated import eventually
from tests.worlds import connected

pytestmark = pytest.mark.simulated

#: stated here again, so that a change in the product is noticed
RECEIVE_MAXIMUM = 1000


class Always(random.Random):
    """Draws the same share of each range."""

    def __init__(self, share: float) -> None:
        super().__init__(0)
        self.share = share

    def random(self) -> float:
        return self.share


async def listen(bus: MemoryBus, filter_: str = "t", **options: Any) -> Packets:
    await bus.wait_connected(10)
    inbox = Packets()
    await bus.listen(filter_, 1, inbox, 10_000, **options)
    return inbox


def test_without_faults_nothing_is_drawn() -> None:
    assert MemoryBroker().chance.random() == random.Random(0).random()
    chance = random.Random(1)
    state = chance.getstate()
    assert not Faults().must_occur(0.0, chance)
    assert chance.getstate() == state


@pytest.mark.parametrize(("share", "drawn", "occurs"), [(0.5, 0.49, True), (0.5, 0.5, False), (1.0, 0.99, True)])
def test_a_fault_occurs_in_its_share_of_cases(share: float, drawn: float, occurs: bool) -> None:
    assert Faults().must_occur(share, Always(drawn)) is occurs


async def test_connecting_takes_twice_the_longest_delay() -> None:
    broker, loop = MemoryBroker(), asyncio.get_running_loop()
    broker.faults.delay_s = (1.0, 3.0)
    began = loop.time()
    async with MemoryBus("a", broker) as bus:
        await bus.wait_connected(10)
        assert loop.time() - began == pytest.approx(6.0, abs=0.01)


@pytest.mark.parametrize(
    ("fault", "value", "arrives_s"), [("delay_s", (0.0, 1.0), 1.0), ("reorder", 1.0, 0.1), ("loss", 1.0, 1.0)]
)
async def test_a_message_is_as_late_as_its_fault_says(fault: str, value: Any, arrives_s: float) -> None:
    broker, loop = MemoryBroker(), asyncio.get_running_loop()
    async with MemoryBus("a", broker) as bus:
        inbox = await listen(bus)
        link: Any = broker.links["a"]
        link._up._chance = link._down._chance = broker.chance = Always(0.5)
        setattr(broker.faults, fault, value)
        if fault == "loss":  # of the delivery alone
            broker.route(Packet("t", b"x"))
            broker.faults.loss = 0.0
        else:
            bus.post(Packet("t", b"x"))
        began = loop.time()
        await asyncio.sleep(5)
        assert [round(time - began, 3) for time in inbox.times] == [arrives_s]
        assert inbox[0].duplicate == (fault == "loss")


async def test_members_of_a_group_get_messages_in_turn_and_each_other_subscriber_all() -> None:
    broker = MemoryBroker()
    async with MemoryBus("a", broker) as a, MemoryBus("b", broker) as b, MemoryBus("c", broker) as c:
        inboxes = [await listen(a, "$share/g/t"), await listen(b, "$share/g/t"), await listen(c)]
        for number in range(5):
            broker.route(Packet("t", str(number).encode()))
        await asyncio.sleep(1)
        assert [b"".join(inbox.payloads) for inbox in inboxes] == [b"024", b"13", b"01234"]


@pytest.mark.parametrize(("options", "most"), [({}, RECEIVE_MAXIMUM), ({"receive_maximum": 300}, 300)])
async def test_a_client_has_so_many_messages_unacknowledged_and_their_identifiers_begin_at_one(
    options: dict[str, int], most: int
) -> None:
    broker = MemoryBroker()
    async with MemoryBus("a", broker, **options) as bus:
        inbox = await listen(bus, later=True)
        payloads = [str(number).encode() for number in range(most + 10)]
        for payload in payloads:
            broker.route(Packet("t", payload))
        await asyncio.sleep(1)
        assert len(inbox) == most
        assert list(broker.sessions["a"].unacknowledged) == list(range(1, most + 1))
        for packet in inbox[:5]:
            packet.done()
        await asyncio.sleep(1)
        assert inbox.payloads == payloads[: most + 5]


@pytest.mark.parametrize(("away_s", "resumed"), [(9.0, True), (10.0, False)])
async def test_a_session_waits_for_its_client_for_its_time_with_messages_of_qos_1(away_s: float, resumed: bool) -> None:
    broker = MemoryBroker()
    async with MemoryBus("a", broker, session_s=10) as bus:
        inbox = await listen(bus)
        bus._link.abort("cut")  # type: ignore[union-attr]
        bus.cut()
        for qos in (0, 1):
            broker.route(Packet("t", str(qos).encode(), qos, retain=True))
        await asyncio.sleep(away_s)
        assert (broker.route(Packet("t", b"2")) == 0) is resumed
        bus.heal()
        await eventually(lambda: bus.connected, 10)
        await asyncio.sleep(1)
        assert bus.resumed is resumed
        expected = [(b"1", False), (b"2", False), (b"1", True)] if resumed else [(b"1", True)]
        assert [(bytes(packet.payload), packet.retain) for packet in inbox] == expected
        assert not any(packet.duplicate for packet in inbox)


@pytest.mark.parametrize(("after_s", "expiry_s"), [(0.0, 10), (8.5, 2), (9.0, 1), (9.9, 1), (10.0, None)])
async def test_a_retained_message_expires_and_its_receivers_learn_when(after_s: float, expiry_s: int | None) -> None:
    broker = MemoryBroker()
    async with connected(MemoryBus("a", broker)) as bus:
        broker.route(Packet("t", b"x", retain=True, expiry_s=10))
        broker.route(Packet("t/for ever", b"y", retain=True))
        await asyncio.sleep(after_s)
        assert broker.retained_payload("t") == (b"x" if expiry_s else None)
        assert (broker.retained_payload("t/for ever"), broker.retained_payload("t/none")) == (b"y", None)
        inbox = await listen(bus, "#")
        await asyncio.sleep(0.1)
        received = {packet.topic: (packet.expiry_s, packet.retain) for packet in inbox}
        assert received == ({"t": (expiry_s, True)} if expiry_s else {}) | {"t/for ever": (None, True)}


async def test_a_stopped_broker_has_forgotten_all_and_accepts_nobody_until_it_starts_an_hour_later() -> None:
    broker = MemoryBroker()
    async with MemoryBus("a", broker, session_s=100) as bus:
        await listen(bus)
        broker.route(Packet("kept", b"x", retain=True))
        broker.stop()
        await asyncio.sleep(3600)
        assert (broker.running, broker.links, broker.sessions, broker.retained_payload("kept")) == (False, {}, {}, None)
        assert (bus.connected, bus.cause) == (False, "the broker is not running")
        broker.start()
        await bus.wait_connected(5.5)
