"""The worlds in which a bus has to behave the same: memory, and Mosquitto behind a proxy that can cut it off.

Mosquitto is a world with the stock client, and another one with the lean client.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, Protocol

from halimede.bus import Bus
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.message import Announce
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.bus.settings import Client
from services.broker import MosquittoProcess
from tests.proxy import Proxy
from tests.waiting import patience

CONNECT_S = 10.0


class World(Protocol):
    """A broker and its clients. Buses made here end with the test."""

    def make(self, client_id: str, announce: Announce | None = None, **options: Any) -> Bus:
        """Return a bus that is not entered yet."""

    async def connect(self, client_id: str, announce: Announce | None = None, **options: Any) -> Bus:
        """Return a bus that is connected."""

    def cut(self, bus: Bus) -> None:
        """Take its network away."""

    def heal(self, bus: Bus) -> None:
        """Give it back."""

    async def restart(self) -> None:
        """Kill the broker and start it empty."""


class MemoryWorld:
    def __init__(self, broker: MemoryBroker, stack: AsyncExitStack) -> None:
        self.broker = broker
        self._stack = stack

    def make(self, client_id: str, announce: Announce | None = None, **options: Any) -> Bus:
        return MemoryBus(client_id, self.broker, announce, **options)

    async def connect(self, client_id: str, announce: Announce | None = None, **options: Any) -> Bus:
        return await _entered(self._stack, self.make(client_id, announce, **options))

    def cut(self, bus: Bus) -> None:
        assert isinstance(bus, MemoryBus)
        bus.cut()

    def heal(self, bus: Bus) -> None:
        assert isinstance(bus, MemoryBus)
        bus.heal()

    async def restart(self) -> None:
        self.broker.restart()


class MqttWorld:
    def __init__(self, broker: MosquittoProcess, stack: AsyncExitStack, client: Client) -> None:
        self.broker = broker
        self._stack = stack
        self._client: Client = client
        self._proxies: dict[Bus, Proxy] = {}

    def make(self, client_id: str, announce: Announce | None = None, **options: Any) -> Bus:
        return MqttBus(client_id, MqttSettings("127.0.0.1", self.broker.port, client=self._client, **options), announce)

    async def connect(self, client_id: str, announce: Announce | None = None, **options: Any) -> Bus:
        proxy = await self._stack.enter_async_context(Proxy(self.broker.port))
        bus = MqttBus(client_id, MqttSettings("127.0.0.1", proxy.port, client=self._client, **options), announce)
        self._proxies[bus] = proxy
        return await _entered(self._stack, bus)

    def cut(self, bus: Bus) -> None:
        self._proxies[bus].cut()

    def heal(self, bus: Bus) -> None:
        self._proxies[bus].heal()

    async def restart(self) -> None:
        await self.broker.restart()


async def _entered(stack: AsyncExitStack, bus: Bus) -> Bus:
    await stack.enter_async_context(bus)
    await bus.wait_connected(patience(CONNECT_S))
    return bus
