"""The check of ``doctor`` for a list of brokers: clients of one must reach clients of the others, as in a cluster."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

from halimede import topics
from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus
from halimede.bus.settings import MqttSettings
from halimede.errors import BusError
from halimede.health_checks.check import Check, ok, problem, warning

#: the name of the check
NAME = "brokers"
#: seconds for a connection; for a message to reach the other broker; between two messages
CONNECT_S, ARRIVAL_S, REPEAT_S = 3.0, 3.0, 0.2


async def examine_list(brokers: Sequence[MqttSettings]) -> list[Check]:
    """Return the row about messages from clients of the first broker to clients of the others; none for one broker."""
    if len(brokers) == 1:
        return []
    name = f"doctor-{secrets.token_hex(8)}"
    try:
        async with MqttBus(name, brokers[0]) as bus:
            await bus.wait_connected(CONNECT_S)
            separate = [broker.where for broker in brokers[1:] if not await _can_receive(broker, bus, f"{name}-2")]
    except BusError as error:
        return [problem(NAME, str(error), "see the broker's log")]
    if not separate:
        return [ok(NAME, "messages of a client reach the clients of each other broker of the list")]
    what = (
        f"messages of clients of {brokers[0].where} do not reach clients of {', '.join(separate)}: clients that are "
        "connected to different brokers do not reach one another"
    )
    do = "use the nodes of one cluster, or end all but one of them (docs/operations.md#several-brokers)"
    return [warning(NAME, what, do)]


async def _can_receive(broker: MqttSettings, sender: MqttBus, name: str) -> bool:
    """Publish messages until a client of ``broker`` receives one; return whether it does within ``ARRIVAL_S``.

    ``name`` is a client id. Raises BusError.
    """
    topic = topics.CAMERA_FRAME.at(ns="default", camera=name).text
    arrived = asyncio.Event()
    async with MqttBus(name, broker) as receiver:
        await receiver.wait_connected(CONNECT_S)
        await receiver.listen(topic, 1, lambda _: arrived.set(), 0)
        try:
            async with asyncio.timeout(ARRIVAL_S):
                while not arrived.is_set():
                    await sender.send(Packet(topic, b""))
                    await asyncio.sleep(REPEAT_S)
        except TimeoutError:
            return arrived.is_set()
    return True
