"""A frame that a model on trial cannot read goes to the model before it, if that can."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
from halimede.worker.preparing import Preparer

from halimede.errors import DecodeError
from halimede.inference import Array, SampleError
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.loaded_model import LoadedModel
from halimede.pipeline.model_slot import ModelSlot
from tests.unit.frames.clouds import Brightness, frame


class Blind(Brightness):
    """Reads no frame."""

    def prepare(self, image: Array) -> Array:
        raise SampleError(f"it wants another shape than {image.shape}")


@contextlib.asynccontextmanager
async def trial() -> AsyncIterator[tuple[Preparer, ModelSlot, list[str]]]:
    """A slot whose canary is blind, and what is said when it is withdrawn."""
    said: list[str] = []
    async with ModelThread() as thread:
        slot = ModelSlot(LoadedModel(Brightness(), thread, "1"))
        slot.try_out(LoadedModel(Blind(), thread, "2"), 100, said.append)
        yield Preparer(thread, 1024), slot, said


async def test_a_frame_that_a_canary_cannot_read_is_the_others_and_the_canary_is_withdrawn() -> None:
    async with trial() as (preparer, slot, said):
        canary = slot.canary
        for i in range(3):
            assert slot.canary is canary
            model, array = await preparer.begin(frame(i), slot)
            assert (model, int(array.flat[0])) == (slot.current, i)
        assert slot.canary is None
        assert len(said) == 1
        assert "another shape" in said[0]


async def test_a_frame_that_neither_can_read_is_refused_and_no_strike() -> None:
    async with trial() as (preparer, slot, said):
        canary = slot.canary
        for _ in range(5):
            with pytest.raises(DecodeError):
                await preparer.begin(frame(1, (2, 2, 3)), slot)
        assert (slot.canary, said) == (canary, [])
