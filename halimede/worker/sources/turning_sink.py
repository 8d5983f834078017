"""Turns the frames of cameras upright that send an EXIF orientation, for services that say ``orientation: exif``.

Frames of other services do not come here, so their path is the same as before.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import msgspec

from halimede.errors import DecodeError, TooLargeError
from halimede.frames.orientation import upright
from halimede.frames.payloads import open_payload, pack
from halimede.picture_files import encoding_of
from halimede.tracing import TraceContext
from halimede.worker.sources.base import FrameSink


class TurningSink(FrameSink):
    """Passes frames on to another sink, upright."""

    def __init__(self, sink: FrameSink) -> None:
        self._sink = sink

    async def offer(
        self,
        payload: bytes | memoryview,
        camera: str,
        *,
        id_: bytes | None = None,
        patient: bool = False,
        parent: TraceContext | None = None,
        answered: Callable[[], None] | None = None,
        file: str = "",
        arrived: float = math.inf,
    ) -> None:
        """Submit a frame upright; see ``FrameSink``. An unreadable one is refused by the sink."""
        turned = await asyncio.to_thread(_turned, payload, camera)
        await self._sink.offer(
            turned, camera, id_=id_, patient=patient, parent=parent, answered=answered, file=file, arrived=arrived
        )


def _turned(payload: bytes | memoryview, camera: str) -> bytes | memoryview:
    """Return a camera message with upright pixels: a bare picture, or a frame with its id.

    An unreadable message is returned unchanged. Raises DecodeError for one that is too large when it is turned.
    """
    if encoding_of(data := bytes(payload)):
        return upright(data)
    try:
        frame = open_payload(payload, camera)
        stored = bytes(frame.data)
        turned = upright(stored) if frame.encoding != "raw" else stored
        return payload if turned is stored else pack(msgspec.structs.replace(frame, data=memoryview(turned)))
    except TooLargeError as error:
        raise DecodeError(f"it is too large when it is turned upright: {error}") from error
    except DecodeError:
        return payload
