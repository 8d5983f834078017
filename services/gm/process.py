"""Runs one GM as a process does: its connections to the broker, its files, its page, metrics and health."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from halimede.bus import Bus, Delivery
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.errors import DisconnectedError, HalimedeError
from halimede.messages import GmPresence
from halimede.observe import HttpServer
from halimede.observe.metrics import registry
from halimede.system.runtime import brief_collections
from halimede.topics import GM_PRESENCE
from services.gm.app import GlobalManager
from services.gm.blobs import BlobServing, most_bytes
from services.gm.cluster.port import Cluster, Editor
from services.gm.dashboard.routes import DashboardRoutes, page_token
from services.gm.workloads.pod_settings import PodSettings

CLIENT_ID = "halimede-gm"
#: seconds: for the broker to be there, and for the retained message to follow the subscription
CONNECT_S, LOOK_S = 2.0, 0.3


@dataclass(frozen=True, slots=True)
class ManagerProcess:
    """Call it with an open cluster: it works until it is cancelled. ``home`` holds the page's token."""

    broker: MqttSettings
    home: Path
    http: str
    or_any: bool = False

    async def __call__(self, cluster: Cluster, editor: Editor | None = None, pods: PodSettings | None = None) -> None:
        """Run a GM. Raises HalimedeError when another one, with another source of truth, is on the broker."""
        await refuse_a_second(MqttBus(f"{CLIENT_ID}-look", self.broker), cluster.identity)
        quiet = MqttBus(f"{CLIENT_ID}-quiet", self.broker)
        blobs = BlobServing(
            MqttBus(f"{CLIENT_ID}-blobs", self.broker), self.home / "blobs", most_bytes(in_pod=pods is not None)
        )
        manager = GlobalManager(MqttBus(CLIENT_ID, self.broker), cluster, editor, quiet=quiet, blobs=blobs, pods=pods)
        figures, page = manager.figures, DashboardRoutes(manager.feed, page_token(self.home, self.http))

        def routes(application: web.Application) -> None:
            figures.add_to(application)
            page.add_to(application)

        registered = registry("gm", figures.collect)
        shown = HttpServer(self.http, health=figures.health(), registry=registered, routes=routes, or_any=self.or_any)
        async with shown as server:
            manager.http = server.url
            with brief_collections():
                await manager.run()


async def refuse_a_second(bus: Bus, identity: str) -> None:
    """Raise HalimedeError when a GM of another store is online. ``bus`` is one of our own, not entered yet.

    Two GMs with two stores would compete for nodes, which follow only one of them. The lock file keeps two processes
    from one store; this reads the retained presence of another GM before our own birth replaces it. While the broker is
    away no other GM can work, either.
    """
    seen: list[GmPresence] = []
    found = asyncio.Event()

    async def look(delivery: Delivery[GmPresence]) -> None:
        seen.append(delivery.body)
        found.set()

    async with bus:
        with contextlib.suppress(DisconnectedError, TimeoutError):
            await bus.wait_connected(CONNECT_S)
            await bus.subscribe(GM_PRESENCE.filter(), look)
            async with asyncio.timeout(LOOK_S):
                await found.wait()  # there is one such message at most
    for other in seen:
        if other.online and other.store and other.store != identity:
            raise HalimedeError(
                f"another global manager (store {other.store}) is online on this broker: stop it, or give this one a"
                " broker or a topic prefix of its own, such as --broker mqtt://host:1883/site1"
            )
