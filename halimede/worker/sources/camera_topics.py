"""Frames from camera topics (``CameraSource``), which the edge workers of a service share: each frame reaches one.

Frames arrive on a separate connection, because a worker without capacity does not acknowledge them. On a shared
connection unacknowledged frames would use up the receive maximum, and block the replies of the cloud that make room.

If the source is durable, a frame is acknowledged when it is answered, and the broker keeps the session for some time
after the connection has ended: another worker, or the next process of this worker, continues with it.

With ``maxAgeMs`` a source reads all frames as they arrive, so that their age is known, and drops the oldest.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial

from halimede import topics
from halimede.bus import Bus, Delivery
from halimede.errors import DecodeError
from halimede.tracing import read
from halimede.worker.sources.base import FrameSink, FrameSource, SourceContext, register
from halimede.worker.sources.poison_journal import PoisonJournal

#: most frames of a camera that wait for the worker, if the oldest may be dropped: at QoS 0, or with ``maxAgeMs``
QUEUE = 16
#: seconds for which a stopping worker with a durable session still takes frames from the broker
FINISH_S = 3.0
#: most cameras of one connection that are remembered
MOST_CAMERAS = 256


@register("cameras")
class CameraSource(FrameSource):
    """A ``FrameSource``: the cameras that a service lists."""

    def __init__(self, context: SourceContext) -> None:
        self._connect = context.connect
        self._durable = context.durable
        self._drops_old = context.spec.max_age_ms is not None
        self._successor = context.successor
        self._suspects = context.suspects
        self._filters = [
            topics.CAMERA_FRAME.filter(group=context.group, ns=context.namespace, camera=camera)
            for camera in context.spec.cameras
        ]
        self._bus: Bus | None = None
        #: whether all subscriptions were requested: the next connection then has them
        self._listed = False
        self._subscribed = asyncio.Event()
        self._handler: FrameHandler | None = None

    @property
    def skipped(self) -> int:  # type: ignore[override]  # counted by the connection
        """Frames that were dropped for newer ones, or because the worker stopped."""
        return self._bus.stats.dropped if self._bus else 0

    @property
    def rejected(self) -> int:  # type: ignore[override]  # counted by the connection
        """Messages that the bus refused; the intake counts those that it refuses itself."""
        return self._bus.stats.rejected - self._handler.refused if self._bus and self._handler else 0

    async def ready(self) -> None:
        """Return once the broker has granted the subscriptions: from then on frames reach this worker."""
        await self._subscribed.wait()

    async def run(self, intake: FrameSink, stop: asyncio.Event) -> None:
        """Submit frames until ``stop`` is set; then finish those in progress. Raises BusError.

        If the source is durable, the frames that the broker has are answered within FINISH_S; the others stay in the
        session. If the worker's next process continues the session, it keeps its subscriptions and gets new frames.
        """
        later = self._durable or self._drops_old
        handler = self._handler = FrameHandler(intake, later=later, suspects=self._suspects)
        async with self._connect() as bus:
            self._bus = bus
            bus.on_connect(self._on_connected)
            subscribe = partial(bus.subscribe, handler=handler, queue=QUEUE, later=later, drop_oldest=self._drops_old)
            await asyncio.gather(*map(subscribe, self._filters))
            self._listed = True
            if bus.connected:
                self._subscribed.set()
            await stop.wait()
            self.unfinished = (self._durable and self._successor()) or not await self._end(bus)
            if self.unfinished:
                handler.close()
            await handler.idle()

    async def _end(self, bus: Bus) -> bool:
        """Unsubscribe, which answers the frames that the broker has; return whether all are answered in time."""
        try:
            async with asyncio.timeout(FINISH_S if self._durable else None):
                await asyncio.gather(*(bus.unsubscribe(filter_) for filter_ in self._filters))
        except TimeoutError:
            return False
        return True

    async def _on_connected(self) -> None:
        """Record that a connection has all subscriptions, if they were requested before it."""
        if self._listed:
            self._subscribed.set()


class FrameHandler:
    """Submits the deliveries of a subscription to an intake; it is a handler for ``Bus.subscribe``.

    ``later``: a delivery is acknowledged when its frame is answered; otherwise once it is accepted. ``suspects``: the
    journal for redelivered frames, on which a worker may have crashed; None: there is none.

    Attributes:
        submitted: frames that were submitted so far.
        refused: frames that the intake refused as unreadable.
        cameras: the cameras of the received frames.

    """

    def __init__(self, intake: FrameSink, *, later: bool, suspects: PoisonJournal | None = None) -> None:
        self.submitted = self.refused = 0
        self.cameras: set[str] = set()
        self._intake = intake
        self._later = later
        self._suspects = suspects or PoisonJournal(None)
        self._closed = False
        #: deliveries in progress: with ``later`` until their frame is answered
        self._unsettled = 0
        self._changed = asyncio.Event()

    async def __call__(self, delivery: Delivery[bytes]) -> None:
        """Submit one delivery; after ``close`` only wait until cancelled.

        Raises DecodeError for an unreadable frame, or one on which workers have crashed.
        """
        if self._closed:
            # never acknowledge: the next holder of the session receives it, and the handler ends with its connection
            await asyncio.get_running_loop().create_future()
        self._unsettled += 1
        redelivered = self._later and delivery.packet.duplicate
        try:
            if redelivered:
                await self._suspects.begin(delivery.body)
            camera, properties = delivery.names["camera"], delivery.packet.properties
            parent = read(properties) if properties else None
            if len(self.cameras) < MOST_CAMERAS:
                self.cameras.add(camera)
            answered = partial(self._settle, delivery, redelivered=redelivered, answered=True) if self._later else None
            arrived = delivery.packet.arrived if self._later else math.inf
            await self._intake.offer(delivery.body, camera, parent=parent, answered=answered, arrived=arrived)
        except BaseException as error:
            self.refused += int(isinstance(error, DecodeError))  # the bus publishes it as a dead letter
            self._settle(delivery, redelivered=redelivered, answered=False)
            raise
        self.submitted += 1
        if not self._later:
            self._settle(delivery, redelivered=redelivered, answered=False)

    def close(self) -> None:
        """Submit no more frames, and acknowledge no more deliveries that come from now on."""
        self._closed = True

    async def idle(self) -> None:
        """Wait, without a deadline, until no delivery is in progress."""
        while self._unsettled:
            self._changed.clear()
            await self._changed.wait()

    def _settle(self, delivery: Delivery[bytes], *, redelivered: bool, answered: bool) -> None:
        """End work on a delivery; acknowledge it if its frame was answered."""
        if answered:
            delivery.packet.done()
        if redelivered:
            self._suspects.end(delivery.body)
        self._unsettled -= 1
        self._changed.set()
