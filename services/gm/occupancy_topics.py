"""Clears the retained occupancy events that no service has any longer (``OccupancyTopics``).

Retained messages outlive the workers that published them. GM follows the events of all services, and clears those of a
deleted service, of one without ``occupancy``, and of a camera that its service does not list: when that changes, and
when such an event arrives. A service that exists and cannot be read keeps its events. The last new events are for the
web page.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from halimede.api.jointinference import PLURAL, JointInferenceServiceSpec
from halimede.bus import Bus, Delivery
from halimede.errors import BusError
from halimede.log import RateLimitedLogger
from halimede.messages import OccupancyEvent
from halimede.names import Key
from halimede.system.lru import LruCache
from halimede.topics import OCCUPANCY
from services.gm.cluster.port import Cluster, utc_now
from services.gm.workqueue import WorkQueue

log = structlog.get_logger()

#: most cameras with a retained event that are remembered; most events that wait, of which the oldest are dropped
MAX_CAMERAS, MAX_WAITING = 10_000, 1000
#: most deleted services that are remembered, since their workers may publish some last events
MAX_DELETED = 1000
#: most new events for the page
MAX_PAGE_EVENTS = 20


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """An occupancy event, the key of its service, and the time at which GM received it (RFC 3339)."""

    time: str
    key: Key
    event: OccupancyEvent


class OccupancyTopics:
    """The topics of occupancy events: ``start`` it, and run ``queue``. ``check`` a service that has changed.

    Attributes:
        latest: the last new events, the newest first.
        queue: the services whose events may have to be cleared.

    """

    def __init__(self, bus: Bus, cluster: Cluster) -> None:
        self.latest: deque[ReceivedEvent] = deque(maxlen=MAX_PAGE_EVENTS)
        self.queue: WorkQueue[Key] = WorkQueue("occupancy topics", self._clear)
        self._bus = bus
        self._cluster = cluster
        #: names of the cameras with a retained event, by service
        self._cameras: dict[Key, set[str]] = {}
        #: number of remembered cameras, of all services
        self._count = 0
        #: services that were deleted
        self._deleted: LruCache[Key, None] = LruCache(MAX_DELETED)
        self._limited_log = RateLimitedLogger()

    async def start(self) -> None:
        """Follow the events of all services."""
        await self._bus.subscribe(
            OCCUPANCY.filter(), self._on_event, cleared=self._on_cleared, queue=MAX_WAITING, drop_oldest=True
        )

    def check(self, key: Key) -> None:
        """Have the events of a service cleared that it no longer has, after a change of the service."""
        if key in self._cameras:
            self.queue.add(key)

    def clear_deleted(self, key: Key) -> None:
        """Have all events of a deleted service cleared, also those that its workers still publish."""
        if key.plural == PLURAL:
            self._deleted.put(key, None)
            self.check(key)

    async def _on_event(self, delivery: Delivery[OccupancyEvent]) -> None:
        """Remember the camera of an event, and the event for the page if it is new.

        An event that its service does not have is cleared soon; at once if too many cameras are remembered already.
        """
        key, camera, event = _key(delivery.names), delivery.names["camera"], delivery.body
        has_occupancy = self._has_occupancy(key, camera)
        if camera not in self._cameras.get(key, ()):
            if self._count < MAX_CAMERAS:
                self._cameras.setdefault(key, set()).add(camera)
                self._count += 1
            elif not has_occupancy:
                self._limited_log.warning("too many cameras with occupancy events", service=str(key), camera=camera)
                with contextlib.suppress(BusError):  # the next connection brings the retained event again
                    await self._bus.clear(OCCUPANCY.at(**delivery.names))
                return
        if not delivery.packet.retain and all(received.event.id != event.id for received in self.latest):
            self.latest.appendleft(ReceivedEvent(utc_now(), key, event))
        if not has_occupancy:
            self.queue.add(key)

    async def _on_cleared(self, names: Mapping[str, str]) -> None:
        """Forget a camera whose event was cleared."""
        self._forget(_key(names), names["camera"])

    async def _clear(self, key: Key) -> None:
        """Clear the retained events of a service that the service does not have. Raises BusError."""
        if not self._bus.connected:
            return  # the next connection brings the retained events again
        for camera in sorted(self._cameras.get(key, ())):
            if not self._has_occupancy(key, camera):
                await self._bus.clear(OCCUPANCY.at(ns=key.namespace, service=key.name, camera=camera))
                log.info("occupancy event cleared", service=str(key), camera=camera)
                self._forget(key, camera)
        if key not in self._cameras:
            self.queue.forget(key)

    def _forget(self, key: Key, camera: str) -> None:
        """Forget a camera of a service."""
        cameras = self._cameras.get(key, set())
        self._count -= len(cameras & {camera})
        cameras.discard(camera)
        if not cameras:
            self._cameras.pop(key, None)
            self.queue.forget(key)

    def _has_occupancy(self, key: Key, camera: str) -> bool:
        """Whether a service has occupancy events of a camera, or may have them: GM has lost it, or cannot read it."""
        stored = self._cluster.get(key)
        if stored is None:
            return self._cluster.exists(key) or (not self._cluster.complete and key not in self._deleted)
        spec = stored.resource.spec
        if not isinstance(spec, JointInferenceServiceSpec) or spec.edge_worker.occupancy is None:
            return False
        source = spec.edge_worker.source
        if source is None:
            return camera == key.name
        return not source.cameras or camera in source.cameras


def _key(names: Mapping[str, str]) -> Key:
    """Return the key of the service of an event, by the names in the event's topic."""
    return Key(PLURAL, names["ns"], names["service"])
