"""Follows a topic until Ctrl-C, at QoS 0, which suffices for a display (ADR 2)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import TypeVar

import aiomqtt

from halimede import codec
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import check_reachable, no_broker
from halimede.cli.output import warn
from halimede.errors import DecodeError
from halimede.topic import Filter

M = TypeVar("M")
RETRY_S = 1.0


async def follow(broker: BrokerAddress, *filters: Filter[M]) -> AsyncIterator[tuple[dict[str, str], M | None]]:
    """Yield the names in the topic and the body of each message; None for a retained one that was cleared.

    Raises if the broker is not reachable at first; later it waits for the broker to return.
    """
    topics, settings = {each.topic.id: each.topic for each in filters}.values(), broker.settings
    once, away = False, False
    await check_reachable(broker)
    while True:
        try:
            user, password = settings.login()
            client = aiomqtt.Client(
                settings.host,
                settings.port,
                username=user,
                password=password,
                tls_context=settings.context(),
                identifier=f"cli-{secrets.token_hex(8)}",
                protocol=aiomqtt.ProtocolVersion.V5,
                timeout=5,
            )
            async with client:
                for filter_ in filters:
                    await client.subscribe(settings.prefix + filter_.text, qos=0)
                once, away = True, False
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
        except aiomqtt.MqttError as error:
            if not once:
                raise no_broker(str(broker), error) from error
            if not away:
                warn(f"lost the connection to the broker at {broker} ({error}); reconnecting every second")
            away = True
            await asyncio.sleep(RETRY_S)
