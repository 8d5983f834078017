"""Turns frames upright whose pictures have an EXIF orientation, for services whose source says ``orientation: exif``.

Frames of other services do not pass through it.
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
    """A ``FrameSink`` that passes frames on to another sink, upright."""

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
        """Turn a frame upright and offer it to the other sink, with the same arguments.

        Raises DecodeError if the frame is too large once it is turned, or, from the other sink, if it is unreadable.
        """
        turned = await asyncio.to_thread(_upright_message, payload, camera)
        await self._sink.offer(
            turned, camera, id_=id_, patient=patient, parent=parent, answered=answered, file=file, arrived=arrived
        )


def _upright_message(payload: bytes | memoryview, camera: str) -> bytes | memoryview:
    """Return a camera's message (a picture's file, or a packed frame) with upright pixels.

    A message that is upright or unreadable is returned unchanged. Raises DecodeError if the turned one is too large.
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
