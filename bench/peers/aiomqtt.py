"""aiomqtt with TCP_NODELAY, no publish awaited before the next. MQTT v5, QoS 1, correlation data, an echo."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from urllib.parse import urlsplit

from aiomqtt import Client, ProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from bench.peers import peer

REQUEST, REPLY = "bench/aiomqtt/request", "bench/aiomqtt/reply"
INFLIGHT = 100


def connection(url: str) -> Client:
    """Return a client, tuned."""
    broker = urlsplit(url)
    quiet = logging.getLogger("aiomqtt")
    quiet.setLevel(logging.ERROR)  # ten publishes under way are worth a warning to it
    return Client(
        str(broker.hostname),
        broker.port or 0,
        protocol=ProtocolVersion.V5,
        logger=quiet,
        max_inflight_messages=INFLIGHT,
        max_concurrent_outgoing_calls=INFLIGHT,
        socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
    )


def server(broker: str) -> None:
    """Echo."""
    asyncio.run(_server(broker))


async def _server(broker: str) -> None:
    async with connection(broker) as client, asyncio.TaskGroup() as group:

        async def echo() -> None:
            async for message in client.messages:
                given = peer.answer(message.payload)
                group.create_task(client.publish(REPLY, given, 1, properties=_same(message.properties)))

        await client.subscribe(REQUEST, 1)
        echoing = group.create_task(echo())
        await peer.serving()
        echoing.cancel()


def _correlation(data: bytes) -> Properties:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.CorrelationData = data
    return properties


def _same(asked: Properties | None) -> Properties:
    return _correlation(asked.CorrelationData)  # type: ignore[union-attr]


def client(broker: str) -> None:
    """Send and check."""
    asyncio.run(_client(broker))


async def _client(broker: str) -> None:
    waiting: dict[bytes, asyncio.Future[bytes]] = {}
    async with connection(broker) as client:

        async def read() -> None:
            async for message in client.messages:
                waiting.pop(message.properties.CorrelationData).set_result(message.payload)  # type: ignore[union-attr]

        async def ask(size: int, number: int) -> None:
            key = number.to_bytes(8, "big")
            waiting[key] = answered = asyncio.get_running_loop().create_future()
            await client.publish(REQUEST, peer.packed(size, number), 1, properties=_correlation(key))
            peer.check_echo(size, number, await answered)

        await client.subscribe(REPLY, 1)
        reading = asyncio.create_task(read())
        await peer.rounds(ask)
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
