"""Frames through a model in its thread: nothing that user code does there takes the worker or other frames down."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from halimede.frames.compute import answer
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


def test_an_estimator_that_calls_exit_costs_its_own_sample_only() -> None:
    outcomes, _ = answer(Leaving(), [frame(1), frame(BAD), frame(2)], 8)
    assert [o.prediction is not None for o in outcomes] == [True, False, True]
    assert "SystemExit" in outcomes[1].error
