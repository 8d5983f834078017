"""Frames of a camera that the worker reads itself (``StreamSource``): RTSP, MJPEG over HTTP, V4L2, a video file.

The worker answers these frames also without a broker. If a live camera is faster than the worker, frames are skipped in
favour of the newest one; a file waits. The worker publishes the camera's status, as a camera process does.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import secrets
from dataclasses import replace

from halimede import topics
from halimede.bus import Packet
from halimede.cameras.address import name_of, parse
from halimede.cameras.camera import Camera
from halimede.cameras.ipc_messages import CapturedPicture
from halimede.cameras.publisher import ID_BYTES, CameraStatusPublisher, frame_of
from halimede.cameras.settings import login, of_environment
from halimede.errors import DecodeError, InvalidFieldError
from halimede.frames import pack
from halimede.models import AddressPolicy
from halimede.worker.sources.base import FrameSink, FrameSource, SourceContext, register

#: field of the service with the camera's address
FIELD = "spec.edgeWorker.source.url"


@register("url")
class StreamSource(FrameSource):
    """A ``FrameSource``: one stream, device or file. Raises InvalidFieldError: bad URL, or no extra ``camera``."""

    def __init__(self, context: SourceContext) -> None:
        if importlib.util.find_spec("av") is None:
            raise InvalidFieldError(FIELD, context.spec.url, "install the extra `camera` where this worker runs")
        self._context = context
        username, password = login(os.environ)
        address = parse(
            context.spec.url, field_=FIELD, username=username, password=password, prefix=context.data_prefix
        )
        settings = replace(
            of_environment(os.environ),
            name=context.camera or name_of(address),
            address=address,
            plays=0 if context.loop else 1,
            window=1,  # one frame at a time, so that they are submitted in order
            allowed=str(AddressPolicy.from_environment()),
        )
        self._camera = Camera(settings, self._submit)
        self._intake: FrameSink | None = None

    @property
    def skipped(self) -> int:  # type: ignore[override]  # counted by the camera
        """Frames that were skipped for newer ones, or above the requested rate."""
        return self._camera.tracker.skipped

    @property
    def rejected(self) -> int:  # type: ignore[override]  # counted by the camera
        """Frames that were too large or unreadable."""
        return self._camera.tracker.refused

    @property
    def trouble(self) -> str:
        """The camera's error, for users, while it has failed or stalled; otherwise empty."""
        tracker = self._camera.tracker
        if tracker.state not in {"failed", "stalled"}:
            return ""
        return f"{self._camera.settings.name}: {tracker.reason}: {tracker.error}"

    async def run(self, intake: FrameSink, stop: asyncio.Event) -> None:
        """Submit frames until ``stop`` is set; a file is played once, unless the source loops."""
        self._intake = intake
        bus = self._context.connect()
        name = self._camera.settings.name
        address = topics.NODE_CAMERA_STATUS.at(node=bus.node, ns=self._context.namespace, camera=name)
        status = CameraStatusPublisher(bus, address, self._camera.tracker)
        async with bus, status:
            await self._camera.run(stop)
            await stop.wait()
            await status.leave()

    async def _submit(self, picture: CapturedPicture, sequence: int) -> bool:
        """Submit a picture as the frame with a number; publish an unreadable one as a dead letter.

        Returns True, for ``Camera``.
        """
        assert self._intake is not None  # noqa: S101 - for the type checker
        name, live = self._camera.settings.name, self._camera.settings.address.live
        payload = pack(frame_of(picture, name, sequence, secrets.token_bytes(ID_BYTES)))
        try:
            await self._intake.offer(payload, name, patient=not live)
        except DecodeError as error:
            await self._context.dead_letter(Packet(topic=f"source:{name}", payload=picture.data), str(error))
        return True
