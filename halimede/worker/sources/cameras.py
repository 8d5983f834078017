"""Frames from camera topics, shared among all edge workers of the service: each frame reaches one of them.

They come over a connection of their own, and are held back by not being acknowledged: on a shared connection a full
camera queue would use up the receive maximum and keep the cloud's replies out, the very ones that empty it.
"""

from __future__ import annotations

import asyncio

from halimede import topics
from halimede.bus import Bus, Delivery
from halimede.errors import DecodeError
from halimede.tracing import read
from halimede.worker.sources.base import Context, Intake, Source, register

#: QoS 0 frames that wait for the worker; the oldest is dropped for a newer one
QUEUE = 16


@register("cameras")
class CameraSource(Source):
    """The cameras that a service lists."""

    def __init__(self, context: Context) -> None:
        self._connect = context.connect
        self._filters = {
            camera: topics.CAMERA_FRAME.filter(group=context.service, ns=context.namespace, camera=camera)
            for camera in context.spec.cameras
        }
        self._bus: Bus | None = None
        self._handling = 0
        self._refused = 0
        self._idle = asyncio.Event()

    @property
    def skipped(self) -> int:  # type: ignore[override]  # counted by the connection
        """QoS 0 frames that found no room, and what still waited when the worker stopped."""
        return self._bus.stats.dropped if self._bus else 0

    @property
    def rejected(self) -> int:  # type: ignore[override]  # counted by the connection
        """Messages that the bus itself refused; those that the intake refused are counted there."""
        return self._bus.stats.rejected - self._refused if self._bus else 0

    async def run(self, intake: Intake, stop: asyncio.Event) -> None:
        """Take frames until ``stop``; those that are being handed over then still are."""

        async def take(delivery: Delivery[bytes]) -> None:
            self._handling += 1
            try:
                parent = read(delivery.packet.properties)
                await intake.offer(delivery.body, delivery.names["camera"], parent=parent)
            except DecodeError:
                self._refused += 1
                raise  # the bus puts it where operators see it
            finally:
                self._handling -= 1
                self._idle.set()

        async with self._connect() as bus:
            self._bus = bus
            for filter_ in self._filters.values():
                await bus.subscribe(filter_, take, queue=QUEUE)
            await stop.wait()
            await asyncio.gather(*(bus.unsubscribe(filter_) for filter_ in self._filters.values()))
            while self._handling:
                self._idle.clear()
                await self._idle.wait()
