"""Puts frames through a model: decodes, prepares and answers them, so that no frame can take another one with it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from halimede.errors import DecodeError
from halimede.frames.encodings import decode
from halimede.inference import Array, Model, SampleError, group, isolate
from halimede.messages import Frame, Prediction


@dataclass(slots=True)
class Outcome:
    """What became of one frame: a prediction, or an error.

    ``unfit``: the frame itself is to blame (unreadable, of the wrong shape), as it will be each time; otherwise the
    model failed on it. ``batch``: samples in its model call; ``ms``: that call's time; ``began``: when (monotonic).
    ``decoded``: when its decoding began and ended, where that was part of the work.
    """

    prediction: Prediction | None = None
    error: str = ""
    unfit: bool = False
    batch: int = 0
    ms: float = 0.0
    began: float = 0.0
    decoded: tuple[float, float] | None = None


def prepare(model: Model, frame: Frame) -> Array:
    """Decode a frame and make it the model's input. Raises DecodeError when it is unreadable or does not fit."""
    try:
        return model.prepare_frame(frame, decode(frame))
    except SampleError as error:
        raise DecodeError(str(error)) from error


def run(model: Model, samples: Sequence[Array], limit: int) -> tuple[list[Outcome], int]:
    """Answer prepared samples in batches of equal dtype and shape; return outcomes in order, and model calls made."""
    outcomes: list[Outcome] = [Outcome()] * len(samples)
    calls = 0

    def predict(batch: Sequence[int]) -> list[Prediction]:
        nonlocal calls
        calls += 1
        return model.predict([samples[i] for i in batch])

    for batch in group(range(len(samples)), limit, lambda i: samples[i]):
        began = time.monotonic()
        answers = isolate(batch, predict)
        ms = (time.monotonic() - began) * 1000
        for i, answer in zip(batch, answers, strict=True):
            if isinstance(answer, SampleError):
                outcomes[i] = Outcome(error=str(answer), batch=len(batch), ms=ms, began=began)
            else:
                outcomes[i] = Outcome(answer, batch=len(batch), ms=ms, began=began)
    return outcomes, calls


def answer(model: Model, frames: Sequence[Frame], limit: int) -> tuple[list[Outcome], int]:
    """Decode, prepare and answer frames; return outcomes in order, and model calls made."""
    if len(frames) == 1:
        return _answer_one(model, frames[0])
    outcomes: list[Outcome] = [Outcome()] * len(frames)
    ready: list[tuple[int, Array, tuple[float, float]]] = []
    for i, frame in enumerate(frames):
        began = time.monotonic()
        sample = _prepared(model, frame)
        if isinstance(sample, str):
            outcomes[i] = Outcome(error=sample, unfit=True)
        else:
            ready.append((i, sample, (began, time.monotonic())))
    answers, calls = run(model, [sample for _, sample, _ in ready], limit)
    for (i, _, decoded), outcome in zip(ready, answers, strict=True):
        outcome.decoded = decoded
        outcomes[i] = outcome
    return outcomes, calls


def _answer_one(model: Model, frame: Frame) -> tuple[list[Outcome], int]:
    """Answer one frame: there is nothing to part into batches."""
    arrived = time.monotonic()
    sample = _prepared(model, frame)
    if isinstance(sample, str):
        return [Outcome(error=sample, unfit=True)], 0
    began = time.monotonic()
    (said,) = isolate((sample,), model.predict)
    ms = (time.monotonic() - began) * 1000
    error, prediction = (str(said), None) if isinstance(said, SampleError) else ("", said)
    return [Outcome(prediction, error, batch=1, ms=ms, began=began, decoded=(arrived, began))], 1


def _prepared(model: Model, frame: Frame) -> Array | str:
    """Return the model's input of a frame, or what is wrong with it."""
    try:
        return prepare(model, frame)
    except DecodeError as error:
        return str(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (pre-processing may be a user's own; the others must be answered)
        return f"pre-processing failed: {type(error).__name__}: {error}"
