"""Assembles the global manager: one object on any bus and any cluster, with one group of tasks."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
from aiohttp import web

from halimede import __version__, codec
from halimede.blobs.admin import BlobNode, ManagedCache
from halimede.blobs.uris import GM
from halimede.bus import Announcement, Bus, Delivery, Packet
from halimede.bus.connection import ReconnectingBus
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.bus.port import refused_names
from halimede.errors import DisconnectedError, HalimedeError, InvalidFieldError, RefusedError, first_error
from halimede.log import RateLimitedLogger
from halimede.messages import GmPresence
from halimede.models import Cache
from halimede.observe import HttpServer
from halimede.observe.metrics import registry
from halimede.system.runtime import brief_collections
from halimede.topics import GM_PRESENCE
from services.gm.api import ApiServer
from services.gm.cluster.port import Cluster, Editor, Memory
from services.gm.cluster.sqlite_file import StoreError
from services.gm.control_plane import ControlPlane
from services.gm.dashboard.feed import DashboardFeed
from services.gm.dashboard.routes import DashboardRoutes, page_token
from services.gm.prometheus import GmMetrics
from services.gm.upstream import Upstream
from services.gm.workloads.pod_settings import PodSettings

log = structlog.get_logger()
#: seconds between two writes of reports to the store
REMEMBER_EVERY = 1.0
#: seconds between two checks of the store: a fault must be reported within 15 s
REPAIR_EVERY = 5.0
#: seconds between two log lines that the broker is not reachable
COMPLAIN_EVERY = 30.0
CLIENT_ID = "halimede-gm"
#: seconds: to connect to the broker, for the retained message to arrive after the subscription, and for a GM that runs
#: to answer, which may be about to connect again
CONNECT_S, RETAINED_S, ANSWER_S = 2.0, 0.3, 15.0
#: seconds of one attempt to reach the broker for a check; seconds after it in which connections may be made
CHECK_S, PERMITTED_S = 30.0, 5.0
#: bytes that the store may hold: outside and inside a pod (there the folder is small unless a volume is mounted)
MOST_BYTES, MOST_IN_POD, VARIABLE = 20 * 10**9, 32 * 10**6, "HALIMEDE_BLOB_BYTES"


class GlobalManager:
    """Runs until cancelled: pass a bus that was not entered yet and an open cluster, then call ``run``.

    With a second bus (``quiet``), messages of nodes have their own connection. Users' requests, and the broker's
    acknowledgements of GM's messages, then do not wait behind a flood of them. ``pods``: the settings of worker pods,
    in a cluster that runs workers as pods; without them nodes start workers. ``blobs``: serves files. ``tls``: the
    connections to the broker have TLS. ``reconnect_check``: permits connections.
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
        tls: bool = False,
        reconnect_check: ReconnectCheck | None = None,
    ) -> None:
        self._bus = bus
        self._reconnect_check = reconnect_check
        self._quiet = quiet
        self._blobs = blobs
        self._connections = [link for link in (bus, quiet, blobs.bus if blobs else None) if link]
        self._cluster = cluster
        self._plane = ControlPlane(bus, cluster, quiet, pods)
        self._plane.observer.connections, self._plane.observer.tls = self._connections, tls
        self._upstream = Upstream(bus, cluster, self._plane)
        self._api = ApiServer(quiet or bus, cluster, self._plane, editor)
        #: the data of the dashboard, and the metrics for Prometheus
        self.feed = DashboardFeed(bus, cluster, self._plane, editor)
        self.metrics = GmMetrics(bus, cluster, self._plane, self._api, self._upstream)
        self._log = RateLimitedLogger()
        self._connection = 0
        #: the address of both, published in GM's presence
        self.http = ""

    async def run(self) -> None:
        """Work until cancelled; then publish that GM is offline, and store the latest reports."""
        plane = self._plane
        if self._blobs:
            plane.files.open(self._blobs.bus, self._blobs.store)
        self._bus.announce = self._announcement
        # a GM that was suspended must not reconnect: it would take the connection of the GM in its place
        for bus in self._connections:
            bus.obstacle = self._obstacle
        self._bus.on_connect(self._connected)
        if self._quiet:
            self._quiet.on_connect(self._quiet_connected)
        await plane.load()
        log.info("global manager started", epoch=self._cluster.epoch, version=__version__, http=self.http)
        try:
            async with self._bus, self._quiet or contextlib.nullcontext():
                # Subscribe before the first connection: it publishes the birth, which nodes answer with a sync.
                # The most frequent messages first: the subscription of a topic is the first one that matches.
                await self._upstream.start()
                await self._bus.subscribe(GM_PRESENCE.filter(), self._on_presence)
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
                            "gm store": self._repair_always(),
                            "gm heartbeats": plane.reconciler.run_heartbeats(),
                            "gm observer": plane.observer.run(),
                            "gm page": self.feed.run(),
                            "gm broker watch": self._complain(),
                        }.items():
                            group.create_task(work, name=name)
                        if self._blobs:
                            group.create_task(plane.files.run(), name="gm files of workers")
                            group.create_task(self._blobs.run(), name="gm blobs")
                        if self._reconnect_check:
                            group.create_task(self._reconnect_check.run(), name="gm reconnect check")
        finally:
            await self._remember()
            log.info("global manager stopped", epoch=self._cluster.epoch)

    def _obstacle(self) -> str:
        """Return why this GM must not connect now."""
        if not self._cluster.leads:
            return "another global manager leads"
        return self._reconnect_check.obstacle() if self._reconnect_check else ""

    def _announcement(self) -> Announcement:
        """Return birth and will; the bus calls this right before each connection."""
        self._plane.connecting()
        self._connection += 1
        birth = partial(self._presence, online=True)
        return Announcement(birth(), self._presence(online=False), birth)

    def _presence(self, *, online: bool) -> Packet:
        presence = GmPresence(
            epoch=self._cluster.epoch,
            online=online,
            version=__version__,
            store=self._cluster.identity,
            http=self.http,
            refused=refused_names(self._connections, birth=GM_PRESENCE.at().text) if online else [],
            connection=self._connection,
        )
        return Packet(
            topic=str(GM_PRESENCE.at()),
            payload=codec.encode(GM_PRESENCE, presence),
            qos=GM_PRESENCE.qos,
            retain=GM_PRESENCE.retain,
        )

    async def _on_presence(self, delivery: Delivery[GmPresence]) -> None:
        """Publish the birth again after a message of a GM with another store that GM is offline.

        That GM asks before its start whether another one runs, or it has ended.
        """
        presence = delivery.body
        if not presence.online and presence.store != self._cluster.identity and not delivery.packet.retain:
            with contextlib.suppress(DisconnectedError):  # the next connection publishes it
                await self._bus.send(self._presence(online=True))

    async def _connected(self) -> None:
        self._plane.reconnected()

    async def _quiet_connected(self) -> None:
        self._plane.publish_all()

    async def _complain(self) -> None:
        """Log periodically that the broker is not reachable: the bus logs it only once."""
        while True:
            try:
                await self._bus.wait_connected(COMPLAIN_EVERY)
            except DisconnectedError as error:
                log.warning("broker not reached", error=str(error))
            else:
                await asyncio.sleep(COMPLAIN_EVERY)

    async def _remember_always(self) -> None:
        while True:
            await asyncio.sleep(REMEMBER_EVERY)
            await self._remember()

    async def _repair_always(self) -> None:
        while True:
            await asyncio.sleep(REPAIR_EVERY)
            await self._cluster.repair()

    async def _remember(self) -> None:
        """Store what nodes reported since the last call: a thousand reports are one write."""
        reports, nodes = self._plane.reports, self._plane.nodes
        memory = Memory(reports.take_dirty(), nodes.take_dirty())
        try:
            await self._cluster.remember(memory)
        except StoreError as error:
            reports.put_back(memory.reports)
            nodes.put_back(memory.nodes)
            self._log.warning("reports not stored", error=str(error))


