"""Frames become the small model's input here, in a thread of their own: the next one while the model answers this one.

Memory is taken before anything is decoded: a picture may be a thousand times as large as its file.
"""

from __future__ import annotations

import structlog

from halimede.errors import DecodeError
from halimede.frames.budget import Budget
from halimede.frames.compute import ModelThread, prepare
from halimede.frames.encodings import find, measure
from halimede.inference import Array, Model
from halimede.messages import Frame

log = structlog.get_logger()

#: a raw frame up to this size (bytes) is prepared on the event loop: a hop to a thread would cost more
INLINE_BYTES = 64 * 1024


class Preparer:
    """Decodes frames for models, within ``limit`` bytes of decoded frames that no model has seen yet."""

    def __init__(self, thread: ModelThread, limit: int) -> None:
        self._thread = thread
        self._memory = Budget(limit)

    async def prepare(self, frame: Frame, model: Model) -> Array:
        """Return the input of ``model``, once there is memory for it; ``done`` gives that back.

        Raises DecodeError, whatever is wrong with the frame.
        """
        size = measure(frame)
        await self._memory.take(size)
        try:
            array = await self._decode(frame, model)
        except BaseException:
            self._memory.give(size)
            raise
        self._memory.give(size - array.nbytes)
        return array

    def done(self, array: Array) -> None:
        """The model has seen it."""
        self._memory.give(array.nbytes)

    async def _decode(self, frame: Frame, model: Model) -> Array:
        try:
            if find(frame.encoding).cheap and len(frame.data) <= INLINE_BYTES:
                return prepare(model, frame)
            return await self._thread.call(prepare, model, frame)
        except DecodeError:
            raise
        except Exception as error:
            log.exception("frame not prepared", frame=frame.id.hex())
            raise DecodeError(f"pre-processing failed: {type(error).__name__}") from error
