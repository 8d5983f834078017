"""What everybody may rely on when connections break: birth, will, re-subscription, hooks, nothing dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from halimede import codec, topics
from halimede import messages as m
from halimede.bus import Announcement, Bus, Packet
from halimede.errors import DisconnectedError
from tests.inbox import Inbox
from tests.simulated import eventually
from tests.worlds import CONNECT_S, World


class Epochs:
    """Announces a presence whose epoch counts connections, as an LC does."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.count = 0

    def __call__(self) -> Announcement:
        self.count += 1
        return Announcement(birth=self._presence(online=True), will=self._presence(online=False))

    def _presence(self, *, online: bool) -> Packet:
        body = m.Presence(node=self.node, epoch=self.count, online=online)
        return Packet(topics.PRESENCE.at(node=self.node).text, codec.encode(topics.PRESENCE, body), retain=True)


async def watch(world: World, node: str) -> Callable[[], list[tuple[int, bool]]]:
    """Return a function that gives the (epoch, online) seen so far of a node."""
    bus, inbox = await world.connect(f"{node}-watch"), Inbox[m.Presence]()
    await bus.subscribe(topics.PRESENCE.filter(node=node), inbox)
    return lambda: [(d.body.epoch, d.body.online) for d in inbox.deliveries]


async def reconnected(bus: Bus, connects: int) -> None:
    await eventually(lambda: bus.stats.connects >= connects and bus.connected, timeout_s=20)
    await bus.wait_connected(CONNECT_S)


async def test_birth_leaves_with_each_connection_and_the_will_when_it_breaks(world: World, unique: str) -> None:
    seen = await watch(world, unique)
    announce = Epochs(unique)
    bus = await world.connect(unique, announce)
    await eventually(lambda: seen() == [(1, True)])
    world.cut(bus)
    await eventually(lambda: seen() == [(1, True), (1, False)])
    world.heal(bus)
    await reconnected(bus, 2)
    # attempts that failed have taken epochs too: what counts is that it is a new one
    await eventually(lambda: len(seen()) == 3)
    assert seen()[2] == (announce.count, True)
    assert announce.count > 1


async def test_the_will_is_published_on_a_clean_close_too(world: World, unique: str) -> None:
    seen = await watch(world, unique)
    async with world.make(unique, Epochs(unique)) as bus:
        await bus.wait_connected(CONNECT_S)
        await eventually(lambda: seen() == [(1, True)])
    await eventually(lambda: seen() == [(1, True), (1, False)])
    assert not bus.connected


async def test_what_is_sent_before_a_clean_close_arrives(world: World, unique: str) -> None:
    other, inbox = await world.connect(f"{unique}-b"), Inbox[m.Sync]()
    await other.subscribe(topics.SYNC.filter(node=unique), inbox)
    async with world.make(f"{unique}-a") as bus:
        await bus.wait_connected(CONNECT_S)
        for epoch in range(20):
            await bus.publish(topics.SYNC.at(node=unique), m.Sync(epoch=epoch), qos=0)
    await inbox.has(20)


async def test_after_a_broker_restart_subscriptions_birth_and_hooks_are_back(world: World, unique: str) -> None:
    inbox, hooked = Inbox[m.Sync](), Inbox[m.Synced]()
    bus = await world.connect(unique, Epochs(unique))
    await bus.subscribe(topics.SYNC.filter(node=unique), inbox)
    await bus.subscribe(topics.SYNCED.filter(node=unique), hooked)

    async def hook() -> None:
        """A hook may publish to its own subscription: that is back before it runs."""
        await bus.publish(topics.SYNCED.at(node=unique), m.Synced(epoch=bus.stats.connects, count=0))

    bus.on_connect(hook)
    await world.restart()
    await reconnected(bus, 2)
    await hooked.has(1)
    assert hooked.read(lambda body: body.epoch) == [2]
    seen = await watch(world, unique)
    await eventually(lambda: len(seen()) == 1 and seen()[0][1])
    other = await world.connect(f"{unique}-b")
    assert await other.publish(topics.SYNC.at(node=unique), m.Sync(epoch=1))
    await inbox.has(1)


async def test_publishing_while_the_broker_is_away_fails_at_once(world: World, unique: str) -> None:
    bus = await world.connect(unique)
    world.cut(bus)
    await eventually(lambda: not bus.connected)
    with pytest.raises(DisconnectedError):
        await bus.publish(topics.SYNC.at(node=unique), m.Sync(epoch=1))
    with pytest.raises(DisconnectedError, match=r"no connection to the broker at .*HALIMEDE_BROKER"):
        await bus.wait_connected(0.1)
    world.heal(bus)
    await reconnected(bus, 2)
    assert not await bus.publish(topics.SYNC.at(node=unique), m.Sync(epoch=1))


