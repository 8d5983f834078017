"""The global manager, wired: one object on any bus and any cluster, one group of tasks, one way to end."""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from halimede import __version__, codec
from halimede.bus import Announcement, Bus, Packet
from halimede.errors import DisconnectedError, first_error
from halimede.messages import GmPresence
from halimede.topics import GM_PRESENCE
from services.gm.api import ApiServer
from services.gm.blobs import BlobServing
from services.gm.cluster.port import Cluster, Editor, Memory
from services.gm.cluster.sqlite_file import StoreError
from services.gm.control_plane import ControlPlane
from services.gm.dashboard.feed import DashboardFeed
from services.gm.prometheus import GmMetrics
from services.gm.upstream import Upstream
from services.gm.workloads.pod_settings import PodSettings

log = structlog.get_logger()

#: seconds between two times that reports are remembered
REMEMBER_EVERY = 1.0
#: seconds between two complaints that the broker is away
COMPLAIN_EVERY = 30.0


class GlobalManager:
    """Give it a bus that has not been entered and an open cluster, and ``run`` it until cancelled.

    With a second bus (``quiet``) what nodes say has a connection of its own, so that users' requests, and the broker's
    acknowledgements of what GM says, do not wait behind a flood of it. ``pods``: how workers run in a cluster that runs
    pods; without, nodes start them. ``blobs``: gives files.
    """

    def __init__(
        self,
        bus: Bus,
        cluster: Cluster,
        editor: Editor | None = None,
        *,
        quiet: Bus | None = None,
        blobs: BlobServing | None = None,
        pods: PodSettings | None = None,
    ) -> None:
        self._bus = bus
        self._quiet = quiet
        self._blobs = blobs
        self._cluster = cluster
        self._plane = ControlPlane(bus, cluster, quiet, pods)
        self._upstream = Upstream(bus, cluster, self._plane)
        self._api = ApiServer(quiet or bus, cluster, self._plane, editor)
        #: what the web page shows, and what Prometheus reads
        self.feed = DashboardFeed(bus, cluster, self._plane, editor)
        self.figures = GmMetrics(bus, cluster, self._plane, self._api, self._upstream)
        #: where they are, said in our presence
        self.http = ""

    async def run(self) -> None:
        """Work until cancelled; then say goodbye on the bus and keep what was counted."""
        plane = self._plane
        self._bus.announce = self._announcement
        # one that was stopped for a while would take the connection of whoever has taken over
        for bus in filter(None, (self._bus, self._quiet, self._blobs.bus if self._blobs else None)):
            bus.may_connect = lambda: self._cluster.leads
        self._bus.on_connect(self._connected)
        if self._quiet:
            self._quiet.on_connect(self._quiet_connected)
        await plane.load()
        log.info("global manager starts", epoch=self._cluster.epoch, version=__version__, http=self.http)
        try:
            async with self._bus, self._quiet or contextlib.nullcontext():
                # Subscriptions before the first connection, which announces us: nodes answer with a sync at once.
                await self._upstream.start()
                await self._api.start()
                await self.feed.start()
                with first_error():
                    async with asyncio.TaskGroup() as group:
                        for name, work in {
                            "gm changes": plane.follow(),
                            "gm nodes": plane.watch(),
                            "gm reconcile": plane.queue.run(),
                            "gm status topics": plane.display.queue.run(),
                            "gm old status topics": plane.display.tidy(self._bus),
                            "gm syncs": plane.syncs.queue.run(),
                            "gm downstream": plane.downstream.queue.run(),
                            "gm intake": self._upstream.intake.run(),
                            "gm memory": self._remember_always(),
                            "gm page": self.feed.run(),
                            "gm broker watch": self._complain(),
                        }.items():
                            group.create_task(work, name=name)
                        if self._blobs:
                            group.create_task(self._blobs.run(), name="gm blobs")
        finally:
            await self._remember()
            log.info("global manager stopped", epoch=self._cluster.epoch)

    def _announcement(self) -> Announcement:
        """Return birth and will; the bus asks for them right before each connection."""
        self._plane.connecting()
        epoch, store = self._cluster.epoch, self._cluster.identity
        birth, will = (
            Packet(
                topic=str(GM_PRESENCE.at()),
                payload=codec.encode(
                    GM_PRESENCE,
                    GmPresence(epoch=epoch, online=online, version=__version__, store=store, http=self.http),
                ),
                qos=GM_PRESENCE.qos,
                retain=GM_PRESENCE.retain,
            )
            for online in (True, False)
        )
        return Announcement(birth, will)

    async def _connected(self) -> None:
        self._plane.reconnected()

    async def _quiet_connected(self) -> None:
        self._plane.say_all()

    async def _complain(self) -> None:
        """Say now and then that the broker is away: the bus itself says it once."""
        while True:
            try:
                await self._bus.wait_connected(COMPLAIN_EVERY)
            except DisconnectedError as error:
                log.warning("still waiting for the broker", error=str(error))
            else:
                await asyncio.sleep(COMPLAIN_EVERY)

    async def _remember_always(self) -> None:
        while True:
            await asyncio.sleep(REMEMBER_EVERY)
            await self._remember()

    async def _remember(self) -> None:
        """Keep what nodes reported since the last time: a thousand reports are one write."""
        reports, nodes = self._plane.reports, self._plane.nodes
        memory = Memory(reports.take_dirty(), nodes.take_dirty())
        if not memory.reports and not memory.nodes:
            return
        try:
            await self._cluster.remember(memory)
        except StoreError as error:
            reports.put_back(memory.reports)
            nodes.put_back(memory.nodes)
            log.warning("reports not kept", error=str(error))
