"""Publishes the occupancy events of a service: who entered and left the pictures of its cameras, and their zones.

The edge workers of a service share the frames of its cameras, so only one of them makes events: the leader, which is
the eldest. It subscribes to the results of all, and its tracker (``halimede.occupancy``) makes events of them. The last
event of each camera is retained, and has all objects that are present. Each edge worker follows these events, so that
the next leader continues from them: a restarted worker, or one on another node. No object enters a second time.

Workers may disagree for a moment, and two of them track. This does no harm: the same frame gives the same event the
same id in both, and a leader that receives another event of a camera adopts the objects in it.

Nothing waits for an event. While the broker is away, at most ``MAX_WAITING`` events wait, and the oldest are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping

import structlog
from prometheus_client.metrics_core import Metric

from halimede import topics
from halimede.api.occupancy import Occupancy
from halimede.bus import Bus, Delivery
from halimede.errors import BusError, DisconnectedError, HalimedeError, InvalidFieldError, TooLargeError
from halimede.log import RateLimitedLogger
from halimede.messages import OccupancyEvent, Result
from halimede.names import check_label
from halimede.observe.metrics import counter, gauge
from halimede.occupancy import MAX_CAMERAS, OccupancyChange, OccupancyTracker, detected_objects
from halimede.system.lru import LruCache
from halimede.topic import Filter
from halimede.worker.membership import Membership
from halimede.worker.settings import WorkerSettings

log = structlog.get_logger()

#: most events that wait for the broker, and most ids of results and events, and cameras' numbers, to remember
MAX_WAITING, MAX_IDS = 1024, 4096
#: seconds that an acknowledgement may take; pause after a connection was lost; pause after the broker has refused
ACKNOWLEDGED_S, RETRY_S, REFUSED_S = 10.0, 1.0, 30.0
#: most seconds between two checks who leads: the ranks of others change without a message, too
CHECK_S = 1.0
#: seconds in which the broker sends its retained events after a connection
RETAINED_S = 2.0
#: seconds for the last events at the end
DRAIN_S = 2.0
#: bytes of an event's id
ID_BYTES = 16


class OccupancyPublisher:
    """Makes and publishes the events of a service while this worker leads. ``start`` it, ``run`` it, then ``drain``.

    Args:
        bus: the worker's connection.
        settings: those of the worker.
        rules: the service's rules of occupancy events.
        peers: the edge workers of the service; the caller starts and runs it.

    Attributes:
        published: the number of events that the broker has acknowledged, by type.
        dropped: the number of events that were not published: too many waited, the broker refused them or they were too
            large, or another worker leads.
        unusable: the number of results that do not count: of another camera, or boxes without the picture's size.

    """

    def __init__(self, bus: Bus, settings: WorkerSettings, rules: Occupancy, peers: Membership) -> None:
        self.published: Counter[str] = Counter()
        self.dropped = 0
        self.unusable = 0
        self._subscription_error: HalimedeError | None = None
        self._publish_error: HalimedeError | None = None
        self._limited_log = RateLimitedLogger()
        self._bus = bus
        self._rules = rules
        self._labels = frozenset(rules.labels)
        self._peers = peers
        self._names = {"ns": settings.namespace, "service": settings.service}
        #: those of the service; empty: it reads a folder or a stream, whose name is not known here
        self._cameras = frozenset(settings.source.cameras)
        #: None: another worker leads
        self._tracker: OccupancyTracker | None = None
        #: number of objects that earlier trackers have ignored
        self._ignored = 0
        #: whether it receives the service's events
        self._follows = False
        #: the last event of each camera that the broker has, and the last sequence number of each camera
        self._latest: dict[str, OccupancyEvent] = {}
        self._sequences: LruCache[str, int] = LruCache(MAX_IDS)
        #: number of the connection on which the last event of each camera has come, and the loop time until which the
        #: retained events of the present connection come
        self._connections: dict[str, int] = {}
        self._retained_by = 0.0
        #: events that wait for the broker; ids of results that were tracked, and of events that were made or adopted
        self._waiting: deque[OccupancyEvent] = deque()
        self._result_ids: LruCache[str, None] = LruCache(MAX_IDS)
        self._event_ids: LruCache[str, None] = LruCache(MAX_IDS)
        self._changed, self._has_waiting, self._is_idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._is_idle.set()

    @property
    def trouble(self) -> str:
        """Why there are no events, for users; empty: there are."""
        error = self._subscription_error or self._publish_error
        return f"no occupancy events: {error}" if error else ""

    async def start(self) -> None:
        """Follow the events of the service; if the broker refuses them, ``trouble`` says so, and ``run`` tries again.

        Call it before ``peers.start``: the events come while that waits.
        """
        self._bus.on_connect(self._connected)
        self._peers.on_change(lambda *_: self._changed.set())
        try:
            await self._follow_events()
        except BusError as error:
            self._subscription_error = error

    async def run(self) -> None:
        """Make events while this worker leads, and publish them, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publish_waiting(), name="occupancy events")
            while True:
                self._changed.clear()
                try:
                    await self._follow_events()
                    await self._follow_leader()
                except BusError as error:
                    self._subscription_error = error
                    self._limited_log.warning("no occupancy events", error=str(error))
                    await asyncio.sleep(REFUSED_S)
                else:
                    self._subscription_error = None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_S):
                        await self._changed.wait()

    async def drain(self) -> None:
        """Wait until all events are published, at most ``DRAIN_S``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._is_idle.wait()

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics; counts start with this process."""
        leads = self._tracker is not None
        yield gauge("worker_occupancy_leading", "1 if this worker makes the events of its service.", int(leads))
        by_type = [({"type": kind}, n) for kind, n in sorted(self.published.items())]
        yield counter("worker_occupancy_events", "Occupancy events that the broker acknowledged, by type.", by_type)
        text = "Unpublished occupancy events: too many waited, the broker refused them, or another worker leads."
        yield counter("worker_occupancy_dropped_events", text, self.dropped)
        text = "Occupancy events that wait for the broker."
        yield gauge("worker_occupancy_waiting_events", text, len(self._waiting))
        text = "Results without occupancy: of a camera that the service does not have, or without the picture's size."
        yield counter("worker_occupancy_unusable_results", text, self.unusable)
        text = "Objects that are not tracked: too many labels and zones in their camera, or too many cameras."
        ignored = self._ignored + (self._tracker.ignored if self._tracker else 0)
        yield counter("worker_occupancy_ignored_objects", text, ignored)

    # --- who makes events ----------------------------------------------------------------------------------------

    async def _follow_events(self) -> None:
        """Subscribe to the events of the service, unless it has. Raises BusError."""
        if not self._follows:
            await self._bus.subscribe(
                topics.OCCUPANCY.filter(**self._names), self._on_event, cleared=self._on_cleared, queue=MAX_CAMERAS
            )
            self._follows = True

    async def _follow_leader(self) -> None:
        """Begin or stop making events, by who leads; without a connection, or before ranks are known, change nothing.

        Raises BusError.
        """
        if not self._peers.connected:
            return
        leader = self._peers.leader()
        if leader == self._peers.worker:
            if self._tracker is None:
                await self._bus.subscribe_now(self._results(), self._on_result)
                self._begin()
            self._restore_retained()
        elif leader is not None and self._tracker is not None:
            self._end()
            await self._bus.unsubscribe(self._results())

    def _begin(self) -> None:
        """Begin making events, from the objects in the last event of each camera."""
        log.info("occupancy events begin", **self._names, cameras=len(self._latest))
        self._tracker = OccupancyTracker(self._rules)
        for event in self._latest.values():
            self._adopt(self._tracker, event)

    def _end(self) -> None:
        """Stop making events, and drop the waiting ones: the new leader makes them."""
        log.info("occupancy events end", **self._names, leader=self._peers.leader())
        self._ignored += self._tracker.ignored if self._tracker else 0
        self._tracker = self._publish_error = None
        self.dropped += len(self._waiting)
        self._waiting.clear()

    def _restore_retained(self) -> None:
        """Publish again the events that a broker has lost in a restart, ``RETAINED_S`` after the connection.

        Where several brokers are connected by bridges, another leader may make the events of some cameras.
        """
        if asyncio.get_running_loop().time() < self._retained_by:
            return
        waiting_cameras = {event.camera for event in self._waiting}
        for camera, event in self._latest.items():
            if self._is_unconfirmed(camera) and (camera in waiting_cameras or self._has_results_of(camera)):
                self._connections[camera] = self._bus.stats.connects
                if camera not in waiting_cameras:
                    self._put(event)

    def _has_results_of(self, camera: str) -> bool:
        """Whether this worker makes the events of a camera, because it has results of it."""
        return self._tracker is not None and self._tracker.has_frames_of(camera)

    def _is_unconfirmed(self, camera: str) -> bool:
        """Whether the broker has not sent the retained event of a camera again on the present connection."""
        return self._connections.get(camera, self._bus.stats.connects) != self._bus.stats.connects

    async def _connected(self) -> None:
        """Expect the retained events on a new connection."""
        self._retained_by = asyncio.get_running_loop().time() + RETAINED_S
        self._changed.set()

    def _results(self) -> Filter[Result]:
        """Return the subscription to the service's results."""
        return topics.RESULT.filter(**self._names)

    # --- from results to events ----------------------------------------------------------------------------------

    def _on_result(self, delivery: Delivery[Result]) -> None:
        """Track the objects of a result."""
        result, tracker = delivery.body, self._tracker
        if tracker is None or result.id in self._result_ids:  # its worker has sent it again
            return
        self._result_ids.put(result.id, None)
        boxes = result.prediction.boxes
        if not self._has_camera(result.camera) or (boxes and result.size is None):
            self.unusable += 1
            return
        width, height = result.size or (1, 1)
        objects = detected_objects(
            result.prediction, (width, height), min_score=self._rules.min_score, labels=self._labels
        )
        if objects is None:
            return
        time_ns = result.captured_ns or time.time_ns()
        for change in tracker.observe(result.camera, time_ns, result.id, objects):
            self._put(self._make_event(change, change.cause))

    def _has_camera(self, camera: str) -> bool:
        """Whether the service has a camera. A result may name any text, and only a name fits into a topic."""
        if self._cameras:
            return camera in self._cameras
        with contextlib.suppress(InvalidFieldError):
            return bool(check_label("camera", camera))
        return False

    def _make_event(self, change: OccupancyChange, cause: str) -> OccupancyEvent:
        """Return the event of a change. ``cause``: identifies what caused it, the same in each worker."""
        best, camera = change.best, change.camera
        sequence = (self._sequences.get(camera) or 0) + 1
        self._sequences.put(camera, sequence)
        identity = f"{cause}\0{camera}\0{change.zone}\0{change.before}\0{change.count}\0{change.label}"
        return OccupancyEvent(
            id=hashlib.blake2b(identity.encode(errors="replace"), digest_size=ID_BYTES).hexdigest(),
            sequence=sequence,
            type=change.kind,
            service=self._names["service"],
            camera=camera,
            label=change.label,
            zone=change.zone,
            count=change.count,
            before=change.before,
            time_ns=change.time,
            since_ns=change.since,
            frame=best.frame if best else "",
            score=best.score if best else 0.0,
            boxes=list(best.boxes) if best else [],
            present=list(change.present),
        )

    # --- events on the bus ---------------------------------------------------------------------------------------

    async def _on_event(self, delivery: Delivery[OccupancyEvent]) -> None:
        """Remember the last event of a camera; adopt its objects if this worker leads and has not made it."""
        event, camera = delivery.body, delivery.names["camera"]
        if event.camera != camera or (camera not in self._latest and len(self._latest) >= MAX_CAMERAS):
            return
        latest = self._latest.get(camera)
        if latest and delivery.packet.retain and event.sequence < latest.sequence and self._has_results_of(camera):
            return  # the broker has lost the last event: it stays unconfirmed, so that it is published again
        is_known = event.id in self._event_ids or (latest is not None and latest.id == event.id)
        self._connections[camera] = self._bus.stats.connects
        self._latest[camera] = event
        self._sequences.put(camera, max(event.sequence, self._sequences.get(camera) or 0))
        if self._tracker is not None and not is_known:
            self._event_ids.put(event.id, None)
            remaining = deque(waiting for waiting in self._waiting if waiting.camera != camera)
            self.dropped += len(self._waiting) - len(remaining)
            self._waiting = remaining
            self._adopt(self._tracker, event)

    async def _on_cleared(self, names: Mapping[str, str]) -> None:
        """Forget a camera whose retained event GM has cleared."""
        self._sequences.pop(names["camera"])
        for entries in (self._latest, self._connections):
            entries.pop(names["camera"], None)

    def _adopt(self, tracker: OccupancyTracker, event: OccupancyEvent) -> None:
        """Continue from an event that another worker has made, if the service still has its camera."""
        if self._has_camera(event.camera):
            for change in tracker.adopt(event.camera, time.time_ns(), event.present):
                self._put(self._make_event(change, event.id))

    def _put(self, event: OccupancyEvent) -> None:
        """Have an event published; with too many waiting events drop the oldest one."""
        self._event_ids.put(event.id, None)
        self._waiting.append(event)
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        self._is_idle.clear()
        self._has_waiting.set()

    async def _publish_waiting(self) -> None:
        """Publish the waiting events one by one, so that the last one is retained, until cancelled."""
        while True:
            while self._waiting:
                event = self._waiting[0]
                try:
                    await self._publish(event)
                except DisconnectedError:
                    await asyncio.sleep(RETRY_S)
                    continue
                if self._waiting and self._waiting[0] is event:  # it may have been dropped meanwhile
                    self._waiting.popleft()
            self._is_idle.set()
            self._has_waiting.clear()
            await self._has_waiting.wait()

    async def _publish(self, event: OccupancyEvent) -> None:
        """Publish an event, or drop it if the broker refuses it or it is too large.

        Raises DisconnectedError, so that the event waits: without a connection, and while another worker may have led,
        or leads. In the second case the event may be obsolete, and must not replace that worker's last event.
        """
        if self._is_unconfirmed(event.camera) or self._peers.leader() not in {None, self._peers.worker}:
            raise DisconnectedError("another worker may have published events")
        address = topics.OCCUPANCY.at(**self._names, camera=event.camera)
        try:
            await self._bus.publish(address, event, timeout_s=ACKNOWLEDGED_S)
        except DisconnectedError:
            raise
        except (BusError, TooLargeError) as error:
            self.dropped += 1
            self._publish_error = error
            self._limited_log.warning("occupancy event not published", camera=event.camera, error=str(error))
        else:
            self.published[event.type] += 1
            self._publish_error = None