@dataclass(frozen=True, slots=True)
class ManagerProcess:
    """One GM as a process: its connections to the broker, its store, dashboard, metrics and health checks.

    Call it with an open cluster: it works until it is cancelled. ``home`` holds the dashboard's token.
    """

    broker: MqttSettings
    home: Path
    http: str
    or_any: bool = False

    async def __call__(self, cluster: Cluster, editor: Editor | None = None, pods: PodSettings | None = None) -> None:
        """Run a GM. Raises HalimedeError if a GM with another store is connected to the broker."""
        control = self.broker.for_control()
        make_check_bus = partial(MqttBus, f"{CLIENT_ID}-look", control)
        is_checked = await refuse_a_second(make_check_bus(), cluster.identity)
        quiet = MqttBus(f"{CLIENT_ID}-quiet", control)
        blobs = BlobServing(
            MqttBus(f"{CLIENT_ID}-blobs", self.broker), self.home / "blobs", most_bytes(in_pod=pods is not None)
        )
        bus, tls = MqttBus(CLIENT_ID, control), self.broker.secure
        check = ReconnectCheck(cluster, [bus, quiet, blobs.bus], make_check_bus)
        if is_checked:
            check.permit()
        manager = GlobalManager(
            bus, cluster, editor, quiet=quiet, blobs=blobs, pods=pods, tls=tls, reconnect_check=check
        )
        metrics, page = manager.metrics, DashboardRoutes(manager.feed, page_token(self.home, self.http))

        def routes(application: web.Application) -> None:
            metrics.add_to(application)
            page.add_to(application)

        registered = registry("gm", metrics.collect)
        shown = HttpServer(self.http, health=metrics.health(), registry=registered, routes=routes, or_any=self.or_any)
        async with shown as server:
            manager.http = server.url
            with brief_collections():
                await manager.run()


