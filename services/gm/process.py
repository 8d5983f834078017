"""Runs one GM as a process does: its connections to the broker, its files, its page, metrics and health."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.observe import HttpServer
from halimede.observe.metrics import registry
from halimede.system.garbage_collection import brief_collections
from services.gm.app import GlobalManager
from services.gm.blobs import BlobServing, most_bytes
from services.gm.cluster.port import Cluster, Editor
from services.gm.dashboard.routes import DashboardRoutes
from services.gm.dashboard.token import page_token
from services.gm.single_instance import refuse_a_second
from services.gm.workloads.pod_settings import PodSettings

CLIENT_ID = "halimede-gm"


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
