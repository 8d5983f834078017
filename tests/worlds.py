"""The worlds in which a bus has to behave the same: memory, and Mosquitto behind a proxy that can cut it off.

Mosquitto is a world with the stock client, and another one with the lean client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from halimede.bus import Bus
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.message import Announce
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.bus.settings import Client
from services.broker import MosquittoProcess
from tests.proxy import Proxy
from tests.waiting import patience

CONNECT_S = 10.0

B = TypeVar("B", bound=MemoryBus)


@asynccontextmanager
async def connected(bus: B) -> AsyncIterator[B]:
    """Enter a bus in memory, and yield it with its connection."""
    async with bus:
        await bus.wait_connected(patience(CONNECT_S))
        yield bus


class World:
    """A broker and its clients, here in memory. Buses made here end with the test."""

    def __init__(self, broker: Any, stack: AsyncExitStack) -> None:
        self.broker, self._stack = broker, stack

    def make(self, client_id: str, announce: Announce | None = None, **options: Any) -> Bus:
        """Return a bus that is not entered yet."""
        broker: MemoryBroker = self.broker
        return MemoryBus(client_id, broker, announce, **options)

    async def connect(self, client_id: str, announce: Announce | None = None, **options: Any) -> Bus:
        """Return a bus that is connected."""
        bus = await self._stack.enter_async_context(self.make(client_id, announce, **options))
        await bus.wait_connected(patience(CONNECT_S))
        return bus

    def cut(self, bus: Bus) -> None:
        """Take its network away."""
        self._network(bus).cut()

    def heal(self, bus: Bus) -> None:
        """Give it back."""
        self._network(bus).heal()

    def _network(self, bus: Bus) -> Any:
        return bus

    async def restart(self) -> None:
        """Kill the broker and start it empty."""
        self.broker.restart()


class MqttWorld(World):
    """Mosquitto, and a proxy for each bus that is connected."""

    def __init__(self, broker: MosquittoProcess, stack: AsyncExitStack, client: Client) -> None:
        super().__init__(broker, stack)
        self._client: Client = client
        self._proxies: dict[Bus, Proxy] = {}

    def make(self, client_id: str, announce: Announce | None = None, port: int | None = None, **options: Any) -> Bus:
        settings = MqttSettings("127.0.0.1", port or self.broker.port, client=self._client, **options)
        return MqttBus(client_id, settings, announce)

    async def connect(self, client_id: str, announce: Announce | None = None, **options: Any) -> Bus:
        proxy = await self._stack.enter_async_context(Proxy(self.broker.port))
        bus = await super().connect(client_id, announce, port=proxy.port, **options)
        self._proxies[bus] = proxy
        return bus

    def _network(self, bus: Bus) -> Proxy:
        return self._proxies[bus]

    async def restart(self) -> None:
        await self.broker.restart()
