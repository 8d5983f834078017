"""Handlers that keep what they get, and one that can be held up; and a client that keeps the packets of all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from halimede.bus import Delivery, Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from tests.simulated import eventually

M = TypeVar("M")


class Inbox(Generic[M]):
    """Collects deliveries. ``hold`` keeps handlers from returning until ``release``."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery[M]] = []
        self.cleared: list[Mapping[str, str]] = []
        self.started = 0
        self._free = asyncio.Event()
        self._free.set()

    async def __call__(self, delivery: Delivery[M]) -> None:
        self.started += 1
        await self._free.wait()
        self.deliveries.append(delivery)

    async def clear(self, names: Mapping[str, str]) -> None:
        self.cleared.append(names)

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    @property
    def bodies(self) -> list[M]:
        return [delivery.body for delivery in self.deliveries]

    def read(self, field: Callable[[M], Any]) -> list[Any]:
        return [field(delivery.body) for delivery in self.deliveries]

    async def has(self, count: int) -> None:
        """Wait until that many were handled, and fail if there are more."""
        await eventually(lambda: len(self.deliveries) >= count)
        assert len(self.deliveries) == count


class Packets(list[Packet]):
    """Collects packets. ``times``: when each came, by the loop's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    async def __call__(self, packet: Packet) -> None:
        self.append(packet)
        self.times.append(asyncio.get_running_loop().time())

    @property
    def payloads(self) -> list[bytes]:
        return [bytes(packet.payload) for packet in self]


@asynccontextmanager
async def spying(broker: MemoryBroker, topics: str = "#") -> AsyncIterator[Packets]:
    """Collect the packets of a broker in memory."""
    packets = Packets()
    async with MemoryBus("spy", broker) as bus:
        await bus.wait_connected(10)
        await bus.listen(topics, 1, packets, 10_000)
        yield packets
