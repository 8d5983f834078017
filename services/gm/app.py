"""Assembles the global manager (GM): ``GlobalManager`` on any bus and cluster, ``ManagerProcess`` with real ones.

A bus is a connection to the broker. A cluster is where the resources are: GM's own store, or Kubernetes. GM publishes
its presence as a retained message: a birth at each connection, and a will that the broker publishes when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Awaitable, Callable, Sequence
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
#: MQTT client id of GM's main connection; the others append a word
CLIENT_ID = "halimede-gm"
#: seconds of the check for another GM: for a connection (at the start), then for the retained presence of the other GM,
#: then for the answer of that GM, which may be about to connect again
CONNECT_S, RETAINED_S, ANSWER_S = 2.0, 0.3, 15.0
#: seconds of one attempt to reach the broker for a check before a reconnect; seconds after a check in which connections
#: may be made
CHECK_S, PERMITTED_S = 30.0, 5.0
#: bytes that GM's store of files may hold, outside and inside a pod (there the folder is small unless a volume is
#: mounted), and the variable that overrides both
MOST_BYTES, MOST_IN_POD, VARIABLE = 20 * 10**9, 32 * 10**6, "HALIMEDE_BLOB_BYTES"


class GlobalManager:
    """One GM. Construct it with a bus that is not entered yet and an open cluster, then call ``run``.

    ``editor``: edits resources for users; None on Kubernetes, where ``kubectl`` does. ``quiet``: a second connection,
    so that users' requests and the broker's acknowledgements do not wait behind a flood of nodes' messages; None: the
    first one carries all. ``blobs``: serves files; None: there are none. ``pods``: settings of worker pods; None: nodes
    start workers themselves. ``tls``: whether the connections have TLS. ``reconnect_check``: permits connections; None:
    none is refused.
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
        #: all connections of this GM
        self._connections = [link for link in (bus, quiet, blobs.bus if blobs else None) if link]
        self._cluster = cluster
        self._plane = ControlPlane(bus, cluster, quiet, pods)
        self._plane.observer.connections, self._plane.observer.tls = self._connections, tls
        self._upstream = Upstream(bus, cluster, self._plane)
        self._api = ApiServer(quiet or bus, cluster, self._plane, editor)
        #: data of the web page, and metrics for Prometheus
        self.feed = DashboardFeed(bus, cluster, self._plane, editor)
        self.metrics = GmMetrics(bus, cluster, self._plane, self._api, self._upstream)
        self._log = RateLimitedLogger()
        #: number of the present connection since the start
        self._connection = 0
        #: URL of the web page and the metrics, which GM's presence publishes; empty: none. Set it before ``run``
        self.http = ""

    async def run(self) -> None:
        """Work until cancelled; then have the will published (GM is offline), and store the latest reports.

        Raises HalimedeError if the reconnect check finds another GM.
        """
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
                # Subscribe before the first connection: nodes answer its birth with a sync.
                # The most frequent messages first: the subscription of a topic is the first one that matches.
                await self._upstream.start()
                await self._bus.subscribe(GM_PRESENCE.filter(), self._on_presence)
                await self._api.start()
                await self.feed.start()
                await plane.occupancy.start()
                with first_error():
                    async with asyncio.TaskGroup() as group:
                        for name, work in {
                            "gm changes": plane.follow(),
                            "gm nodes": plane.watch(),
                            "gm reconcile": plane.queue.run(),
                            "gm status topics": plane.display.queue.run(),
                            "gm occupancy topics": plane.occupancy.queue.run(),
                            "gm old status topics": plane.display.clear_leftovers(self._bus),
                            "gm syncs": plane.syncs.queue.run(),
                            "gm downstream": plane.downstream.queue.run(),
                            "gm intake": self._upstream.intake.run(),
                            "gm memory": _repeat(self._remember, REMEMBER_EVERY),
                            "gm store": _repeat(self._cluster.repair, REPAIR_EVERY),
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
        """Return why this GM must not connect now; empty: it may."""
        if not self._cluster.leads:
            return "another global manager leads"
        return self._reconnect_check.obstacle() if self._reconnect_check else ""

    def _announcement(self) -> Announcement:
        """Return birth and will. The bus calls this right before each attempt to connect, which is counted here.

        From then on, each node must confirm that it is online.
        """
        self._plane.connecting()
        self._connection += 1
        birth = partial(self._presence, online=True)
        return Announcement(birth(), self._presence(online=False), birth)

    def _presence(self, *, online: bool) -> Packet:
        """Return the message with GM's presence: its birth (``online``), or its will."""
        presence = GmPresence(
            epoch=self._cluster.epoch,
            online=online,
            version=__version__,
            store=self._cluster.identity,
            http=self.http,
            refused=refused_names(self._connections, birth=GM_PRESENCE.at().text) if online else [],
            connection=self._connection,
        )
        payload = codec.encode(GM_PRESENCE, presence)
        return Packet(GM_PRESENCE.at().text, payload, qos=GM_PRESENCE.qos, retain=GM_PRESENCE.retain)

    async def _on_presence(self, delivery: Delivery[GmPresence]) -> None:
        """Publish the birth again when a message of another store says that GM is offline.

        With such a message a GM asks, before its start, whether another GM runs. It may also be the will of that GM.
        """
        presence = delivery.body
        if not presence.online and presence.store != self._cluster.identity and not delivery.packet.retain:
            with contextlib.suppress(DisconnectedError):  # the next connection publishes it
                await self._bus.send(self._presence(online=True))

    async def _connected(self) -> None:
        """Process a connection of the first bus."""
        self._plane.reconnected()

    async def _quiet_connected(self) -> None:
        """Process a connection of the second bus, which sends GM's messages."""
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

    async def _remember(self) -> None:
        """Store what nodes reported since the last call: a thousand reports are one write.

        If the store fails, log that, and let the next call store the same.
        """
        reports, nodes = self._plane.reports, self._plane.nodes
        memory = Memory(reports.take_dirty(), nodes.take_dirty())
        try:
            await self._cluster.remember(memory)
        except StoreError as error:
            reports.put_back(memory.reports)
            nodes.put_back(memory.nodes)
            self._log.warning("reports not stored", error=str(error))


async def _repeat(action: Callable[[], Awaitable[None]], every_s: float) -> None:
    """Call ``action`` every ``every_s`` seconds, the first time after the first pause, until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        await action()


@dataclass(frozen=True, slots=True)
class ManagerProcess:
    """One GM as a process: its connections to the broker, its store of files, web page, metrics and health checks.

    Call it with an open cluster: it works until it is cancelled.

    Attributes:
        broker: the broker's address, and the credentials for it.
        home: the folder with the store of files (``blobs``) and the page's token.
        http: host:port of page, metrics and health checks; ``off``: none.
        or_any: whether another free port may be used if that of ``http`` is in use.

    """

    broker: MqttSettings
    home: Path
    http: str
    or_any: bool = False

    async def __call__(self, cluster: Cluster, editor: Editor | None = None, pods: PodSettings | None = None) -> None:
        """Run a GM until cancelled. Raises HalimedeError if a GM with another store is connected to the broker.

        ``editor``: None on Kubernetes. ``pods``: the settings of worker pods; None: nodes start workers themselves.
        """
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
        gm = GlobalManager(bus, cluster, editor, quiet=quiet, blobs=blobs, pods=pods, tls=tls, reconnect_check=check)
        metrics, page = gm.metrics, DashboardRoutes(gm.feed, page_token(self.home, self.http))

        def routes(application: web.Application) -> None:
            metrics.add_to(application)
            page.add_to(application)

        registered = registry("gm", metrics.collect)
        shown = HttpServer(self.http, health=metrics.health(), registry=registered, routes=routes, or_any=self.or_any)
        async with shown as server:
            gm.http = server.url
            with brief_collections():
                await gm.run()


async def refuse_a_second(bus: Bus, identity: str) -> bool:
    """Raise HalimedeError if a GM of another store than ``identity`` is online. ``bus`` is not entered yet.

    Return False if the broker was not reached within 2 s, or the connection broke: then nothing was checked. While the
    broker is not reached, no other GM can work either.
    """
    async with bus:
        try:
            await bus.wait_connected(CONNECT_S)
            await _refuse_online(bus, identity)
        except DisconnectedError:
            return False
    return True


async def _refuse_online(bus: Bus, identity: str, *, only_answering: bool = False) -> None:
    """Raise HalimedeError if a GM of another store is online.

    Raises DisconnectedError if the connection ends before, RefusedError if the broker refuses the topic of presences.

    Two GMs with two stores would compete for nodes, which follow only one of them. A lock file prevents two processes
    on one store. For two stores, this function reads the retained presence of the other GM, before this GM's birth
    replaces it. The message may outlive its GM, if the broker ended with the GM. So this function publishes, not
    retained, that GM is offline: a GM that runs answers with its birth within 15 s. A GM of an early version does not
    answer; its presence has connection number 0. ``only_answering``: whether such a GM counts as offline.
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
            await bus.send(Packet(GM_PRESENCE.at().text, codec.encode(GM_PRESENCE, question), qos=GM_PRESENCE.qos))
            async with asyncio.timeout(ANSWER_S):
                answer = await presences.get()
                # skip the retained presence, which comes again after a reconnect, and the question itself
                while answer.packet.retain or not is_other(answer.body):
                    answer = await presences.get()
        raise HalimedeError(
            f"another global manager (store {other.store}) is online on this broker: stop it, or give this one a"
            " separate broker or topic prefix, such as --broker mqtt://host:1883/site1"
        )


class ReconnectCheck:
    """Permits GM's connections only if no GM with another store has taken its place.

    Another GM may start while this one hangs or is cut off from the broker. Both have the same client ids: after a
    reconnect each would end the connections of the other. So this GM checks first, with another client id, and ends if
    the other GM answers. ``connections``: all connections of this GM. ``make_bus`` returns a connection for one check.
    """

    def __init__(self, cluster: Cluster, connections: Sequence[Bus], make_bus: Callable[[], ReconnectingBus]) -> None:
        self._cluster = cluster
        self._connections = connections
        self._make_bus = make_bus
        #: the connection of the last check; None: there was none
        self._check_bus: ReconnectingBus | None = None
        #: set while a check is requested
        self._due = asyncio.Event()
        #: the event loop's time until which connections may be made
        self._permitted_until = -math.inf

    def permit(self) -> None:
        """Permit connections for the next 5 s."""
        self._permitted_until = asyncio.get_running_loop().time() + PERMITTED_S

    def obstacle(self) -> str:
        """Return why a connection must not be made yet, and request the check by ``run``; empty: it may be made now.

        While another connection of this GM is up, a new one may be made without a check.
        """
        if asyncio.get_running_loop().time() < self._permitted_until or any(bus.connected for bus in self._connections):
            return ""
        self._due.set()
        if self._check_bus is None or self._check_bus.connected:
            return "another global manager may run"
        return self._check_bus.cause

    async def run(self) -> None:
        """Look for another GM each time ``obstacle`` requests it, until cancelled. Raises HalimedeError if one runs."""
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
    """GM's ``BlobNode``: serves files over the bus. Operators store them (``halimede blob put``), nodes request them.

    ``run`` it in addition to GM's other tasks. ``bus`` is its own connection, not entered yet. ``folder`` has the
    files, at most ``most_bytes`` bytes.
    """

    def __init__(self, bus: Bus, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        super().__init__(bus, GM, ManagedCache(Cache(folder), most_bytes, removable=True))


def most_bytes(*, in_pod: bool) -> int:
    """Return the limit of GM's store of files in bytes, by HALIMEDE_BLOB_BYTES. Raises InvalidFieldError."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return MOST_IN_POD if in_pod else MOST_BYTES
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**63):
        raise InvalidFieldError(VARIABLE, text, "write a number of bytes, such as 20000000000")
    return int(text)
