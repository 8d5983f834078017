"""A script's cloud worker answers scripts as they asked, and frames of halimede's own edge workers as any estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from halimede.api.model import ModelSpec
from halimede.compat.sedna.call_codec import CALL_KEY, read_answer, write_call
from halimede.compat.sedna.core.joint_inference import BigModelService, TSBigModelService
from halimede.compat.sedna.serving import BigModel, Estimator
from halimede.errors import DecodeError
from halimede.frames.payloads import new_frame
from halimede.inference.estimator import EstimatorModel, load_instance
from halimede.messages import Prediction
from halimede.pipeline.inference import Inference, PlainSample, prepare


class Counting:
    calls = 0

    def load(self, model_url: str) -> None:
        self.model = model_url

    def predict(self, data: Any, **_: Any) -> Any:
        self.calls += 1
        if np.sum(data) == 13:
            raise SystemExit("thirteen")
        return [0.25, 0.75]


@pytest.fixture
def model() -> BigModel:
    service = BigModelService(Counting)
    spec = ModelSpec(url="/x", format="python")
    return BigModel(EstimatorModel(load_instance(Estimator(service), "/big"), spec), service)


def test_calls_and_frames_are_answered_side_by_side_and_a_bad_one_alone_fails(model: BigModel) -> None:
    calls = [write_call([value], {}) for value in (1, 13, 2, 3)]
    frames = [*calls, new_frame(np.array([1], np.uint8))]
    outcomes = Inference(8)(model, [PlainSample(frame) for frame in frames])
    said = [read_answer(o.prediction) if o.prediction else o.error for o in outcomes]
    assert said == [[0.25, 0.75], "the estimator failed: SystemExit: thirteen", *[[0.25, 0.75]] * 3]
    own = outcomes[-1].prediction
    assert (own.label, own.probabilities) == ("1", [0.25, 0.75])
    assert model._service.estimator.calls == 5  # type: ignore[attr-defined]  # a call whose batch broke is not computed again
    assert model._service.estimator.model == "/big"  # type: ignore[attr-defined]


def test_a_call_that_makes_no_sense_is_the_frames_own_fault(model: BigModel) -> None:
    frame = new_frame(np.zeros(4, np.uint8))
    frame.edge = Prediction(value={CALL_KEY: {"size": 5}})
    with pytest.raises(DecodeError, match="5 bytes"):
        prepare(model, frame)


def test_an_answer_that_cannot_travel_is_an_error_of_that_sample(model: BigModel) -> None:
    model._service.inference = lambda *_, **__: object()
    outcomes = Inference(1)(model, [PlainSample(write_call("text", {}))])
    assert outcomes[0].prediction is None
    assert "JSON" in outcomes[0].error


def test_the_name_of_older_scripts_is_there() -> None:
    assert TSBigModelService is BigModelService
    with pytest.raises(NotImplementedError, match="trains nothing"):
        TSBigModelService(Counting).train([])
