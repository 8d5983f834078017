"""Runs samples through a model: decoding, preparation, batches, mining. One bad sample fails alone.

``Inference`` is called in the model's thread, or on the event loop if the model is short enough. Mining judges whether
a sample is hard: by the prediction, or by the sample itself before inference.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

import structlog
from msgspec import Struct

from halimede.errors import DecodeError, describe_exception
from halimede.frames.encodings import decode
from halimede.inference import Array, Model, SampleError, group, isolate
from halimede.inference.geometry import scale_of
from halimede.messages import Frame, Prediction
from halimede.mining import Miner, Verdict, is_ours, judge, judge_sample
from halimede.mining.two_thresholds import TwoThresholds

log = structlog.get_logger()

#: verdict on a sample that the model could not answer
HARD = Verdict(hard=True)


class InferenceOutcome(Struct, eq=False):
    """The outcome of inference on one sample: a prediction or an error. Times are monotonic, in seconds.

    Attributes:
        prediction: None: there is an error, or the model did not run.
        error: why there is no prediction; empty: there is one, or the model did not run.
        unfit: the sample itself is the cause of the error (unreadable, of the wrong shape), so each attempt would fail.
        batch: number of samples in its model call; 0: the model did not run.
        ms: milliseconds of its model call.
        began: when its model call began.
        decoded: begin and end of its decoding; None: it was decoded before.
        scale: the sides of its picture were divided by this when it was decoded.
        verdict: of mining; None: the sample was not mined here.
        mined: begin and end of mining; None: the sample was not mined here.

    """

    prediction: Prediction | None = None
    error: str = ""
    unfit: bool = False
    batch: int = 0
    ms: float = 0.0
    began: float = 0.0
    decoded: tuple[float, float] | None = None
    scale: int = 1
    verdict: Verdict | None = None
    mined: tuple[float, float] | None = None


class Inferable(Protocol):
    """The fields of a sample that inference reads; ``Sample`` and ``PlainSample`` have them."""

    @property
    def frame(self) -> Frame:
        """The sample as received."""

    @property
    def input(self) -> Array | None:
        """The model's input; None: the frame is decoded and prepared now."""

    @property
    def mined(self) -> bool:
        """Whether mining applies to the sample."""


class PlainSample(Struct, eq=False):
    """An ``Inferable``, which describes the fields, for callers without a pipeline."""

    frame: Frame
    input: Array | None = None
    mined: bool = False


class PreparedInput(Struct, eq=False):
    """A model's input: one sample without batch axis.

    Attributes:
        array: as ``Model.prepare`` returns it.
        scale: the sides of its picture were divided by this when it was decoded.

    """

    array: Array
    scale: int = 1


def prepare(model: Model, frame: Frame) -> PreparedInput:
    """Return the model's input for a frame, decoded and pre-processed. Raises DecodeError for any defect."""
    try:
        image = decode(frame, model.decoding)
        return PreparedInput(model.prepare_frame(frame, image), scale_of(image) if model.decoding else 1)
    except DecodeError:
        raise
    except SampleError as error:
        raise DecodeError(str(error)) from error
    except Exception as error:  # pre-processing may be user code
        log.exception("frame not decoded", frame=frame.id.hex())
        raise DecodeError(f"pre-processing failed: {describe_exception(error)}") from error


class Inference:
    """Runs samples through a model, at most ``limit`` in one call, and mines them.

    ``miner``: judges each prediction, or (``mines_samples``) each decoded sample; None: there is no mining.

    Attributes:
        ours: no user code but the model's runs here.
        miners: for models with a calibration of their own, what judges their predictions in place of ``miner``.

    """

    def __init__(self, limit: int, miner: Miner | None = None, *, mines_samples: bool = False) -> None:
        self.ours = miner is None or is_ours(miner)
        self.miners: WeakKeyDictionary[Model, Miner] = WeakKeyDictionary()
        self._limit = limit
        self._miner = None if mines_samples else miner
        self._sample_miner = miner if mines_samples else None

    def __call__(self, model: Model, samples: Sequence[Inferable]) -> list[InferenceOutcome]:
        """Return the outcome of each sample, in order. Blocks; raises nothing because of a sample."""
        if len(samples) == 1:
            return [self._one(model, samples[0])]
        outcomes: list[InferenceOutcome] = []
        ready: list[tuple[int, Array]] = []
        for i, sample in enumerate(samples):
            outcome = InferenceOutcome()
            outcomes.append(outcome)
            array = sample.input if sample.input is not None else self._read(model, sample, outcome)
            if array is not None:
                ready.append((i, array))
        for batch in group(ready, self._limit, lambda item: item[1]):
            began = time.monotonic()
            answers = isolate([array for _, array in batch], model.predict)
            ms = (time.monotonic() - began) * 1000
            for (i, _), answer in zip(batch, answers, strict=True):
                outcomes[i].batch, outcomes[i].began, outcomes[i].ms = len(batch), began, ms
                self._record_answer(model, samples[i], outcomes[i], answer)
        return outcomes

    def _one(self, model: Model, sample: Inferable) -> InferenceOutcome:
        """Return the outcome of one sample."""
        outcome = InferenceOutcome()
        array = sample.input if sample.input is not None else self._read(model, sample, outcome)
        if array is not None:
            outcome.batch, outcome.began = 1, time.monotonic()
            (answer,) = isolate((array,), model.predict)
            outcome.ms = (time.monotonic() - outcome.began) * 1000
            self._record_answer(model, sample, outcome, answer)
        return outcome

    def _read(self, model: Model, sample: Inferable, outcome: InferenceOutcome) -> Array | None:
        """Return the model's input for a sample; None if decoding or preparation failed: ``outcome`` has the error."""
        began, frame, array = time.monotonic(), sample.frame, None
        try:
            image = decode(frame, model.decoding)
            if model.decoding:
                outcome.scale = scale_of(image)
            if self._sample_miner and sample.mined:
                outcome.verdict = judge_sample(self._sample_miner, image if outcome.scale == 1 else decode(frame))
                outcome.mined = (began, time.monotonic())
            array = model.prepare_frame(frame, image)
        except (DecodeError, SampleError) as error:
            outcome.error, outcome.unfit = str(error), True
        except (Exception, SystemExit) as error:  # noqa: BLE001 (pre-processing may be a user's own; the others must be answered)
            outcome.error, outcome.unfit = f"pre-processing failed: {describe_exception(error)}", True
        outcome.decoded = (began, time.monotonic())
        return array

    def _record_answer(
        self, model: Model, sample: Inferable, outcome: InferenceOutcome, answer: Prediction | SampleError
    ) -> None:
        """Write the model's answer to a sample into its outcome, and mine it."""
        if isinstance(answer, SampleError):
            outcome.error = str(answer)
        else:
            outcome.prediction = answer
        if self._miner and sample.mined:
            self.mine(outcome, model)

    def mine(self, outcome: InferenceOutcome, model: Model | None = None) -> None:
        """Write the verdict of mining into an outcome; without a prediction the sample is hard.

        ``TwoThresholds`` also gives the prediction its class. Nothing changes unless predictions are mined. ``model``:
        whose outcome it is; None: a peer's model.
        """
        if self._miner:
            began, miner = time.monotonic(), self._miner
            if model is not None:
                miner = self.miners.get(model, miner)
            outcome.verdict = judge(miner, outcome.prediction) if outcome.prediction is not None else HARD
            if isinstance(miner, TwoThresholds) and outcome.prediction is not None:
                outcome.prediction = miner.final_answer(outcome.prediction)
            outcome.mined = (began, time.monotonic())
