"""Receives the retained messages of a halimede system, and records them for the devices that they change.

What was deleted while the bridge was away has no message that says so. It is what has not arrived when the connection
and the global manager (GM) have both been there for ``REMOVE_S``: after a restart of a broker without persistence, GM,
nodes and workers publish their messages again, each at its own time.

It subscribes to statuses, presences and pictures alone. It does not subscribe to results: a worker counts a result that
nobody receives, and after a restart of the broker it waits for the subscribers that were there before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from halimede import topics
from halimede.api.jointinference import PLURAL as JOINT_INFERENCE
from halimede.api.model import PLURAL as MODELS
from halimede.api.multiedge import PLURAL as MULTI_EDGE
from halimede.api.trainingmodel import PLURAL as TRAINING_MODELS
from halimede.bridges.homeassistant.devices import SYSTEM, DeviceKey, camera_key, node_key, service_key
from halimede.bridges.homeassistant.occupancy import OccupancyKey
from halimede.bridges.homeassistant.system_view import MAX_DEVICES, RetainedMirror, SystemView
from halimede.bus import Bus, Delivery
from halimede.errors import HalimedeError, RefusedError
from halimede.messages import CameraStatus, GmPresence, HardSample, OccupancyEvent, Presence, StatusDocument
from halimede.names import Key

log = structlog.get_logger()

#: kinds of services that become devices, and kinds whose roll-outs are shown
SERVICE_PLURALS, MODEL_PLURALS = (JOINT_INFERENCE, MULTI_EDGE), (MODELS, TRAINING_MODELS)
#: seconds in which all of a system arrives: of an unbroken connection, and with GM online
REMOVE_S = 120.0
#: most pictures that wait
MAX_PICTURES = 32
#: why nothing is removed
MANAGER_AWAY = "the global manager is not online: devices that have not arrived stay"
NOTHING_RETAINED = (
    "no retained message of the system has arrived: it is empty, this user may not read them, or the broker sends none "
    "to subscriptions with wildcards (`halimede doctor` tries that). Devices that have not arrived stay"
)

#: called with a device that has changed
Touch = Callable[[DeviceKey], None]


class SystemListener:
    """Keeps ``view`` up to date: ``start`` it, then ``run`` until cancelled.

    ``touch`` is called with each device that has changed. ``settled`` is called when all of the system has arrived.
    ``on_event`` is called with each occupancy event that happens now.
    """

    def __init__(
        self,
        bus: Bus,
        view: SystemView,
        *,
        touch: Touch,
        settled: Callable[[], None],
        on_event: Callable[[OccupancyKey, OccupancyEvent], None],
    ) -> None:
        self._bus = bus
        self._view = view
        self._touch = touch
        self._settled = settled
        self._on_event = on_event
        #: the ids of the last events
        self._occupancies: RetainedMirror[OccupancyKey, str] = RetainedMirror(MAX_DEVICES)
        #: set when the system may send all again: with each new connection, and each change of GM's presence
        self._restarted = asyncio.Event()
        #: the connection on which GM's presence has arrived last
        self._manager_connection = 0
        #: the last connection on which a retained message has arrived by a wildcard
        self._retained_connection = 0

    @property
    def _mirrors(self) -> tuple[tuple[RetainedMirror[Any, Any], Callable[[Any], DeviceKey]], ...]:
        """The mirrors of the view, each with the function from its key to the device that shows it."""
        view = self._view
        return (
            (view.services, service_key),
            (view.models, lambda _: SYSTEM),
            (view.nodes, node_key),
            (view.cameras, lambda key: camera_key(key[0], key[1])),
        )

    async def start(self) -> None:
        """Subscribe. Raises HalimedeError if the broker refuses a subscription."""
        self._bus.on_connect(self._connected)
        self._restarted.set()
        try:
            await self._subscribe()
        except RefusedError as error:
            fix = "use the credentials of the consumer `homeassistant` of the site, or of an operator"
            raise HalimedeError(f"{error} at the broker of the system. What to do: {fix}") from error

    @property
    def _connection(self) -> int:
        """The number of the present or last connection."""
        return self._bus.stats.connects

    async def run(self) -> None:
        """Drop what no longer exists, each time that all has arrived; until cancelled."""
        while True:
            await self._restarted.wait()
            self._restarted.clear()
            try:
                async with asyncio.timeout(REMOVE_S):
                    await self._restarted.wait()
            except TimeoutError:
                self._remove_absent()

    def _remove_absent(self) -> None:
        """Drop what has not arrived on this connection, if the broker has sent the rest and GM is online."""
        if not self._bus.connected:
            return  # the next connection begins again
        view = self._view
        if view.manager and self._manager_connection != self._connection:
            self._set_manager(None)
        if self._retained_connection != self._connection:
            log.warning(NOTHING_RETAINED)
        elif not (view.manager and view.manager.online):
            log.warning(MANAGER_AWAY)
        else:
            for mirror, device_of in self._mirrors:
                for key in mirror.stale(self._connection):
                    self._forget(mirror, key)
                    self._touch(device_of(key))
            self._forget_occupancies()
            self._settled()

    async def _connected(self) -> None:
        """Wait again for all messages."""
        self._restarted.set()

    def _note(self, delivery: Delivery[Any]) -> None:
        """Note that a retained message has arrived by a wildcard."""
        if delivery.packet.retain:
            self._retained_connection = self._connection

    def _forget(self, mirror: RetainedMirror[Any, Any], key: Any) -> None:
        """Remove all that was recorded of a key of a mirror."""
        if mirror is self._view.services:
            self._view.forget_service(key)
        else:
            mirror.drop(key)

    def _forget_occupancies(self) -> None:
        """Remove the occupancy of cameras of which no message has arrived on this connection."""
        stale = self._occupancies.stale(self._connection)
        for key in [key for key in self._view.occupancy.keys if key in stale or key not in self._occupancies.entries]:
            self._occupancies.drop(key)
            self._view.occupancy.drop(key)
            self._touch(camera_key(key.namespace, key.camera))

    async def _subscribe(self) -> None:
        """Subscribe to all topics. Raises RefusedError."""
        view = self._view
        for plural in SERVICE_PLURALS:
            await self._bus.subscribe(
                topics.STATUS.filter(plural=plural), self._on_service, cleared=self._service_cleared, drop_oldest=True
            )
        for plural in MODEL_PLURALS:
            keep, drop = self._mirror_handlers(view.models, _resource, lambda _: SYSTEM)
            await self._bus.subscribe(topics.STATUS.filter(plural=plural), keep, cleared=drop, drop_oldest=True)
        keep, drop = self._mirror_handlers(view.nodes, lambda names: names["node"], node_key)
        await self._bus.subscribe(topics.PRESENCE.filter(), keep, cleared=drop, drop_oldest=True)
        for topic in (topics.CAMERA_STATUS, topics.NODE_CAMERA_STATUS):
            keep, drop = self._mirror_handlers(view.cameras, _camera, lambda key: camera_key(key[0], key[1]))
            await self._bus.subscribe(topic.filter(), keep, cleared=drop, drop_oldest=True)
        await self._bus.subscribe(
            topics.OCCUPANCY.filter(), self._on_occupancy, cleared=self._occupancy_cleared, drop_oldest=True
        )
        await self._bus.subscribe(topics.GM_PRESENCE.filter(), self._on_manager, cleared=self._manager_cleared)
        await self._bus.subscribe(topics.HARD_SAMPLE.filter(), self._on_picture, queue=MAX_PICTURES, drop_oldest=True)

    def _mirror_handlers(
        self,
        mirror: RetainedMirror[Any, Any],
        key_of: Callable[[Mapping[str, str]], Any],
        device_of: Callable[[Any], DeviceKey],
    ) -> tuple[Callable[[Delivery[Any]], Awaitable[None]], Callable[[Mapping[str, str]], Awaitable[None]]]:
        """Return the handlers that keep a mirror up to date: of a message, and of one that was cleared.

        ``key_of``: returns the mirror's key from the names in a topic; ``device_of``: the device that shows this key.
        """

        async def put(delivery: Delivery[CameraStatus | Presence | StatusDocument]) -> None:
            self._note(delivery)
            key = key_of(delivery.names)
            mirror.put(key, delivery.body, self._connection)
            self._touch(device_of(key))

        async def drop(names: Mapping[str, str]) -> None:
            key = key_of(names)
            mirror.drop(key)
            self._touch(device_of(key))

        return put, drop

    async def _on_service(self, delivery: Delivery[StatusDocument]) -> None:
        """Record the status of a service."""
        self._note(delivery)
        key, now = _resource(delivery.names), asyncio.get_running_loop().time()
        self._view.record_status(now, key, delivery.body, self._connection)
        self._touch(service_key(key))

    async def _service_cleared(self, names: Mapping[str, str]) -> None:
        """Forget a service that was deleted."""
        key = _resource(names)
        self._view.forget_service(key)
        self._touch(service_key(key))

    async def _on_occupancy(self, delivery: Delivery[OccupancyEvent]) -> None:
        """Record who is in front of a camera; a retained message is no event."""
        self._note(delivery)
        key, event = _occupancy(delivery.names), delivery.body
        self._occupancies.put(key, event.id, self._connection)
        if key not in self._occupancies.entries:
            self._view.occupancy.ignored += 1
            return
        is_repeated = self._view.occupancy.has_event(key, event.id)
        self._view.occupancy.record(key, event)
        self._touch(camera_key(key.namespace, key.camera))
        if not is_repeated and not delivery.packet.retain:
            self._on_event(key, event)

    async def _occupancy_cleared(self, names: Mapping[str, str]) -> None:
        """Remove the occupancy of a camera: nobody counts there any more."""
        key = _occupancy(names)
        self._occupancies.drop(key)
        self._view.occupancy.drop(key)
        self._touch(camera_key(key.namespace, key.camera))

    async def _on_manager(self, delivery: Delivery[GmPresence]) -> None:
        """Record the presence of GM."""
        if (delivery.body, self._connection) != (self._view.manager, self._manager_connection):
            self._restarted.set()
        self._manager_connection = self._connection
        self._set_manager(delivery.body)

    async def _manager_cleared(self, _: Mapping[str, str]) -> None:
        """Forget the presence of GM."""
        self._set_manager(None)

    def _set_manager(self, presence: GmPresence | None) -> None:
        """Record the presence of GM; None: there is none."""
        self._view.manager = presence
        self._touch(SYSTEM)

    async def _on_picture(self, delivery: Delivery[HardSample]) -> None:
        """Record the last hard sample of a service."""
        key = Key(JOINT_INFERENCE, delivery.names["ns"], delivery.names["service"])
        if key in self._view.services.entries:
            self._view.pictures[key] = delivery.body
            self._touch(service_key(key))


def _resource(names: Mapping[str, str]) -> Key:
    """Return the key of the resource in a status topic."""
    return Key(names["plural"], names["ns"], names["name"])


def _occupancy(names: Mapping[str, str]) -> OccupancyKey:
    """Return the key of the camera and service in an occupancy topic."""
    return OccupancyKey(names["ns"], names["service"], names["camera"])


def _camera(names: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the key of the camera in a topic of camera statuses."""
    return names["ns"], names["camera"], names.get("node", "")
