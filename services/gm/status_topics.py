"""Publishes each resource's status as a retained message on its topic, and clears topics of deleted resources.

Topics persist across restarts: at start it looks for topics of resources that were deleted while no GM was running.
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from halimede.bus import Bus, Delivery
from halimede.errors import DisconnectedError
from halimede.messages import Status, StatusDocument
from halimede.names import Key
from halimede.topic import Address
from halimede.topics import STATUS
from services.gm.cluster.port import Cluster, StoredResource
from services.gm.workqueue import WorkQueue

log = structlog.get_logger()

#: seconds in which the broker sends its retained messages
RETAINED_S = 5.0


class StatusTopics:
    """The status topics. Add a key to ``queue`` to publish or clear its topic."""

    def __init__(self, bus: Bus, cluster: Cluster) -> None:
        self._bus = bus
        self._cluster = cluster
        self._busy: dict[Key, asyncio.Lock] = {}
        #: resources that were deleted while the broker was not reachable
        self._stale: set[Key] = set()
        self.queue: WorkQueue[Key] = WorkQueue("status topics", self._show)

    def publish_all(self) -> None:
        """Publish all statuses: after a reconnection the broker may have lost them."""
        for stored in self._cluster.resources():
            self.queue.add(stored.key)
        for key in self._stale:
            self.queue.add(key)

    def clear_deleted(self, key: Key) -> None:
        """Clear the topic of a deleted resource."""
        self._stale.add(key)
        self.queue.add(key)

    def forget(self, key: Key) -> None:
        """Drop the lock of a key that no longer exists."""
        if key not in self._stale:
            self._busy.pop(key, None)

    async def clear(self, key: Key) -> None:
        """Clear a topic, after a publication that is in progress. Raises BusError."""
        async with self._busy.setdefault(key, asyncio.Lock()):
            await self._bus.clear(_topic(key))

    async def tidy(self, bus: Bus) -> None:
        """Clear topics of deleted resources that ``bus`` receives, until the broker has sent its retained messages."""
        if not self._cluster.complete:
            return

        async def on_status(delivery: Delivery[StatusDocument]) -> None:
            names = delivery.names
            key = Key(names["plural"], names["ns"], names["name"])
            stored = self._cluster.get(key)
            if delivery.packet.retain and stored is None:
                log.info("status of a deleted resource ignored", key=str(key))
                self.clear_deleted(key)

        await bus.subscribe(STATUS.filter(), on_status)
        while not bus.connected:
            with contextlib.suppress(DisconnectedError):
                await bus.wait_connected(RETAINED_S)
        await asyncio.sleep(RETAINED_S)
        await bus.unsubscribe(STATUS.filter())

    async def _show(self, key: Key) -> None:
        """Publish the present status. Without a broker it does nothing: a reconnection publishes all."""
        await self._show_alone(key)
        if key not in self._stale and self._cluster.get(key) is None:
            self._busy.pop(key, None)

    async def _show_alone(self, key: Key) -> None:
        async with self._busy.setdefault(key, asyncio.Lock()):
            stored = self._cluster.get(key)
            if stored is None and key in self._stale and self._bus.connected:
                await self._bus.clear(_topic(key))
                self._stale.discard(key)
            if stored is None or stored.status is None or stored.deleting or not self._bus.connected:
                self.queue.forget(key)
                return
            self._stale.discard(key)
            await self._bus.publish(_topic(key), _document(stored, stored.status))


def _document(stored: StoredResource, status: Status) -> StatusDocument:
    resource = stored.resource
    return StatusDocument(
        api_version=resource.kind.api_version,
        kind=resource.kind.kind,
        namespace=stored.key.namespace,
        name=stored.key.name,
        uid=stored.uid,
        generation=resource.metadata.generation,
        status=status,
    )


def _topic(key: Key) -> Address[StatusDocument]:
    return STATUS.at(ns=key.namespace, plural=key.plural, name=key.name)
