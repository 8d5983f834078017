"""What everybody may rely on, whatever adapter is under them: publishing, subscribing, answering, refusing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from halimede import messages as m
from halimede import topics
from halimede.bus import Delivery, Packet
from halimede.bus.rpc import RpcClient
from halimede.errors import TooLargeError
from tests.inbox import Inbox
from tests.simulated import eventually
from tests.worlds import World

#: long enough for a message that should not come to come
QUIET_S = 0.2


def sync(epoch: int) -> m.Sync:
    return m.Sync(epoch=epoch)


def epochs(inbox: Inbox[Any]) -> list[int]:
    return inbox.read(lambda body: body.epoch)


async def test_a_message_arrives_with_its_body_names_and_properties(world: World, unique: str) -> None:
    bus, inbox = await world.connect(f"{unique}-a"), Inbox[m.Delete]()
    await bus.subscribe(topics.DELETE.filter(node=unique), inbox)
    to = topics.DELETE.at(node=unique, ns="default", plural="models", name="helmet.v1")
    body = m.Delete(uid="u1", generation=3)
    assert await bus.publish(to, body, properties={"epoch": "7"}, correlation=b"\0\xff", expiry_s=60)
    await inbox.has(1)
    [delivery] = inbox.deliveries
    assert delivery.body == body
    assert delivery.names == {"node": unique, "ns": "default", "plural": "models", "name": "helmet.v1"}
    assert delivery.properties == {"epoch": "7"}
    assert (delivery.packet.correlation, delivery.packet.qos, delivery.packet.retain) == (b"\0\xff", 1, False)
    assert delivery.packet.expiry_s in {59, 60}


async def test_a_wildcard_takes_every_name_and_nothing_else(world: World, unique: str) -> None:
    bus, one, all_ = await world.connect(f"{unique}-a"), Inbox[m.Sync](), Inbox[m.Sync]()
    await bus.subscribe(topics.SYNC.filter(node=unique), one)
    other = await world.connect(f"{unique}-b")
    await other.subscribe(topics.SYNC.filter(), all_)
    for epoch, node in enumerate((unique, f"{unique}.x", unique)):
        await bus.publish(topics.SYNC.at(node=node), sync(epoch))
    await one.has(2)
    await all_.has(3)
    assert [delivery.names["node"] for delivery in all_.deliveries] == [unique, f"{unique}.x", unique]


@pytest.mark.parametrize("filter_", ["node/edge0/sedna/upstream/sync", "node/+/sedna/upstream/sync", "$share/g/node/#"])
async def test_a_filter_that_overlaps_a_subscription_of_the_connection_is_refused(
    world: World, unique: str, filter_: str
) -> None:
    bus, inbox = await world.connect(f"{unique}-a"), Inbox[Packet]()
    await bus.subscribe(topics.SYNC.filter(node="edge0"), Inbox[m.Sync]())
    with pytest.raises(ValueError, match="overlaps the subscription of node/edge0/sedna/upstream/sync"):
        await bus.listen(filter_, 1, inbox, 10)  # type: ignore[arg-type]
    await bus.unsubscribe(topics.SYNC.filter(node="edge0"))
    await bus.listen(filter_, 1, inbox, 10)  # type: ignore[arg-type]


async def test_a_raw_filter_with_a_hash_takes_the_levels_below(world: World, unique: str) -> None:
    bus = await world.connect(f"{unique}-a")
    seen: list[str] = []

    async def receive(packet: Packet) -> None:
        seen.append(packet.topic)

    await bus.listen(f"{unique}/#", 1, receive, 10)
    for topic in (unique, f"{unique}/a", f"{unique}/a/b", f"{unique}x/a"):
        await bus.send(Packet(topic, b"x"))
    await eventually(lambda: len(seen) == 3)
    assert seen == [unique, f"{unique}/a", f"{unique}/a/b"]


async def test_a_retained_message_waits_for_subscribers_until_it_is_cleared(world: World, unique: str) -> None:
    bus, early, late = await world.connect(f"{unique}-a"), Inbox[m.Presence](), Inbox[m.Presence]()
    at = topics.PRESENCE.at(node=unique)
    await bus.publish(at, m.Presence(node=unique, epoch=1, online=True))
    await bus.publish(at, m.Presence(node=unique, epoch=2, online=True))
    await bus.subscribe(topics.PRESENCE.filter(node=unique), early, cleared=early.clear)
    await early.has(1)
    assert epochs(early) == [2]
    assert early.deliveries[0].packet.retain
    await bus.clear(at)
    await eventually(lambda: early.cleared == [{"node": unique}])
    other = await world.connect(f"{unique}-b")
    await other.subscribe(topics.PRESENCE.filter(node=unique), late)
    await asyncio.sleep(QUIET_S)
    assert late.deliveries == []


async def test_a_shared_subscription_splits_messages_and_gets_no_retained_ones(world: World, unique: str) -> None:
    inboxes = [Inbox[m.Presence](), Inbox[m.Presence]()]
    publisher = await world.connect(f"{unique}-p")
    at = topics.PRESENCE.at(node=unique)
    await publisher.publish(at, m.Presence(node=unique, epoch=1000, online=True))
    for index, inbox in enumerate(inboxes):
        member = await world.connect(f"{unique}-{index}")
        await member.subscribe(topics.PRESENCE.filter(node=unique, group=unique), inbox)
    for epoch in range(20):
        await publisher.publish(at, m.Presence(node=unique, epoch=epoch, online=True))
    await eventually(lambda: sum(len(inbox.deliveries) for inbox in inboxes) == 20)
    assert sorted(epochs(inboxes[0]) + epochs(inboxes[1])) == list(range(20))
    assert all(inbox.deliveries for inbox in inboxes)


async def test_a_message_is_acknowledged_only_after_its_handler_returned(world: World, unique: str) -> None:
    """The broker sends no second message before the acknowledgement of the first, if told to send one at a time."""
    bus, slow, quick = await world.connect(f"{unique}-a", receive_maximum=1), Inbox[m.Sync](), Inbox[m.Synced]()
    publisher = await world.connect(f"{unique}-p")
    await bus.subscribe(topics.SYNC.filter(node=unique), slow)
    await bus.subscribe(topics.SYNCED.filter(node=unique), quick)
    slow.hold()
    await publisher.publish(topics.SYNC.at(node=unique), sync(1))
    await publisher.publish(topics.SYNCED.at(node=unique), m.Synced(epoch=1, count=0))
    await eventually(lambda: slow.started == 1)
    await asyncio.sleep(QUIET_S)
    assert (slow.started, quick.started) == (1, 0)
    slow.release()
    await quick.has(1)


async def test_the_publisher_learns_that_nobody_listens(world: World, unique: str) -> None:
    bus, inbox = await world.connect(f"{unique}-a"), Inbox[m.Sync]()
    assert not await bus.publish(topics.SYNC.at(node=unique), sync(1))
    await bus.subscribe(topics.SYNC.filter(node=unique), inbox)
    assert await bus.publish(topics.SYNC.at(node=unique), sync(2))
    await eventually(lambda: epochs(inbox) == [2])  # a broker may deliver a message after its acknowledgement
    await bus.unsubscribe(topics.SYNC.filter(node=unique))
    assert not await bus.publish(topics.SYNC.at(node=unique), sync(3))
    assert epochs(inbox) == [2]


async def test_a_handler_may_end_its_own_subscription(world: World, unique: str) -> None:
    bus, seen = await world.connect(f"{unique}-a"), []
    filter_ = topics.SYNC.filter(node=unique)

    async def once(delivery: Delivery[m.Sync]) -> None:
        await bus.unsubscribe(filter_)
        seen.append(delivery.body.epoch)

    await bus.subscribe(filter_, once)
    await bus.publish(topics.SYNC.at(node=unique), sync(1))
    await eventually(lambda: seen == [1])
    assert not await bus.publish(topics.SYNC.at(node=unique), sync(2))


async def test_a_queue_that_drops_its_oldest_messages_acknowledges_them(world: World, unique: str) -> None:
    bus, inbox = await world.connect(f"{unique}-a", receive_maximum=4), Inbox[m.Sync]()
    inbox.hold()
    await bus.subscribe(topics.SYNC.filter(node=unique), inbox, queue=2, later=True, drop_oldest=True)
    publisher = await world.connect(f"{unique}-p")
    for epoch in range(10):  # without acknowledgements the broker would send four
        await publisher.publish(topics.SYNC.at(node=unique), sync(epoch))
    await eventually(lambda: bus.stats.dropped == 7)
    inbox.release()
    await inbox.has(3)
    assert epochs(inbox) == [0, 8, 9]
    assert all(delivery.packet.arrived > 0 for delivery in inbox.deliveries)
    for delivery in inbox.deliveries:
        delivery.packet.done()
    await publisher.publish(topics.SYNC.at(node=unique), sync(10))
    await inbox.has(4)


async def test_a_question_gets_its_own_answer_among_many(world: World, unique: str) -> None:
    server, client = await world.connect(f"{unique}-s"), await world.connect(f"{unique}-c")

    async def echo(delivery: Delivery[m.ApiRequest]) -> None:
        await server.reply(delivery, topics.API_REPLY, m.ApiReply(outcome=delivery.body.name))

    await server.subscribe(topics.API_REQUEST.filter(client=client.client_id), echo)
    requests = RpcClient(client, topics.API_REPLY.at(client=client.client_id))
    await requests.start()
    at = topics.API_REQUEST.at(client=client.client_id)
    answers = await asyncio.gather(
        *(requests.ask(at, m.ApiRequest(op="get", name=str(number)), timeout_s=10) for number in range(30))
    )
    assert [answer.body.outcome for answer in answers] == [str(number) for number in range(30)]
    assert requests.late == 0


async def test_a_packet_over_the_limit_is_refused_here_and_the_connection_lives_on(world: World, unique: str) -> None:
    bus, sizes = await world.connect(f"{unique}-a"), []

    async def receive(packet: Packet) -> None:
        sizes.append(len(packet.payload))

    await bus.listen(unique, 1, receive, 10)
    header = 1 + 4 + 2 + len(unique) + 2 + 1
    with pytest.raises(TooLargeError):
        await bus.send(Packet(unique, bytes(bus.max_packet - header + 1)))
    assert await bus.send(Packet(unique, bytes(bus.max_packet - header))) == 0
    await eventually(lambda: sizes == [bus.max_packet - header])
    assert bus.stats.connects == 1


async def test_an_unreadable_body_is_dead_lettered_counted_and_passed_over(world: World, unique: str) -> None:
    bus, inbox, letters = await world.connect(unique, receive_maximum=1), Inbox[m.Sync](), Inbox[m.DeadLetter]()
    watcher = await world.connect(f"{unique}-w")
    await watcher.subscribe(topics.DEAD_LETTER.filter(client=unique), letters)
    await bus.subscribe(topics.SYNC.filter(), inbox)
    for topic in (topics.SYNC.at(node=unique).text, "node/UPPER/sedna/upstream/sync"):
        await watcher.send(Packet(topic, b'{"epoch": "not a number"}'))
    await watcher.publish(topics.SYNC.at(node=unique), sync(5))
    await inbox.has(1)
    await letters.has(2)
    assert bus.stats.rejected == 2
    letter = letters.deliveries[0].body
    assert (letter.client, letter.topic, letter.size) == (unique, f"node/{unique}/sedna/upstream/sync", 25)
    assert bytes.fromhex(letter.head) == b'{"epoch": "not a number"}'