async def refuse_a_second(bus: Bus, identity: str) -> bool:
    """Raise HalimedeError when a GM of another store is online. ``bus`` is a connection that was not entered yet.

    Return whether the broker was reached: while it is not, no other GM can work either.
    """
    async with bus:
        try:
            await bus.wait_connected(CONNECT_S)
            await _refuse_online(bus, identity)
        except DisconnectedError:
            return False
    return True


async def _refuse_online(bus: Bus, identity: str, *, only_answering: bool = False) -> None:
    """Raise HalimedeError when a GM of another store is online, DisconnectedError if the connection ends before.

    Two GMs with two stores would compete for nodes, which follow only one of them. The lock file prevents two processes
    on one store; this function reads the retained presence of another GM before this GM's birth replaces it. That
    message may outlive its GM if the broker ended with it. So this function publishes that GM is offline, which is not
    retained, and a GM that runs answers with its birth. An earlier version does not answer: its presence has no number
    of its connection. It counts as online, except if ``only_answering``.
    """
    presences: asyncio.Queue[Delivery[GmPresence]] = asyncio.Queue(16)

    async def on_presence(delivery: Delivery[GmPresence]) -> None:
        if not presences.full():
            presences.put_nowait(delivery)

    def is_other(presence: GmPresence) -> bool:
        return presence.online and presence.store not in {"", identity}

    await bus.subscribe(GM_PRESENCE.filter(), on_presence)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RETAINED_S):
            other = (await presences.get()).body
        if not is_other(other) or (only_answering and not other.connection):
            return
        if other.connection:
            log.info("another global manager is asked whether it runs", store=other.store, seconds=ANSWER_S)
            question = GmPresence(epoch=0, online=False, version=__version__, store=identity)
            payload = codec.encode(GM_PRESENCE, question)
            await bus.send(Packet(GM_PRESENCE.at().text, payload, qos=GM_PRESENCE.qos))
            async with asyncio.timeout(ANSWER_S):
                answer = await presences.get()
                while answer.packet.retain or not is_other(answer.body):  # after a reconnect, or the question itself
                    answer = await presences.get()
        raise HalimedeError(
            f"another global manager (store {other.store}) is online on this broker: stop it, or give this one a"
            " separate broker or topic prefix, such as --broker mqtt://host:1883/site1"
        )


class ReconnectCheck:
    """Permits GM's connections only if no GM with another store has taken its place.

    Another one starts when this one hangs or is cut off from the broker. Both have the same client ids: after a
    reconnect each would end the connections of the other. So this GM looks first, with another client id, and ends if
    the other one answers. ``make_bus`` returns a connection for that.
    """

    def __init__(self, cluster: Cluster, connections: Sequence[Bus], make_bus: Callable[[], ReconnectingBus]) -> None:
        self._cluster = cluster
        self._connections = connections
        self._make_bus = make_bus
        self._check_bus: ReconnectingBus | None = None
        self._due = asyncio.Event()
        self._permitted_until = -math.inf

    def permit(self) -> None:
        """Permit connections for the next seconds."""
        self._permitted_until = asyncio.get_running_loop().time() + PERMITTED_S

    def obstacle(self) -> str:
        """Return why a connection must not be made yet, and start the check for it; empty if it may be made."""
        if asyncio.get_running_loop().time() < self._permitted_until or any(bus.connected for bus in self._connections):
            return ""
        self._due.set()
        if self._check_bus is None or self._check_bus.connected:
            return "another global manager may run"
        return self._check_bus.cause

    async def run(self) -> None:
        """Check when a connection shall be made, until cancelled. Raises HalimedeError if another GM runs."""
        while True:
            await self._due.wait()
            self._check_bus = self._make_bus()
            async with self._check_bus:
                try:
                    await self._check_bus.wait_connected(CHECK_S)
                    await _refuse_online(self._check_bus, self._cluster.identity, only_answering=True)
                except DisconnectedError:
                    continue
                except RefusedError as error:  # the broker's rules: GM's own connections report them as well
                    log.warning("not known whether another global manager runs", error=str(error))
                self._due.clear()
                self.permit()


class BlobServing(BlobNode):
    """Serves files over the bus: operators fill the store (``halimede blob put``), nodes request files from it.

    ``run`` it in addition to GM's other tasks. ``bus`` is its own connection, not entered yet.
    """

    def __init__(self, bus: Bus, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        super().__init__(bus, GM, ManagedCache(Cache(folder), most_bytes, removable=True))


def most_bytes(*, in_pod: bool) -> int:
    """Return the limit of the store in bytes, by the environment. Raises InvalidFieldError."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return MOST_IN_POD if in_pod else MOST_BYTES
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**63):
        raise InvalidFieldError(VARIABLE, text, "write a number of bytes, such as 20000000000")
    return int(text)
