"""A guarded broker for tests: a site with certificates, its users as clients, and an auditor who sees everything."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from halimede.access.certs import make_certificates
from halimede.access.mosquitto import acl_file, listener_lines
from halimede.access.site import Principal, Site
from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.topic import Role
from services.broker import MosquittoProcess
from tests.ports import free_port
from tests.waiting import eventually, patience

AUDITOR = Principal(Role.OPERATOR, "auditor")
SITE = Site(nodes=["edge0", "edge1"], cameras=["cam0", "cam1"], operators=["admin", "auditor"], consumers=["viewer"])
PATIENCE = 30


@dataclass
class Client:
    """One user's connection, and the tags (bodies) of what it was sent."""

    principal: Principal
    bus: MqttBus
    heard: list[tuple[str, str]] = field(default_factory=list)

    async def publish(self, topic: str, tag: str) -> int:
        """Return the broker's reason code."""
        return await self.bus.send(Packet(topic, tag.encode()), PATIENCE)

    async def listen(self, filters: list[str]) -> None:
        await asyncio.gather(*(self.bus.listen(text, 1, self._hear, 1000) for text in filters))

    async def unlisten(self, filters: list[str]) -> None:
        await asyncio.gather(*(self.bus.unlisten(text) for text in filters))

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


def with_auditor(folder: Path) -> None:
    """Let the auditor do everything: rules that no real site has."""
    rules = acl_file(SITE).partition(f"user {AUDITOR.username}\n")[0]
    (folder / "broker" / "acl").write_text(f"{rules}user {AUDITOR.username}\ntopic readwrite #\n\n{_after(SITE)}")


def _after(site: Site) -> str:
    """Return the sections behind the auditor's."""
    rest = acl_file(site).partition(f"user {AUDITOR.username}\n")[2]
    return rest[rest.index("user ") :]


@contextlib.asynccontextmanager
async def access_world(folder: Path) -> AsyncIterator[AccessWorld]:
    """Start a broker over TLS, for certificates alone."""
    make_certificates(SITE, folder)
    with_auditor(folder)
    access = listener_lines(folder, tls=True)
    async with (
        MosquittoProcess(folder / "run", port=free_port(), access=access, secure=True) as broker,
        contextlib.AsyncExitStack() as stack,
    ):
        yield AccessWorld(folder, broker, stack)


async def until(true: Callable[[], bool]) -> None:
    """Wait for something to become so."""
    await eventually(true, PATIENCE)
