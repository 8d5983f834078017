"""A broker that accepts clients before it grants them anything: each client tries again, and then has all of it.

Mosquitto stands behind a proxy that refuses for a while, as a broker does whose access rules are not loaded yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import get_args

import pytest

from halimede import messages as m
from halimede import topics
from halimede.bus import Bus
from halimede.bus.message import Announce, Announcement
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.bus.reconnect import MOST_UNREADY
from halimede.bus.settings import Client
from halimede.errors import DisconnectedError, RefusedError
from services.broker import MosquittoProcess
from tests.contract.test_bus_recovery import Epochs
from tests.inbox import Inbox
from tests.refusing_broker import RefusingBroker
from tests.simulated import eventually
from tests.waiting import patience

PATIENCE = 40.0
#: connections of a client to which everything is refused
DEAF = 3

Connect = Callable[..., Awaitable[Bus]]


@pytest.fixture
async def front(mosquitto: MosquittoProcess) -> AsyncIterator[RefusingBroker]:
    async with RefusingBroker(mosquitto.port) as front:
        yield front


@pytest.fixture(params=get_args(Client))
async def connect(request: pytest.FixtureRequest, front: RefusingBroker) -> AsyncIterator[Connect]:
    """Connect through the broker that refuses."""
    async with AsyncExitStack() as stack:

        async def connect(client_id: str, announce: Announce | None = None) -> Bus:
            settings = MqttSettings("127.0.0.1", front.port, client=request.param)
            return await stack.enter_async_context(MqttBus(client_id, settings, announce))

        yield connect


@pytest.fixture
async def operator(mosquitto: MosquittoProcess, unique: str) -> AsyncIterator[Bus]:
    """A client that nothing refuses anything to."""
    async with MqttBus(f"{unique}-op", MqttSettings("127.0.0.1", mosquitto.port)) as bus:
        await bus.wait_connected(PATIENCE)
        yield bus


def refuse_next(front: RefusingBroker) -> None:
    """Refuse everything to the next connections of each client, and to those that exist."""
    before = dict(front.connects)
    front.refuses = lambda client, _: front.connects[client] <= before.get(client, 0) + DEAF


class Repeated(Epochs):
    """Announces a presence as an LC does."""

    def __call__(self) -> Announcement:
        announcement = super().__call__()
        return Announcement(announcement.birth, announcement.will, lambda: self._presence(online=True))


async def hears(bus: Bus, operator: Bus, node: str, inbox: Inbox[m.Sync]) -> None:
    """Insist that a message of the operator arrives."""
    await bus.wait_connected(PATIENCE)
    before = len(inbox.deliveries)
    assert await operator.publish(topics.SYNC.at(node=node), m.Sync(epoch=1))
    await eventually(lambda: len(inbox.deliveries) > before, PATIENCE)


async def test_subscriptions_that_a_restarted_broker_refuses_at_first_come_back(
    connect: Connect, front: RefusingBroker, operator: Bus, unique: str
) -> None:
    bus, syncs = await connect(unique), Inbox[m.Sync]()
    await bus.wait_connected(PATIENCE)
    await bus.subscribe(topics.SYNC.filter(node=unique), syncs)
    await bus.subscribe(topics.SYNCED.filter(node=unique), Inbox[m.Synced]())
    await hears(bus, operator, unique, syncs)
    connects = front.connects[unique]
    refuse_next(front)
    front.close()
    front.open()
    await eventually(lambda: front.connects[unique] > connects + DEAF, PATIENCE)
    await hears(bus, operator, unique, syncs)
    assert bus.refused == {}


async def test_a_first_connection_that_is_refused_everything_is_made_again(
    connect: Connect, front: RefusingBroker, operator: Bus, unique: str
) -> None:
    """Before and after the connection is made: a process may subscribe at either time."""
    refuse_next(front)
    for number, waits in enumerate((False, True)):
        node = f"{unique}-{number}"
        bus, syncs = await connect(node), Inbox[m.Sync]()
        if waits:
            await bus.wait_connected(PATIENCE)
        await bus.subscribe(topics.SYNC.filter(node=node), syncs)
        await hears(bus, operator, node, syncs)
        assert front.connects[node] == DEAF + 1
        assert bus.refused == {}


async def test_a_birth_that_is_refused_at_first_is_published_and_no_publish_fails_for_good(
    connect: Connect, front: RefusingBroker, operator: Bus, unique: str
) -> None:
    births = Inbox[m.Presence]()
    await operator.subscribe(topics.PRESENCE.filter(node=unique), births)
    refuse_next(front)
    bus = await connect(unique, Repeated(unique))
    published = False
    while not published:
        try:
            await bus.publish(topics.SYNC.at(node=unique), m.Sync(epoch=1))
            published = True
        except DisconnectedError:
            await asyncio.sleep(0.01)
    await eventually(lambda: births.deliveries and births.deliveries[-1].body.online, PATIENCE)
    assert front.connects[unique] == DEAF + 1


async def test_a_new_subscription_does_not_wait_for_a_broker_that_went_away(
    connect: Connect, front: RefusingBroker, operator: Bus, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halimede.bus.connection.SETTLE_S", 2.0)
    bus, syncs = await connect(unique), Inbox[m.Sync]()
    await bus.wait_connected(PATIENCE)
    front.refuses = lambda *_: True
    subscribing = asyncio.create_task(bus.subscribe(topics.SYNC.filter(node=unique), syncs))
    await eventually(lambda: front.refused, PATIENCE)
    front.close()
    async with asyncio.timeout(patience(PATIENCE)):
        await subscribing
    front.refuses = lambda *_: False
    front.open()
    await hears(bus, operator, unique, syncs)


async def test_one_filter_that_was_never_granted_is_refused_at_once(
    connect: Connect, front: RefusingBroker, operator: Bus, unique: str
) -> None:
    front.refuses = lambda _, topic: topic.endswith("synced")
    bus, syncs = await connect(unique), Inbox[m.Sync]()
    await bus.wait_connected(PATIENCE)
    await bus.subscribe(topics.SYNC.filter(node=unique), syncs)
    with pytest.raises(RefusedError, match="not authorised"):
        await bus.subscribe(topics.SYNCED.filter(node=unique), Inbox[m.Synced]())
    await hears(bus, operator, unique, syncs)
    assert front.connects[unique] == 1


@pytest.mark.slow
async def test_a_filter_that_stays_refused_costs_no_other_and_is_named_until_it_is_granted(
    connect: Connect, front: RefusingBroker, operator: Bus, unique: str
) -> None:
    filter_ = topics.SYNCED.filter(node=unique)
    bus, syncs, letters = await connect(unique), Inbox[m.Sync](), Inbox[m.DeadLetter]()
    await operator.subscribe(topics.DEAD_LETTER.filter(client=unique), letters)
    await bus.wait_connected(PATIENCE)
    await bus.subscribe(topics.SYNC.filter(node=unique), syncs)
    await bus.subscribe(filter_, Inbox[m.Synced]())
    front.refuses = lambda _, topic: topic == filter_.text
    connects = front.connects[unique]
    front.close()
    front.open()
    await eventually(lambda: bus.refused, PATIENCE)
    assert bus.refused == {filter_.text: "not authorised"}
    assert front.connects[unique] == connects + 1 + MOST_UNREADY
    await hears(bus, operator, unique, syncs)
    await eventually(lambda: letters.deliveries, PATIENCE)
    letter = letters.deliveries[0].body
    assert (letter.client, letter.topic) == (unique, filter_.text)
    assert "refused this subscription" in letter.reason
    front.refuses = lambda *_: False
    front.close()
    front.open()
    await eventually(lambda: bus.connected and not bus.refused, PATIENCE)


async def test_a_client_of_one_connection_that_is_refused_does_not_wait_for_another(
    connect: Connect, front: RefusingBroker, unique: str
) -> None:
    front.refuses = lambda *_: True
    bus = await connect(unique)
    bus.once = True
    await bus.wait_connected(PATIENCE)
    async with asyncio.timeout(patience(PATIENCE)):
        with pytest.raises(RefusedError, match="not authorised"):
            await bus.subscribe(topics.SYNC.filter(node=unique), Inbox[m.Sync]())
    assert front.connects[unique] == 1
