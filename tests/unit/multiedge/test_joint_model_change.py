"""A cloud worker takes another model while its joint uses the one before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import numpy as np

from halimede.inference import Array, Model
from halimede.messages import Prediction
from halimede.multiedge.joint_runner import HoldingThread
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from tests.waiting import patience


class Closing(Model):
    """Cannot answer once it is closed."""

    def __init__(self, name: str) -> None:
        self.name, self.closed = name, threading.Event()
        self.asked, self.go_on = threading.Event(), threading.Event()

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.name,)

    def prepare(self, image: Array) -> Array:
        return image

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        self.asked.set()
        assert self.go_on.wait(30)
        assert not self.closed.is_set()
        return [Prediction(label=self.name) for _ in batch]

    def close(self) -> None:
        self.closed.set()


async def test_a_joint_goes_on_with_the_next_model_and_the_one_before_is_closed_after_its_call() -> None:
    first, second = Closing("first"), Closing("second")
    second.go_on.set()
    async with ModelThread() as one, ModelThread() as other:
        slot = ModelSlot(LoadedModel(first, one))
        async with HoldingThread("joint", slot) as thread:

            def ask() -> str | None:
                return thread.model.predict([np.zeros(1)])[0].label

            asking = asyncio.create_task(thread.call(ask))
            await asyncio.to_thread(first.asked.wait, patience(30))
            slot.replace(LoadedModel(second, other))
            await asyncio.sleep(0.1)
            assert not first.closed.is_set()
            first.go_on.set()
            assert await asking == "first"
            assert await asyncio.to_thread(first.closed.wait, patience(30))
            assert await thread.call(ask) == "second"
            assert thread.model.labels == ("second",)
