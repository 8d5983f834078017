"""The record of what a bridge has published, as a retained message at Home Assistant's broker.

It is what the bridge remembers over its restarts: the documents with their entities, so that those that are gone are
removed, and the occupancy sensors, since a camera's retained message has only who is there now. The record is published
before the documents that it names.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from halimede.bridges.homeassistant.discovery import DiscoveryTopics
from halimede.bus.message import Packet
from halimede.bus.port import Bus
from halimede.errors import InvalidFieldError

#: seconds in which the broker sends a retained message to a new subscriber
RETAINED_S = 3.0

#: a text of bounded length
Text = Annotated[str, Meta(max_length=4096)]


class OccupancySensor(Struct, frozen=True, array_like=True):
    """An occupancy sensor: the service, the camera, and the zone and label; the zone is empty for the whole picture."""

    namespace: Text
    service: Text
    camera: Text
    zone: Text = ""
    label: Text = ""


class PublishedRecord(Struct, rename="camel", kw_only=True):
    """What a bridge has published.

    ``program``: marks the message as one of halimede. ``documents``: the platforms of the entities of each device, also
    of removed ones, by their ids. ``sensors``: all occupancy sensors.
    """

    program: Literal["halimede"] = "halimede"
    documents: Annotated[dict[Text, Annotated[dict[Text, Text], Meta(max_length=4096)]], Meta(max_length=4096)] = {}
    sensors: Annotated[list[OccupancySensor], Meta(max_length=100_000)] = []


async def read_record(bus: Bus, topics: DiscoveryTopics) -> PublishedRecord:
    """Return the record of the last bridge of this name; an empty one if there is none.

    Raises InvalidFieldError if another program uses the topic, and RefusedError if the broker refuses the subscription.
    """
    arrived: asyncio.Queue[Packet] = asyncio.Queue(maxsize=1)

    async def receive(packet: Packet) -> None:
        if not arrived.full():
            arrived.put_nowait(packet)

    await bus.listen(topics.record, 1, receive, 1)
    try:
        payload: bytes | memoryview = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETAINED_S):
                payload = (await arrived.get()).payload
        return msgspec.json.decode(payload, type=PublishedRecord) if payload else PublishedRecord()
    except msgspec.MsgspecError:
        fix = f"another program uses {topics.record}: give another --name, or clear that retained message"
        raise InvalidFieldError("--name", topics.system, fix) from None
    finally:
        await bus.unlisten(topics.record)
