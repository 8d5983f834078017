"""Frames through a model in its thread: nothing that user code does there takes the worker or other frames down."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Sequence

import pytest

from halimede.frames.compute import ModelStuckError, ModelThread, answer
from halimede.inference import Array, SampleError
from halimede.messages import Prediction
from tests.unit.frames.clouds import BAD, Brightness, frame


class Leaving(Brightness):
    """Calls sys.exit on a bad frame, as a script might."""

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        try:
            return super().predict(batch)
        except (SampleError, RuntimeError):
            sys.exit("no")


async def test_a_call_that_does_not_come_back_is_named() -> None:
    gate = threading.Event()
    async with ModelThread() as thread:
        await thread.call(lambda: None)
        call = thread.call(gate.wait, 30)
        waiting = asyncio.ensure_future(call)
        with pytest.raises(ModelStuckError, match="MODEL_TIMEOUT_S"):
            await thread.watch(0.2)
        gate.set()
        assert await waiting


def test_an_estimator_that_calls_exit_costs_its_own_sample_only() -> None:
    outcomes, _ = answer(Leaving(), [frame(1), frame(BAD), frame(2)], 8)
    assert [o.prediction is not None for o in outcomes] == [True, False, True]
    assert "SystemExit" in outcomes[1].error
