"""Frames through a model in its thread: nothing that user code does there takes the worker or other frames down."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from halimede.errors import DecodeError
from halimede.inference import Array, SampleError
from halimede.messages import Prediction
from halimede.mining import Verdict
from halimede.mining.edge_only import EdgeOnly
from halimede.pipeline import inference
from halimede.pipeline.inference import Inference, InferenceOutcome, PlainSample, prepare
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


def test_samples_of_one_shape_have_one_call_and_outcomes_their_order() -> None:
    model, shapes = Brightness(), [(2, 2), (3, 3), (2, 2), (3, 3), (2, 2)]
    outcomes = Inference(8)(model, [PlainSample(frame(value, shape)) for value, shape in enumerate(shapes)])
    assert sorted(model.batches) == [[0, 2, 4], [1, 3]]
    assert [outcome.prediction and outcome.prediction.label for outcome in outcomes] == list("01234")


@pytest.fixture(name="_clock")
def _seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes a second."""
    clock: Iterator[float] = itertools.count(1.0)
    monkeypatch.setattr(inference, "time", SimpleNamespace(monotonic=lambda: next(clock)))


def is_bright(prediction: Prediction) -> bool:
    return int(prediction.label or "0") > 1


@pytest.mark.usefixtures("_clock")
@pytest.mark.parametrize(
    ("count", "decoded", "began", "mined"),
    [(1, [(1.0, 2.0)], 3.0, [(5.0, 6.0)]), (2, [(1.0, 2.0), (3.0, 4.0)], 5.0, [(7.0, 8.0), (9.0, 10.0)])],
)
def test_an_outcome_has_the_times_of_its_decoding_its_call_and_its_mining(
    count: int, decoded: list[tuple[float, float]], began: float, mined: list[tuple[float, float]]
) -> None:
    batch = [PlainSample(frame(1 + number), mined=True) for number in range(count)]
    outcomes = Inference(8, is_bright)(Brightness(), batch)
    assert [outcome.decoded for outcome in outcomes] == decoded
    assert [outcome.mined for outcome in outcomes] == mined
    assert {(outcome.began, outcome.ms, outcome.batch, outcome.scale) for outcome in outcomes} == {
        (began, 1000.0, count, 1)
    }
    assert [outcome.verdict and outcome.verdict.hard for outcome in outcomes] == [False, True][:count]


@pytest.mark.usefixtures("_clock")
@pytest.mark.parametrize("count", [1, 2])
def test_prepared_samples_are_not_decoded_and_unmined_ones_have_no_verdict(count: int) -> None:
    batch = [PlainSample(frame(), np.full((2, 2), 7, np.uint8)) for _ in range(count)]
    for outcome in Inference(8, is_bright)(Brightness(), batch):
        assert (outcome.decoded, outcome.verdict, outcome.mined, outcome.batch) == (None, None, None, count)
        assert outcome.prediction == Prediction(label="7", score=1.0)


@pytest.mark.usefixtures("_clock")
@pytest.mark.parametrize(("scale", "judged"), [(1, "small"), (2, "whole")])
def test_mining_before_inference_judges_all_pixels(monkeypatch: pytest.MonkeyPatch, scale: int, judged: str) -> None:
    images = {"small": np.full((1, 1), 1, np.uint8), "whole": np.full((2, 2), 1, np.uint8)}
    judged_images: list[np.ndarray] = []

    def judge_sample(_: object, image: np.ndarray) -> Verdict:
        judged_images.append(image)
        return Verdict(hard=True)

    monkeypatch.setattr(inference, "decode", lambda _, decoding=None: images["small" if decoding else "whole"])
    monkeypatch.setattr(inference, "scale_of", lambda _: scale)
    monkeypatch.setattr(inference, "judge_sample", judge_sample)
    model: Any = Brightness()
    monkeypatch.setattr(Brightness, "decoding", object(), raising=False)
    for is_mined in (True, False):
        (outcome,) = Inference(8, EdgeOnly(), mines_samples=True)(model, [PlainSample(frame(), mined=is_mined)])
        assert outcome.scale == scale
        assert (outcome.verdict is not None, outcome.mined is not None) == (is_mined, is_mined)
        if is_mined:
            assert (outcome.mined, outcome.decoded) == ((1.0, 2.0), (1.0, 3.0))
    assert [image is images[judged] for image in judged_images] == [True]
    assert prepare(model, frame()).scale == scale


class Unpreparing(Brightness):
    """Cannot prepare bright samples: the brightest by a defect."""

    def prepare(self, image: Array) -> Array:
        if image.flat[0] > 1:
            raise SampleError("too bright") if image.flat[0] == 2 else ValueError("no axis")
        return image


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("value", "error", "unfit"), [(2, "too bright", True), (3, "pre-processing failed", True), (BAD, "", False)]
)
def test_an_error_of_the_sample_itself_is_told_from_one_of_the_model(
    count: int, value: int, error: str, *, unfit: bool
) -> None:
    model = Brightness() if value == BAD else Unpreparing()
    infer = Inference(8, is_bright)
    *readable, outcome = infer(model, [*[PlainSample(frame(1))] * (count - 1), PlainSample(frame(value), mined=True)])
    assert (outcome.prediction, outcome.unfit) == (None, unfit)
    assert error in outcome.error
    assert (outcome.batch, outcome.verdict) == ((0, None) if unfit else (count, Verdict(hard=True)))
    assert all(sample.prediction for sample in readable)
    if unfit:
        with pytest.raises(DecodeError, match=error):
            prepare(model, frame(value))


def test_a_model_with_a_calibration_of_its_own_has_its_own_miner() -> None:
    own, other = Brightness(), Brightness()
    infer = Inference(8, is_bright)
    infer.miners[own] = lambda _: True
    hard = []
    for model in (own, other, None):
        outcome = InferenceOutcome(Prediction(label="1"))
        infer.mine(outcome, model)
        hard.append(outcome.verdict and outcome.verdict.hard)
    assert hard == [True, False, False]
    failed = InferenceOutcome(error="it broke")
    infer.mine(failed)
    assert failed.verdict == Verdict(hard=True)
    Inference(8).mine(untouched := InferenceOutcome())
    assert (untouched.verdict, untouched.mined) == (None, None)


def test_only_mining_of_a_users_own_is_foreign_code() -> None:
    assert [Inference(8, miner).ours for miner in (None, EdgeOnly(), is_bright)] == [True, True, False]
