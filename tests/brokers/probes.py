"""What a broker lacks, and what it does at its limits: many retained messages, more messages than a client handles."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.cli.doctor import broker_features, latency
from tests.brokers.installation import Installation
from tests.brokers.process import without_users
from tests.ports import free_port

#: retained messages that are published within a second, and then cleared; bytes of each
RETAINED, RETAINED_BYTES = 3000, 500
#: messages for one subscriber, seconds that it needs for each hundred, and bytes of each
FLOOD, PAUSE_S, FLOOD_BYTES = 30_000, 0.02, 200
#: messages that are on their way to the broker at a time
WINDOW = 500
#: reason codes of a message that a broker took: with and without a subscriber
ACCEPTED = (0, 16)
#: seconds from a broker's first connection until it is tried
SETTLED_S = 10.0
#: seconds of one wait; seconds without a message after which no more will come
WAIT_S, QUIET_S = 120.0, 3.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a broker kept and delivered.

    ``retained``: retained messages that a later subscriber receives, of ``RETAINED``; ``uncleared``: those after all
    were cleared. ``flooded``: messages of ``FLOOD`` that a busy subscriber received. ``connections``: how often it had
    to connect; 1 if its session did not end.
    """

    retained: int
    uncleared: int
    flooded: int
    connections: int


class Counter:
    """A subscriber that counts messages with a body, after ``pause_s`` for each hundred."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.count = 0
        self._pause_s = pause_s
        self._last = 0.0

    async def receive(self, packet: Packet) -> None:
        self.count += bool(packet.payload)
        self._last = asyncio.get_running_loop().time()
        if self._pause_s and self.count % 100 == 0:
            await asyncio.sleep(self._pause_s)

    async def wait_quiet(self, most: int) -> None:
        """Wait until all of ``most`` messages have come, or none comes any more."""
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        async with asyncio.timeout(WAIT_S):
            while self.count < most and loop.time() - self._last < QUIET_S:
                await asyncio.sleep(0.05)


async def try_limits(installation: Installation, folder: Path) -> Limits:
    """Try a broker with halimede's limits."""
    async with without_users(installation, folder, free_port()) as broker:
        # EMQX opens its port some seconds before it keeps retained messages and knows its access rules
        await asyncio.sleep(SETTLED_S)
        retained, remaining = await try_retained(broker.url)
        flooded, connections = await try_flood(broker.url)
    return Limits(retained, remaining, flooded, connections)


async def examine(installation: Installation, folder: Path) -> list[str]:
    """Return what ``halimede doctor`` finds a broker to lack, with halimede's limits."""
    async with without_users(installation, folder, free_port()) as broker:
        await asyncio.sleep(SETTLED_S)
        settings = MqttSettings.from_url(broker.url)
        async with MqttBus("probe-doctor", settings) as bus:
            await bus.wait_connected(WAIT_S)
            grants, software = bus.grants, broker_features.recognize(await latency.broker_version(bus))
        checks = broker_features.limits(grants, software)
        checks += await broker_features.examine_features(settings, grants, software)
    return [check.found for check in checks if check.level != "ok"]


async def try_retained(url: str) -> tuple[int, int]:
    """Publish retained messages, read them, clear them, read again; return both counts."""
    async with MqttBus("probe-publisher", url) as publisher:
        await publisher.wait_connected(WAIT_S)
        await publish(publisher, [Packet(f"probe/{i}", bytes(RETAINED_BYTES), retain=True) for i in range(RETAINED)])
        stored = await read_retained(url, RETAINED)
        await publish(publisher, [Packet(f"probe/{i}", b"", retain=True) for i in range(RETAINED)])
    return stored, await read_retained(url, 1)


async def read_retained(url: str, most: int) -> int:
    """Return how many retained messages a new subscriber receives."""
    counter = Counter()
    async with MqttBus("probe-reader", url) as reader:
        await reader.wait_connected(WAIT_S)
        await reader.listen("probe/+", 1, counter.receive, RETAINED)
        await counter.wait_quiet(most)
    return counter.count


async def try_flood(url: str) -> tuple[int, int]:
    """Send more than a subscriber handles at once; return what it received, and how often it connected."""
    counter = Counter(PAUSE_S)
    async with MqttBus("probe-flooded", url) as busy, MqttBus("probe-flooding", url) as publisher:
        await asyncio.gather(busy.wait_connected(WAIT_S), publisher.wait_connected(WAIT_S))
        await busy.listen("flood", 1, counter.receive, FLOOD)
        await publish(publisher, [Packet("flood", bytes(FLOOD_BYTES))] * FLOOD)
        await counter.wait_quiet(FLOOD)
    return counter.count, busy.stats.connects


async def publish(bus: MqttBus, packets: list[Packet]) -> None:
    """Publish messages, ``WINDOW`` at a time; again where a broker that is still starting refuses one."""
    window = asyncio.Semaphore(WINDOW)

    async def send(packet: Packet) -> None:
        async with window:
            while await bus.send(packet, WAIT_S) not in ACCEPTED:
                await asyncio.sleep(0.1)

    await asyncio.gather(*(send(packet) for packet in packets))
