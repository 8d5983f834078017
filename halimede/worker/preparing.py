"""Frames become the small model's input here, in a thread of their own: the next one while the model answers this one.

Memory is taken before anything is decoded: a picture may be a thousand times as large as its file.
"""

from __future__ import annotations

import structlog

from halimede.errors import DecodeError
from halimede.frames.budget import Budget
from halimede.frames.compute import prepare
from halimede.frames.encodings import find, measure
from halimede.frames.loaded import Loaded
from halimede.frames.slot import Slot
from halimede.inference import Array, Model
from halimede.messages import Frame
from halimede.pipeline.executor import ModelThread

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

    async def begin(self, frame: Frame, slot: Slot) -> tuple[Loaded, Array]:
        """Return the model that a frame is given to, which holds it from now on, and its input of the frame.

        What a model on trial cannot read is the one's before it, if that can. Raises DecodeError.
        """
        chosen = slot.choose(frame.id)
        try:
            return chosen, await self._held(frame, chosen)
        except DecodeError as error:
            before = slot.before(chosen)
            if before is None:
                raise
            array = await self._held(frame, before)
            slot.strike(chosen, str(error))
            return before, array

    def begin_now(self, frame: Frame, slot: Slot, size: int) -> tuple[Loaded, Array] | None:
        """Do as ``begin``, of pixels of ``size`` bytes; None where something has to be waited for or tried out."""
        if slot.canary or not _small(frame) or not self._memory.take_now(size):
            return None
        loaded = slot.current
        try:
            array = _decoded(frame, loaded.model)
        except BaseException:
            self._memory.give(size)
            raise
        loaded.hold()
        self._memory.give(size - array.nbytes)
        return loaded, array

    def done(self, array: Array) -> None:
        """The model has seen it."""
        self._memory.give(array.nbytes)

    async def _held(self, frame: Frame, loaded: Loaded) -> Array:
        loaded.hold()
        try:
            return await self.prepare(frame, loaded.model)
        except BaseException:
            loaded.release()
            raise

    async def _decode(self, frame: Frame, model: Model) -> Array:
        if _small(frame):
            return _decoded(frame, model)
        return await self._thread.call(_decoded, frame, model)


def _small(frame: Frame) -> bool:
    return frame.data.nbytes <= INLINE_BYTES and find(frame.encoding).cheap


def _decoded(frame: Frame, model: Model) -> Array:
    try:
        return prepare(model, frame)
    except DecodeError:
        raise
    except Exception as error:
        log.exception("frame not prepared", frame=frame.id.hex())
        raise DecodeError(f"pre-processing failed: {type(error).__name__}") from error
