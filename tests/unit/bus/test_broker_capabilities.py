"""What a broker says that it does not offer is not asked of it, and why it ends a connection is not guessed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from halimede import topics
from halimede.bus.connection import RIVAL
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.bus.settings import Client
from halimede.errors import RefusedError
from halimede.topic import Filter
from tests.inbox import Inbox
from tests.scripted import (
    CONNECT,
    HOST,
    PATIENCE,
    SUBSCRIBE,
    Peer,
    Scripted,
    accepted,
    connack,
    dialled,
    packet,
)

NO_WILDCARDS, NO_SHARED = b"\x28\0", b"\x2a\0"
PLAIN = topics.PRESENCE.filter(node="edge0")
UNOFFERED = [
    (NO_SHARED, topics.SYNC.filter(node="edge0", group="g"), "does not offer shared subscriptions"),
    (NO_WILDCARDS, topics.SYNC.filter(), "does not offer wildcard subscriptions"),
    (NO_WILDCARDS, topics.SYNC.filter(group="g"), "does not offer wildcard subscriptions"),
]


async def granted(peer: Peer, filter_: Filter[Any]) -> None:
    body = await peer.takes(SUBSCRIBE)
    assert filter_.text.encode() in body
    peer.say(packet(0x90, body[:2] + b"\0\1"))


@pytest.mark.parametrize(("offer", "filter_", "reason"), UNOFFERED)
async def test_a_subscription_that_the_broker_does_not_offer_is_refused_without_asking(
    client: Client, offer: bytes, filter_: Filter[Any], reason: str
) -> None:
    async with accepted(client, offer) as (bus, peer):
        with pytest.raises(RefusedError, match=reason):
            await bus.subscribe(filter_, Inbox[Any]())
        subscribing = asyncio.create_task(bus.subscribe(PLAIN, Inbox[Any]()))
        await granted(peer, PLAIN)  # the first that it hears of
        await subscribing


@pytest.mark.parametrize(("offer", "filter_", "reason"), UNOFFERED)
async def test_one_made_before_the_broker_said_so_is_named_where_the_operator_looks(
    offer: bytes, filter_: Filter[Any], reason: str
) -> None:
    async with dialled("lean") as (bus, peer, _):
        await bus.subscribe(filter_, Inbox[Any]())
        await bus.subscribe(PLAIN, Inbox[Any]())
        peer.say(connack(properties=offer))
        await granted(peer, PLAIN)
        assert reason.encode() in await peer.takes_message()
        assert list(bus.refused) == [filter_.text]
        assert reason in bus.refused[filter_.text]


async def test_a_broker_that_says_why_it_ends_connections_makes_nobody_a_rival(client: Client) -> None:
    with capture_logs() as lines:
        async with Scripted() as broker, MqttBus("me", MqttSettings(HOST, broker.port, client=client)) as bus:
            for _ in range(4):  # a newcomer takes three brief connections without a word for a rival's work
                peer = await broker.peer()
                await peer.takes(CONNECT)
                peer.say(connack())
                await bus.wait_connected(PATIENCE)
                peer.say(packet(0xE0, b"\x95\0"))
                peer.writer.close()
    assert RIVAL not in [line["event"] for line in lines]
