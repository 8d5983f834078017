"""Sessions that outlive their connection, and messages that are acknowledged later than they are handled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from halimede import messages as m
from halimede import topics
from halimede.bus import Bus, Delivery, Packet
from halimede.topic import Filter
from tests.inbox import Inbox
from tests.simulated import eventually
from tests.worlds import CONNECT_S, World

#: long enough for a message that should not come to come
QUIET_S = 0.2
KEPT_S = 60


def epochs(inbox: Inbox[Any]) -> list[int]:
    return inbox.read(lambda body: body.epoch)


def shared(node: str) -> Filter[m.Sync]:
    return topics.SYNC.filter(node=node, group=node)


async def arrived(inbox: Inbox[Any], *wanted: int) -> None:
    """Wait for numbers. Mosquitto 2.0.11 sends more than the receive maximum once the first is acknowledged."""
    await eventually(lambda: set(wanted) <= set(epochs(inbox)))


async def say(bus: Bus, node: str, *numbers: int) -> None:
    for number in numbers:
        assert await bus.publish(topics.SYNC.at(node=node), m.Sync(epoch=number))


async def kill(world: World, bus: Bus) -> None:
    """Break a client's connection for good, as when its process dies."""
    world.cut(bus)
    await eventually(lambda: not bus.connected)


async def durable(world: World, client_id: str, **options: Any) -> Bus:
    return await world.connect(client_id, session_s=KEPT_S, **options)


async def test_a_message_that_is_acknowledged_later_keeps_its_place_until_then(world: World, unique: str) -> None:
    bus, inbox = await world.connect(f"{unique}-a", receive_maximum=1), Inbox[m.Sync]()
    await bus.subscribe(topics.SYNC.filter(node=unique), inbox, later=True)
    publisher = await world.connect(f"{unique}-p")
    await say(publisher, unique, 0, 1, 2)
    for number in range(3):
        await arrived(inbox, number)
        await asyncio.sleep(QUIET_S)
        assert epochs(inbox) == list(range(number + 1))
        inbox.deliveries[-1].packet.done()
        inbox.deliveries[-1].packet.done()  # again, to no effect


async def test_what_a_handler_refuses_or_fails_at_is_acknowledged_all_the_same(world: World, unique: str) -> None:
    bus, seen = await world.connect(unique, receive_maximum=1), []

    async def fail(delivery: Delivery[m.Sync]) -> None:
        seen.append(delivery.body.epoch)
        raise ZeroDivisionError

    await bus.subscribe(topics.SYNC.filter(node=unique), fail, later=True)
    publisher = await world.connect(f"{unique}-p")
    await say(publisher, unique, 1)
    await publisher.send(Packet(topics.SYNC.at(node=unique).text, b"{"))
    await say(publisher, unique, 2)
    await eventually(lambda: seen == [1, 2])
    assert (bus.stats.failed_handlers, bus.stats.rejected) == (2, 1)


@pytest.mark.parametrize("group", [False, True], ids=["plain", "shared"])
async def test_another_client_goes_on_with_the_session_of_a_dead_one(world: World, unique: str, group: bool) -> None:
    filter_ = shared(unique) if group else topics.SYNC.filter(node=unique)
    first, inbox = await durable(world, unique, receive_maximum=3), Inbox[m.Sync]()
    assert not first.resumed
    await first.subscribe(filter_, inbox, later=True)
    publisher = await world.connect(f"{unique}-p")
    await say(publisher, unique, *range(8))
    await arrived(inbox, 0, 1, 2)
    inbox.deliveries[0].packet.done()
    await arrived(inbox, 3)
    await kill(world, first)
    await say(publisher, unique, 8)

    taker, taken = world.make(unique, session_s=KEPT_S), Inbox[m.Sync]()
    async with taker:
        await taker.wait_connected(CONNECT_S)
        assert taker.resumed
        await say(publisher, unique, 9)
        await asyncio.sleep(QUIET_S)  # all of it comes before anybody here says what to do with it
        await taker.subscribe(filter_, taken, later=True, inherit=True)
        await taken.has(9)
        assert epochs(taken) == list(range(1, 10))
        assert all(d.packet.duplicate for d in taken.deliveries[:3])
        assert not any(d.packet.duplicate for d in taken.deliveries[-2:])
        await say(publisher, unique, 10)
        await taken.has(10)


