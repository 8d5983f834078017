"""Frames through a model in its thread: nothing that user code does there takes the worker or other frames down."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from halimede.inference import Array, SampleError
from halimede.messages import Prediction
from halimede.pipeline.inference import Inference, PlainSample
from tests.unit.frames.clouds import BAD, Brightness, frame


class Leaving(Brightness):
    """Calls sys.exit on a bad frame, as a script might."""

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        try:
            return super().predict(batch)
        except (SampleError, RuntimeError):
            sys.exit("no")


def test_an_estimator_that_calls_exit_costs_its_own_sample_only() -> None:
    outcomes = Inference(8)(Leaving(), [PlainSample(frame(1)), PlainSample(frame(BAD)), PlainSample(frame(2))])
    assert [o.prediction is not None for o in outcomes] == [True, False, True]
    assert "SystemExit" in outcomes[1].error
