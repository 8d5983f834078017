"""One pipeline answers the samples of all its intakes with one model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from halimede.inference import Array
from halimede.messages import Prediction
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from tests.simulated import eventually
from tests.unit.frames.clouds import Brightness, frame
from tests.unit.pipeline.answering import LIMIT, answering


class Gated(Brightness):
    """Waits in its thread until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        assert self.gate.wait(20)
        return super().predict(batch)


async def test_own_frames_and_those_of_others_wait_for_one_model() -> None:
    model = Gated()
    async with ModelThread() as thread, answering(ModelSlot(LoadedModel(model, thread))) as one:
        service_ms = one.pipeline.load().service_ms
        own = asyncio.create_task(one.answer([frame(1), frame(2)]))
        others = asyncio.create_task(one.answer([frame(3), frame(4), frame(5)]))
        await eventually(lambda: one.pipeline.load().queued == 5)
        assert (one.pipeline.load().credits, one.pipeline.load().service_ms) == (LIMIT - 5, service_ms)
        model.gate.set()
        found = [each.outcome.prediction for _, each in [*await own, *await others]]
        assert [prediction and prediction.label for prediction in found] == list("12345")
        assert (one.pipeline.load().queued, one.pipeline.load().credits) == (0, LIMIT)
