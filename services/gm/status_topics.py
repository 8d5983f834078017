"""Publishes each resource's status as a retained message on its topic (``StatusTopics``).

The topic of a deleted resource is cleared: an empty message removes the retained one. Retained messages outlive GM, so
GM clears at its start the topics of resources that were deleted while no GM was running.
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
    """The status topics. Add a resource's key to ``queue`` to publish its status; the caller runs ``queue``."""

    def __init__(self, bus: Bus, cluster: Cluster) -> None:
        self._bus = bus
        self._cluster = cluster
        self._locks: dict[Key, asyncio.Lock] = {}
        #: deleted resources whose topics are to be cleared
        self._deleted: set[Key] = set()
        self.queue: WorkQueue[Key] = WorkQueue("status topics", self._process)

    def publish_all(self) -> None:
        """Queue the topics of all resources, deleted ones too: after a reconnection the broker may have lost them."""
        for stored in self._cluster.resources():
            self.queue.add(stored.key)
        for key in self._deleted:
            self.queue.add(key)

    def clear_deleted(self, key: Key) -> None:
        """Have the topic of a deleted resource cleared, once the broker can be reached."""
        self._deleted.add(key)
        self.queue.add(key)

    def forget(self, key: Key) -> None:
        """Drop the lock of a deleted resource, unless its topic is still to be cleared."""
        if key not in self._deleted:
            self._locks.pop(key, None)

    async def clear(self, key: Key) -> None:
        """Clear the topic of a resource now, or after the publication in progress. Raises BusError without a broker."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            await self._bus.clear(_topic(key))

    async def clear_leftovers(self, bus: Bus) -> None:
        """Have the topics of deleted resources cleared that have a retained message; called once, at the start.

        Waits until ``bus`` is connected, and then 5 s for the retained messages. Does nothing if GM's store may have
        been lost: then a missing resource need not have been deleted.
        """
        if not self._cluster.complete:
            return

        async def on_status(delivery: Delivery[StatusDocument]) -> None:
            names = delivery.names
            key = Key(names["plural"], names["ns"], names["name"])
            if delivery.packet.retain and self._cluster.get(key) is None:
                log.info("status of a deleted resource ignored", key=str(key))
                self.clear_deleted(key)

        await bus.subscribe(STATUS.filter(), on_status)
        while not bus.connected:
            with contextlib.suppress(DisconnectedError):
                await bus.wait_connected(RETAINED_S)
        await asyncio.sleep(RETAINED_S)
        await bus.unsubscribe(STATUS.filter())

    async def _process(self, key: Key) -> None:
        """Publish or clear the topic of a key, and drop the lock of a deleted resource."""
        await self._publish_or_clear(key)
        if self._cluster.get(key) is None:
            self.forget(key)

    async def _publish_or_clear(self, key: Key) -> None:
        """Publish or clear a topic; without a broker do nothing, because a reconnection queues all."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            stored = self._cluster.get(key)
            if stored is None and key in self._deleted and self._bus.connected:
                await self._bus.clear(_topic(key))
                self._deleted.discard(key)
            if stored is None or stored.status is None or stored.deleting or not self._bus.connected:
                self.queue.forget(key)
                return
            self._deleted.discard(key)
            await self._bus.publish(_topic(key), _document(stored, stored.status))


def _document(stored: StoredResource, status: Status) -> StatusDocument:
    """Return the message with the status of a resource."""
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
    """Return the topic of a resource's status."""
    return STATUS.at(ns=key.namespace, plural=key.plural, name=key.name)
