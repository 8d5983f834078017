"""Frames from camera topics, shared among all edge workers of the service: each frame reaches one of them.

They arrive on a separate connection. Back-pressure withholds their acknowledgements: on a shared connection a full
camera queue would use up the receive maximum, and block the replies of the cloud that empty the queue.

If the context is ``durable``, a frame is acknowledged when it is answered, and the broker keeps the session for some
time after the connection ended: another worker, or the next life of this one, continues with it.

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
    """The cameras that a service lists."""

    def __init__(self, context: SourceContext) -> None:
        self._connect = context.connect
        self._durable = context.durable
        self._drops_old = context.spec.max_age_ms is not None
        self._successor = context.successor
        self._suspects = context.suspects
        self._filters = [
            topics.CAMERA_FRAME.filter(group=context.service, ns=context.namespace, camera=camera)
            for camera in context.spec.cameras
        ]
        self._bus: Bus | None = None
        self._listed = False
        self._subscribed = asyncio.Event()
        self._handing: FrameHandler | None = None

    @property
    def skipped(self) -> int:  # type: ignore[override]  # counted by the connection
        """Frames that were dropped for newer ones, or because the worker stopped."""
        return self._bus.stats.dropped if self._bus else 0

    @property
    def rejected(self) -> int:  # type: ignore[override]  # counted by the connection
        """Messages that the bus refused; those that the intake refused are counted there."""
        return self._bus.stats.rejected - self._handing.refused if self._bus and self._handing else 0

    async def ready(self) -> None:
        """Return once the broker has granted the subscriptions: earlier frames reached no worker."""
        await self._subscribed.wait()

    async def run(self, intake: FrameSink, stop: asyncio.Event) -> None:
        """Submit frames until ``stop``; those in progress are finished.

        With a durable session, all queued frames of the broker are answered within ``FINISH_S``; the rest stays in the
        session. A session that the next process continues keeps its subscriptions, and the broker queues for it.
        """
        later = self._durable or self._drops_old
        handing = self._handing = FrameHandler(intake, later=later, suspects=self._suspects)
        async with self._connect() as bus:
            self._bus = bus
            bus.on_connect(self._connected)
            subscribe = partial(bus.subscribe, handler=handing, queue=QUEUE, later=later, drop_oldest=self._drops_old)
            await asyncio.gather(*map(subscribe, self._filters))
            self._listed = True
            if bus.connected:
                self._subscribed.set()
            await stop.wait()
            self.unfinished = (self._durable and self._successor()) or not await self._end(bus)
            if self.unfinished:
                handing.close()
            await handing.idle()

    async def _end(self, bus: Bus) -> bool:
        """Unsubscribe, and answer the frames that the broker has; return whether all of them are answered in time."""
        try:
            async with asyncio.timeout(FINISH_S if self._durable else None):
                await asyncio.gather(*(bus.unsubscribe(filter_) for filter_ in self._filters))
        except TimeoutError:
            return False
        return True

    async def _connected(self) -> None:
        """Record that a new connection has all subscriptions."""
        if self._listed:
            self._subscribed.set()


class FrameHandler:
    """Submits deliveries. ``later``: each is acknowledged when its frame is answered, else once it is accepted.

    ``suspects`` records redelivered frames: a worker died while it had them.

    Attributes:
        taken: frames that were submitted so far; ``refused``: those that the intake refused.
        cameras: cameras of the received frames.

    """

    def __init__(self, intake: FrameSink, *, later: bool, suspects: PoisonJournal | None = None) -> None:
        self.taken = self.refused = 0
        self.cameras: set[str] = set()
        self._intake = intake
        self._later = later
        self._suspects = suspects or PoisonJournal(None)
        self._closed = False
        #: deliveries that are not settled yet
        self._in_hand = 0
        self._changed = asyncio.Event()

    async def __call__(self, delivery: Delivery[bytes]) -> None:
        """Submit one delivery (a handler of ``Bus.subscribe``)."""
        if self._closed:
            # never acknowledge: the next holder of the session receives it, and the handler ends with its connection
            await asyncio.get_running_loop().create_future()
        self._in_hand += 1
        again = self._later and delivery.packet.duplicate
        try:
            if again:
                await self._suspects.begin(delivery.body)
            camera, properties = delivery.names["camera"], delivery.packet.properties
            parent = read(properties) if properties else None
            if len(self.cameras) < MOST_CAMERAS:
                self.cameras.add(camera)
            answered = partial(self._settle, delivery, again=again, answered=True) if self._later else None
            arrived = delivery.packet.arrived if self._later else math.inf
            await self._intake.offer(delivery.body, camera, parent=parent, answered=answered, arrived=arrived)
        except BaseException as error:
            self.refused += int(isinstance(error, DecodeError))  # the bus publishes it as a dead letter
            self._settle(delivery, again=again, answered=False)
            raise
        self.taken += 1
        if not self._later:
            self._settle(delivery, again=again, answered=False)

    def close(self) -> None:
        """Stop submitting frames."""
        self._closed = True

    async def idle(self) -> None:
        """Wait until all submitted frames are settled."""
        while self._in_hand:
            self._changed.clear()
            await self._changed.wait()

    def _settle(self, delivery: Delivery[bytes], *, again: bool, answered: bool) -> None:
        """Release a delivery, and acknowledge it if its frame is answered."""
        if answered:
            delivery.packet.done()
        if again:
            self._suspects.end(delivery.body)
        self._in_hand -= 1
        self._changed.set()
