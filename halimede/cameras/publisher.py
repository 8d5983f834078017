"""One camera's connection: publishes the frames, and the status, which the will replaces if the process dies."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog

from halimede import codec, topics
from halimede.bus import Announcement, Bus, Packet
from halimede.bus.retained_publisher import RetainedPublisher
from halimede.bus.subscriber_return import FRAME_RETURN_S, SubscriberReturn
from halimede.cameras.camera import wait_stopped
from halimede.cameras.camera_status import CameraStatusTracker
from halimede.cameras.ipc_messages import CapturedPicture
from halimede.errors import BusError, DisconnectedError, TooLargeError
from halimede.log import RateLimitedLogger
from halimede.messages import CameraStatus, Frame
from halimede.topic import Address

log = structlog.get_logger()

#: bytes of a frame's random id
ID_BYTES = 16
#: seconds between two attempts to publish, between two checks of the status, and between two statuses at most
RETRY_S, STATUS_POLL_S, STATUS_HEARTBEAT_S = 0.2, 0.25, 2.0
#: most seconds to publish the last status
LEAVING_S = 3.0


def frame_of(picture: CapturedPicture, camera: str, sequence: int, id_: bytes) -> Frame:
    """Return a picture as the body of a frame. ``sequence``: its number; ``id_``: its id."""
    return Frame(
        id=id_,
        camera=camera,
        sequence=sequence,
        captured_ns=picture.taken_ns,
        encoding=picture.encoding,
        data=memoryview(picture.data),
    )


class CameraPublisher:
    """Publishes a camera's pictures as frames.

    Args:
        bus: the camera's connection.
        namespace, camera: of the topic.
        qos: 0 or 1.
        bare: publish the picture's bytes alone, without the fields of a frame.
        patient: each picture waits for the broker, and for subscribers that were there before. Otherwise (a live
            camera) it is dropped, and the next attempt is made with the newest picture.
        stop: ends the waiting.
        return_s: seconds for which subscribers that were there before are waited for.
        on_frame: called with each frame before it is sent.
        on_drop: called with each frame that the broker did not accept, after the attempt.

    """

    def __init__(
        self,
        bus: Bus,
        namespace: str,
        camera: str,
        *,
        qos: int,
        bare: bool,
        patient: bool,
        stop: asyncio.Event,
        return_s: float = FRAME_RETURN_S,
        on_frame: Callable[[Frame], None] | None = None,
        on_drop: Callable[[Frame], None] | None = None,
    ) -> None:
        self._bus = bus
        self._address = topics.CAMERA_FRAME.at(ns=namespace, camera=camera)
        self._camera = camera
        self._qos = qos
        self._bare = bare
        self._patient = patient
        self._stop = stop
        self._on_frame = on_frame
        self._on_drop = on_drop
        self._subscribers = SubscriberReturn(bus, return_s, only_after_reconnect=False)
        self._limited_log = RateLimitedLogger()
        #: frames without a subscriber
        self.unheard = 0

    async def take(self, picture: CapturedPicture, sequence: int) -> bool:
        """Publish a picture; return whether the broker accepted it, and it was not dropped. Raises RefusedError."""
        frame = frame_of(picture, self._camera, sequence, secrets.token_bytes(ID_BYTES))
        if self._on_frame:
            self._on_frame(frame)
        accepted = await self._publish(picture.data if self._bare else codec.encode(topics.REQUEST, frame))
        if self._on_drop and not accepted:
            self._on_drop(frame)
        return accepted

    async def _publish(self, body: bytes) -> bool:
        """Publish a body; return whether the broker accepted it. Raises RefusedError."""
        while True:
            try:
                has_subscriber = await self._bus.publish(self._address, body, qos=self._qos)
            except TooLargeError as error:
                self._limited_log.warning("frame too large", camera=self._camera, error=str(error))
                return False
            except DisconnectedError:
                if not self._patient:
                    await self._wait_broker()
                    return False
                await asyncio.sleep(RETRY_S)
                if self._stop.is_set():
                    return False
            else:
                must_resend = self._subscribers.must_resend(has_subscriber=has_subscriber)
                if must_resend and not await self._has_stopped_within(RETRY_S):
                    if self._patient:
                        continue
                    return False
                self.unheard += not has_subscriber
                return True

    async def _has_stopped_within(self, seconds: float) -> bool:
        """Wait some seconds; return whether ``stop`` is set."""
        await wait_stopped(self._stop, seconds)
        return self._stop.is_set()

    async def _wait_broker(self) -> None:
        """Wait for the broker: frames in between are skipped, and the next one is new."""
        while not self._stop.is_set():
            with contextlib.suppress(DisconnectedError):
                await self._bus.wait_connected(RETRY_S)
                return


class CameraStatusPublisher(RetainedPublisher[CameraStatus]):
    """Publishes a camera's status: a ``RetainedPublisher``. Its will reports that the camera is gone.

    ``async with`` runs it; the caller has entered the bus before.
    """

    def __init__(self, bus: Bus, address: Address[CameraStatus], tracker: CameraStatusTracker) -> None:
        self._tracker = tracker
        super().__init__(
            bus,
            address,
            self._status,
            same=lambda status, before: _urgent_fields(status) == _urgent_fields(before),
            least_s=0.0,
            heartbeat_s=STATUS_HEARTBEAT_S,
            poll_s=STATUS_POLL_S,
            announced=True,
        )
        self._leaving = False
        self._task: asyncio.Task[None] | None = None
        bus.announce = self.announce

    async def __aenter__(self) -> Self:
        """Start to publish; the caller has already entered the bus."""
        self._task = asyncio.create_task(self.run(), name="status of a camera")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop publishing."""
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])

    def announce(self) -> Announcement:
        """Return birth and will of a connection: the present status, and that the camera is gone."""
        status = self._status()
        lost = CameraStatus(
            camera=status.camera,
            state="gone",
            source=status.source,
            reason="Gone",
            error="its camera process has died or lost the broker",
            node=status.node,
            started=status.started,
        )
        return Announcement(
            birth=self._packet(status),
            will=None if self._leaving else self._packet(lost),
            repeat=lambda: self._packet(self._status()),
        )

    async def leave(self) -> None:
        """Connect once more without a will, so that the last status stays. Waits ``LEAVING_S`` at most."""
        self._leaving = True
        if not self._bus.connected:
            return
        self._bus.renew()
        try:
            await asyncio.sleep(0)  # let the bus process the end of the connection
            await self._bus.wait_connected(LEAVING_S)
        except BusError as error:
            log.debug("last status not sent", error=str(error))

    def _status(self) -> CameraStatus:
        """Return the present status."""
        return self._tracker.status(asyncio.get_running_loop().time())

    def _packet(self, status: CameraStatus) -> Packet:
        """Return the retained packet of a status."""
        return Packet(self._address.text, codec.encode(self._address.topic, status), qos=1, retain=True)


def _urgent_fields(status: CameraStatus) -> tuple[object, ...]:
    """Return the fields whose change is published at once."""
    return status.state, status.reason, status.codec, status.width, status.height


def client_id(namespace: str, camera: str) -> str:
    """Return the client id of a camera's connection."""
    return f"camera.{namespace}.{camera}"


#: makes a connection from a client id and the camera's name
Connect = Callable[[str, str], Bus]