async def test_the_first_gets_its_session_back_and_the_one_that_took_it_stays_away(world: World, unique: str) -> None:
    first, inbox = await durable(world, unique, receive_maximum=2), Inbox[m.Sync]()
    await first.subscribe(shared(unique), inbox, later=True)
    publisher, letters = await world.connect(f"{unique}-p"), Inbox[m.DeadLetter]()
    await publisher.subscribe(topics.DEAD_LETTER.filter(client=unique), letters)
    await say(publisher, unique, 0, 1, 2, 3)
    await arrived(inbox, 0, 1)
    await kill(world, first)
    taker, taken = world.make(unique, session_s=KEPT_S), Inbox[m.Sync]()
    taker.once = True
    async with taker:
        await taker.subscribe(shared(unique), taken, later=True, inherit=True)
        await taken.has(4)
        taken.deliveries[0].packet.done()
        taken.deliveries[2].packet.done()
        world.heal(first)
        await eventually(lambda: first.connected, timeout_s=20)
        await eventually(taker.over.is_set)
        assert not taker.connected
        await say(publisher, unique, 4)
        # 0 was done by the other; 1 is in hand still, and is not handled twice; the rest is as if nothing had been
        inbox.deliveries[1].packet.done()
        await arrived(inbox, 3, 4)
        await asyncio.sleep(QUIET_S)
        assert epochs(inbox) == [0, 1, 3, 4]
        assert first.connected
        assert not taker.connected
    assert letters.deliveries == []


async def test_what_is_in_hand_when_a_connection_breaks_is_handled_once_and_acknowledged_on_the_next(
    world: World, unique: str
) -> None:
    bus, inbox = await durable(world, unique, receive_maximum=3), Inbox[m.Sync]()
    await bus.subscribe(shared(unique), inbox, later=True)
    publisher = await world.connect(f"{unique}-p")
    await say(publisher, unique, *range(6))
    await arrived(inbox, 0, 1, 2)
    await kill(world, bus)
    inbox.deliveries[0].packet.done()
    world.heal(bus)
    await eventually(lambda: bus.connected, timeout_s=20)
    assert bus.resumed
    await arrived(inbox, 3)
    for number in range(6):
        await arrived(inbox, number)
        inbox.deliveries[number].packet.done()
    await bus.unsubscribe(shared(unique))
    assert epochs(inbox) == list(range(6))


async def test_a_clean_stop_finishes_what_the_broker_has_and_ends_the_session(world: World, unique: str) -> None:
    bus, inbox = world.make(unique, session_s=KEPT_S, receive_maximum=2), Inbox[m.Sync]()
    publisher = await world.connect(f"{unique}-p")
    async with bus:
        await bus.wait_connected(CONNECT_S)
        await bus.subscribe(shared(unique), inbox, later=True)
        await say(publisher, unique, *range(5))
        await arrived(inbox, 0, 1)
        ending = asyncio.create_task(bus.unsubscribe(shared(unique)))
        await asyncio.sleep(QUIET_S)
        # nobody takes more, but what waits is still handled
        assert not await publisher.publish(topics.SYNC.at(node=unique), m.Sync(epoch=99))
        for number in range(5):
            await eventually(lambda number=number: len(inbox.deliveries) > number)
            assert not ending.done()
            inbox.deliveries[number].packet.done()
        await ending
    assert epochs(inbox) == list(range(5))
    again = await durable(world, unique)
    assert not again.resumed


async def test_a_stop_that_is_cut_short_leaves_the_rest_to_the_next(world: World, unique: str) -> None:
    bus, inbox = world.make(unique, session_s=KEPT_S, receive_maximum=2), Inbox[m.Sync]()
    publisher = await world.connect(f"{unique}-p")
    async with bus:
        await bus.wait_connected(CONNECT_S)
        await bus.subscribe(shared(unique), inbox, later=True)
        await say(publisher, unique, *range(5))
        await arrived(inbox, 0, 1)
        inbox.deliveries[0].packet.done()
        await arrived(inbox, 2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(QUIET_S):
                await bus.unsubscribe(shared(unique))
    taken, again = Inbox[m.Sync](), await durable(world, unique)
    assert again.resumed
    await again.subscribe(shared(unique), taken)
    await taken.has(4)
    assert epochs(taken) == [1, 2, 3, 4]


async def test_a_session_that_nobody_takes_up_is_over_after_its_time(world: World, unique: str) -> None:
    first, inbox = await world.connect(unique, session_s=1), Inbox[m.Sync]()
    await first.subscribe(shared(unique), inbox, later=True)
    publisher = await world.connect(f"{unique}-p")
    await say(publisher, unique, 0)
    await inbox.has(1)
    await kill(world, first)

    async def is_over() -> bool:
        return not await publisher.publish(topics.SYNC.at(node=unique), m.Sync(epoch=1))

    await eventually(is_over, every_s=0.1)
    assert not (await durable(world, unique)).resumed
