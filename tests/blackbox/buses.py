"""The two brokers of the black-box suite: memory, and a real Mosquitto. Both can cut a worker off and restart."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Protocol

from halimede.bus import Announce, Bus
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.worker.main import connect_to
from services.broker import MosquittoProcess
from tests.proxy import Proxy
from tests.waiting import patience

CONNECT_S = 20.0
RECEIVE_MAXIMUM = 1000


class Connect(Protocol):
    """Makes one connection of a worker, as ``serve`` asks for it."""

    def __call__(
        self,
        client_id: str,
        *,
        announce: Announce | None = None,
        receive_maximum: int | None = None,
        session_s: int = 0,
    ) -> Bus:
        """Return a bus that is not entered yet."""


class Buses(Protocol):
    """A broker and its clients."""

    async def client(self, client_id: str) -> Bus:
        """Return a connected bus, which ends with the test."""

    async def connect_of(self, worker: str) -> Connect:
        """Return what makes the connections of one worker."""

    def cut(self, worker: str) -> None:
        """Break all connections of a worker until ``heal``."""

    def heal(self, worker: str) -> None:
        """Let a worker connect again."""

    async def restart(self) -> None:
        """Kill the broker and start it empty."""

    def address(self) -> str:
        """Return the broker's URL, empty for one that only this process can reach."""


class MemoryBuses:
    """A broker in this process."""

    def __init__(self, broker: MemoryBroker, stack: AsyncExitStack) -> None:
        self._broker = broker
        self._stack = stack
        self._workers: dict[str, list[MemoryBus]] = {}

    async def client(self, client_id: str) -> Bus:
        return await _entered(self._stack, MemoryBus(client_id, self._broker))

    async def connect_of(self, worker: str) -> Connect:
        buses = self._workers.setdefault(worker, [])

        def connect(
            client_id: str, *, announce: Announce | None = None, receive_maximum: int | None = None, session_s: int = 0
        ) -> Bus:
            most = receive_maximum or RECEIVE_MAXIMUM
            bus = MemoryBus(client_id, self._broker, announce, receive_maximum=most, session_s=session_s)
            buses.append(bus)
            return bus

        return connect

    def cut(self, worker: str) -> None:
        for bus in self._workers[worker]:
            bus.cut()

    def heal(self, worker: str) -> None:
        for bus in self._workers[worker]:
            bus.heal()

    async def restart(self) -> None:
        self._broker.restart()

    def address(self) -> str:
        return ""


class MqttBuses:
    """A real Mosquitto. Each worker reaches it through a proxy of its own."""

    def __init__(self, broker: MosquittoProcess, stack: AsyncExitStack) -> None:
        self._broker = broker
        self._stack = stack
        self._proxies: dict[str, Proxy] = {}

    async def client(self, client_id: str) -> Bus:
        return await _entered(self._stack, MqttBus(client_id, MqttSettings("127.0.0.1", self._broker.port)))

    async def connect_of(self, worker: str) -> Connect:
        proxy = await self._stack.enter_async_context(Proxy(self._broker.port))
        self._proxies[worker] = proxy
        return connect_to(MqttSettings("127.0.0.1", proxy.port))

    def cut(self, worker: str) -> None:
        self._proxies[worker].cut()

    def heal(self, worker: str) -> None:
        self._proxies[worker].heal()

    async def restart(self) -> None:
        await self._broker.restart()

    def address(self) -> str:
        return self._broker.url


async def _entered(stack: AsyncExitStack, bus: Bus) -> Bus:
    await stack.enter_async_context(bus)
    await bus.wait_connected(patience(CONNECT_S))
    return bus
