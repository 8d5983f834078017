"""Follows topics until Ctrl-C, for commands that show messages as they arrive.

It subscribes at QoS 0 (a message may be lost), which suffices for a display.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import TypeVar

import aiomqtt

from halimede import codec
from halimede.bus.addresses import SocketAddress, connect_to_any
from halimede.bus.paho.connect import PahoContext
from halimede.bus.settings import MqttSettings
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import check_reachable, no_broker
from halimede.cli.output import warn
from halimede.errors import DecodeError, DisconnectedError
from halimede.topic import Filter

M = TypeVar("M")
#: seconds between two attempts to connect again
RETRY_S = 1.0


async def follow(broker: BrokerAddress, *filters: Filter[M]) -> AsyncIterator[tuple[dict[str, str], M | None]]:
    """Yield the names in the topic and the body of each message; None: a retained message was cleared.

    Raises NoBrokerError or NotLetInError if the first connection fails. Later it waits for the broker's return, with a
    warning. Messages that cannot be read are skipped with a warning.
    """
    topics, settings = {filter_.topic.id: filter_.topic for filter_ in filters}.values(), broker.settings
    was_connected, is_away = False, False
    await check_reachable(broker)
    while True:
        try:
            async with AsyncExitStack() as stack:
                client = await connect_to_any(settings, partial(_connect, settings))
                stack.push_async_exit(client)
                for filter_ in filters:
                    text = settings.prefix + filter_.text
                    # the client's default timeout is only for one of several addresses
                    await client.subscribe(text, qos=0, timeout=settings.connect_timeout_s)
                was_connected, is_away = True, False
                task = asyncio.current_task()
                if task and task.cancelling():  # aiomqtt uses wait_for, which may lose Ctrl-C before Python 3.12
                    raise asyncio.CancelledError
                async for message in client.messages:
                    text, payload = str(message.topic).removeprefix(settings.prefix), message.payload
                    read = ((topic, names) for topic in topics if (names := topic.parse(text)) is not None)
                    topic, names = next(read, (None, None))
                    if topic is None or names is None or not isinstance(payload, bytes | bytearray):
                        continue
                    try:
                        body = codec.decode(topic, bytes(payload)) if payload else None
                    except DecodeError as error:
                        warn(f"skipped an invalid message on {message.topic}: {error}")
                        continue
                    yield names, body
        except (aiomqtt.MqttError, DisconnectedError, OSError) as error:
            if not was_connected:
                raise no_broker(str(broker), error) from error
            if not is_away:
                warn(f"lost the connection to the broker at {broker} ({error}); reconnecting every second")
            is_away = True
            await asyncio.sleep(RETRY_S)


async def _connect(settings: MqttSettings, address: SocketAddress) -> aiomqtt.Client:
    """Return a client that is connected to one of the broker's addresses. Raises DisconnectedError."""
    user, password = settings.login()
    context = settings.context()
    client = aiomqtt.Client(
        address.host,
        address.port,
        username=user,
        password=password,
        tls_context=PahoContext(context, address.endpoint.host) if context else None,  # type: ignore[arg-type]  # as paho
        identifier=f"cli-{secrets.token_hex(8)}",
        protocol=aiomqtt.ProtocolVersion.V5,
        timeout=address.timeout_s,
    )
    try:
        return await client.__aenter__()
    except aiomqtt.MqttError as error:
        raise DisconnectedError(str(error)) from error