async def test_what_had_arrived_when_the_connection_broke_is_still_handled_and_once(world: World, unique: str) -> None:
    """Sessions end with their connection: nothing is sent again, so what waits here must not be thrown away."""
    bus, inbox = await world.connect(unique), Inbox[m.Sync]()
    await bus.subscribe(topics.SYNC.filter(node=unique), inbox)
    inbox.hold()
    for epoch in range(5):
        await bus.publish(topics.SYNC.at(node=unique), m.Sync(epoch=epoch))
    await eventually(lambda: inbox.started == 1)
    # behind the five on the same connection: once this one is handled they have arrived
    last = Inbox[m.Synced]()
    await bus.subscribe(topics.SYNCED.filter(node=unique), last)
    await bus.publish(topics.SYNCED.at(node=unique), m.Synced(epoch=1, count=0))
    await last.has(1)
    assert inbox.started == 1, "a slow handler has one message at a time, and blocks no other subscription"
    world.cut(bus)
    await eventually(lambda: not bus.connected)
    world.heal(bus)
    await reconnected(bus, 2)
    inbox.release()
    await inbox.has(5)
    await bus.publish(topics.SYNC.at(node=unique), m.Sync(epoch=5))
    await inbox.has(6)
    assert inbox.read(lambda body: body.epoch) == list(range(6))


async def test_no_subscription_made_during_a_reconnect_is_lost(world: World, unique: str) -> None:
    bus, publisher = await world.connect(unique), await world.connect(f"{unique}-p")
    inboxes: dict[str, Inbox[Any]] = {f"{unique}.{number}": Inbox() for number in range(60)}
    world.cut(bus)
    await eventually(lambda: not bus.connected)
    world.heal(bus)
    for node, inbox in inboxes.items():
        await bus.subscribe(topics.SYNC.filter(node=node), inbox)
        await asyncio.sleep(0.005)
    await reconnected(bus, 2)
    for node in inboxes:
        assert await publisher.publish(topics.SYNC.at(node=node), m.Sync(epoch=1))
    for inbox in inboxes.values():
        await inbox.has(1)


async def test_a_subscription_ended_while_away_does_not_come_back(world: World, unique: str) -> None:
    bus, publisher = await world.connect(unique), await world.connect(f"{unique}-p")
    inbox = Inbox[m.Sync]()
    await bus.subscribe(topics.SYNC.filter(node=unique), inbox)
    world.cut(bus)
    await eventually(lambda: not bus.connected)
    await bus.unsubscribe(topics.SYNC.filter(node=unique))
    world.heal(bus)
    await reconnected(bus, 2)
    assert not await publisher.publish(topics.SYNC.at(node=unique), m.Sync(epoch=1))


async def test_two_clients_of_one_id_are_noticed_and_stop_chasing_each_other(world: World, unique: str) -> None:
    with capture_logs() as lines:
        first, second = await world.connect(unique), await world.connect(unique)
        await eventually(lambda: "another client uses the same client id" in [line["event"] for line in lines])
        await eventually(lambda: first.connected != second.connected)
        connects = first.stats.connects + second.stats.connects
        await asyncio.sleep(1.0)
    assert first.connected != second.connected
    # on a busy machine one more attempt may have been on its way
    assert first.stats.connects + second.stats.connects <= connects + 1
    assert connects < 12


async def test_leaving_while_connecting_leaves_no_task_behind(world: World, unique: str) -> None:
    inbox = Inbox[m.Sync]()
    async with world.make(f"{unique}-b") as other:
        await other.subscribe(topics.SYNC.filter(), inbox)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith(f"{unique}-b")]


async def test_an_error_of_the_block_comes_out_as_it_is(world: World, unique: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with world.make(unique):
            raise ZeroDivisionError


async def test_systems_with_different_prefixes_do_not_hear_one_another(world: World, unique: str) -> None:
    red, blue = await world.connect(f"{unique}-r", prefix="red/"), await world.connect(f"{unique}-b", prefix="blue/")
    inboxes = {bus: (Inbox[m.Sync](), Inbox[m.ApiRequest]()) for bus in (red, blue)}
    replies = Inbox[m.ApiReply]()
    for bus, (plain, shared) in inboxes.items():
        await bus.subscribe(topics.SYNC.filter(node=unique), plain)
        await bus.subscribe(topics.API_REQUEST.filter(client=unique, group="g"), shared)
    await red.subscribe(topics.API_REPLY.filter(client=unique), replies)
    assert await red.publish(topics.SYNC.at(node=unique), m.Sync(epoch=1))
    request, reply = topics.API_REQUEST.at(client=unique), topics.API_REPLY.at(client=unique)
    await red.publish(request, m.ApiRequest(op="version"), reply_to=reply)
    plain, shared = inboxes[red]
    await plain.has(1)
    await shared.has(1)
    await red.reply(shared.deliveries[0], topics.API_REPLY, m.ApiReply())
    await replies.has(1)
    assert [inbox.deliveries for inbox in inboxes[blue]] == [[], []]
