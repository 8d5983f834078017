"""A guarded broker for tests: a site with certificates, its users as clients, and an auditor who sees everything."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from halimede.access.site import Principal, Site
from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.errors import RefusedError
from halimede.topic import Role
from services.broker import MosquittoProcess
from tests.brokers.installation import make_site, may_do_everything, under_test
from tests.brokers.process import of_site
from tests.ports import free_port
from tests.waiting import patience

AUDITOR = Principal(Role.OPERATOR, "auditor")
SITE = Site(nodes=["edge0", "edge1"], cameras=["cam0", "cam1"], operators=["admin", "auditor"], consumers=["viewer"])
PATIENCE = 30


@dataclass
class Client:
    """One user's connection, the tags (bodies) of what it was sent, and filters that the broker has refused.

    Mosquitto refuses no filter: it delivers what the rules allow. EMQX refuses one that is wider than a rule.
    """

    principal: Principal
    bus: MqttBus
    heard: list[tuple[str, str]] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)

    async def publish(self, topic: str, tag: str) -> int:
        """Return the broker's reason code."""
        return await self.bus.send(Packet(topic, tag.encode()), PATIENCE)

    async def listen(self, filters: list[str]) -> None:
        async def subscribe(filter_: str) -> None:
            try:
                await self.bus.listen(filter_, 1, self._hear, 1000)
            except RefusedError:
                self.refused.add(filter_)

        await asyncio.gather(*(subscribe(filter_) for filter_ in filters))

    async def unlisten(self, filters: list[str]) -> None:
        await asyncio.gather(*(self.bus.unlisten(filter_) for filter_ in filters if filter_ not in self.refused))

    async def settle(self) -> None:
        """Return when all that the broker has for us is here: it answers after what it sent before."""
        await self.bus.send(Packet("nobody/may/publish/here", b""), PATIENCE)
        await asyncio.sleep(0.05)  # the handlers' turn

    async def _hear(self, packet: Packet) -> None:
        self.heard.append((packet.topic, packet.payload.decode(errors="replace")))


@dataclass
class AccessWorld:
    """The broker, its site's folder, and how to become anyone."""

    folder: Path
    broker: MosquittoProcess
    stack: contextlib.AsyncExitStack

    def settings(self, principal: Principal) -> MqttSettings:
        return MqttSettings.from_url(self.broker.url, credentials=self.folder / principal.folder)

    async def client(self, principal: Principal) -> Client:
        bus = MqttBus(f"client-{principal.username}", self.settings(principal))
        client = Client(principal, await self.stack.enter_async_context(bus))
        await bus.wait_connected(patience(PATIENCE))
        return client


@contextlib.asynccontextmanager
async def access_world(folder: Path) -> AsyncIterator[AccessWorld]:
    """Start a broker over TLS, for certificates alone."""
    site = msgspec.structs.replace(SITE, port=free_port())
    make_site(site, folder)
    may_do_everything(AUDITOR, site, folder)
    async with of_site(under_test(), site, folder, folder / "run") as broker, contextlib.AsyncExitStack() as stack:
        yield AccessWorld(folder, broker, stack)
