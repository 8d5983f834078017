"""Frames through a model, off the event loop: one thread a model, and no frame can take another one down with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from halimede.errors import DecodeError, HalimedeError
from halimede.frames.encodings import decode
from halimede.inference import Array, Model, SampleError, group, isolate
from halimede.messages import Frame, Prediction

P = ParamSpec("P")
T = TypeVar("T")


class ModelStuckError(HalimedeError):
    """The model has not come back from one call. Nothing can end a thread but the end of its process."""


class ModelThread:
    """The one thread in which a model runs: models need not be thread-safe, and the event loop never starves.

    Leaving the block does not wait for a call under way. ``make`` makes another kind of thread, by its name.
    """

    def __init__(self, name: str = "model", make: Callable[[str], Executor] | None = None) -> None:
        self._name = name
        self._make = make or partial(ThreadPoolExecutor, 1)
        self._executor: Executor | None = None
        self._began: float | None = None
        self._calls = 0

    async def __aenter__(self) -> Self:
        self._executor = self._make(self._name)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executor:
            self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = None

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` in the thread, after what was asked for earlier."""
        if self._executor is None:
            raise RuntimeError("use the model's thread inside its `async with` block")
        loop = asyncio.get_running_loop()
        self._calls += 1
        try:
            return await loop.run_in_executor(self._executor, lambda: self._run(work, *args, **kwargs))
        finally:
            self._calls -= 1

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits in the thread, as far as its callers know: then ``inline`` may be used."""
        return not self._calls and self._began is None and self._executor is not None

    def inline(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` here and now, as a call of this thread's that ``watch`` sees. Only while it is ``idle``."""
        return self._run(work, *args, **kwargs)

    @property
    def busy_s(self) -> float:
        """Seconds that the call under way has taken so far, 0 when there is none."""
        began = self._began
        return time.monotonic() - began if began is not None else 0.0

    async def watch(self, limit_s: float) -> None:
        """Run until cancelled; raise ModelStuckError when one call takes longer than ``limit_s`` seconds."""
        await watch(lambda: self.busy_s, limit_s)

    def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._began = time.monotonic()
        try:
            return work(*args, **kwargs)
        finally:
            self._began = None


async def watch(busy_s: Callable[[], float], limit_s: float) -> None:
    """Run until cancelled; raise ModelStuckError when ``busy_s`` says that a call takes longer than ``limit_s``."""
    while True:
        await asyncio.sleep(min(1.0, limit_s / 4))
        if busy_s() > limit_s:
            raise ModelStuckError(
                f"the model has not answered for {limit_s:g} s: mend its predict, or raise MODEL_TIMEOUT_S"
            )


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
