"""One opened version of a model: its inputs and outputs; it checks requests before they wait for the model.

A model accepts one of two kinds of requests. The first is its own tensors, as its file declares them. The second is
pictures, if its spec defines their pre-processing and post-processing: ``image`` (JPEG or PNG files as BYTES) is
answered with ``prediction`` (JSON as BYTES), as everywhere in halimede. A user's estimator accepts only the second
kind.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from halimede.api.model import ModelSpec
from halimede.api.model_formats import format_of
from halimede.frames import new_id
from halimede.frames.orientation import upright
from halimede.inference import Array, Model, SampleError, open_model
from halimede.inference.batching import isolate
from halimede.inference.file_model import FileModel
from halimede.inference.scripts import confine
from halimede.inference.tensor_model import Port, TensorModel, open_tensors
from halimede.messages import Frame, Prediction
from halimede.models.desired_state import DesiredModel
from halimede.models.rollout import ALL_PERCENT, Rollout
from halimede.picture_files import encoding_of
from halimede.pipeline.executor import InlinePolicy
from halimede.pipeline.inference import Inference, PlainSample
from halimede.serving.batch_executor import BatchExecutor, Ran
from halimede.serving.errors import ModelFailedError, ModelNotFoundError, ModelUnavailableError, ServeError
from halimede.serving.tensors import BYTES, Tensor, objects
from halimede.tracing.latency import Distribution

IMAGE, PREDICTION = "image", "prediction"
#: the common part of requests that can share a call: outputs, and each input's name, type and shape without the first
#: axis
Like = tuple[object, ...]


class Work:
    """One request's tensors in the engine."""

    __slots__ = ("feeds", "outputs", "rows")

    def __init__(self, feeds: dict[str, Array], outputs: Sequence[str], rows: int) -> None:
        self.feeds, self.outputs, self.rows = feeds, outputs, rows

    @property
    def like(self) -> Like:
        """The common part of requests that can share a call."""
        return (*self.outputs, *((name, a.dtype.char, a.shape[1:]) for name, a in self.feeds.items()))


class Loaded:
    """An opened model with its threads. ``start`` once, ``infer``, then ``retire``."""

    def __init__(
        self, *, tensors: TensorModel | None, pictures: Model | None, spec: ModelSpec, most: int, threads: int = 1
    ) -> None:
        form = format_of(spec.format)
        self.platform = form.platform if form else spec.format
        self.inputs: Mapping[str, Port] = tensors.inputs if tensors else {}
        self.outputs: Mapping[str, Port] = tensors.outputs if tensors else {}
        #: whether requests share calls of the model
        self.batched = tensors.batched if tensors else True
        self.takes_pictures = pictures is not None
        #: the names of the second kind, unless the model's own tensors have the same names
        self.image = IMAGE if IMAGE not in self.inputs else f"{IMAGE}_file"
        self.prediction = PREDICTION if PREDICTION not in self.outputs else f"{PREDICTION}_json"
        self._tensors = tensors
        self._pictures = pictures
        self._confine = partial(confine, spec)
        self._all = list(self.outputs)
        self._most = most
        #: whether a call runs in one thread, so that its thread time is its whole time
        self._alone = threads == 1
        self._engine: BatchExecutor | None = None

    @property
    def waiting(self) -> int:
        """Open requests."""
        return self._engine.waiting if self._engine else 0

    @property
    def busy_s(self) -> float:
        """Seconds since the start of the model's longest running call."""
        return self._engine.busy_s if self._engine else 0.0

    def start(self, name: str, *, instances: int = 1, ran: Ran | None = None) -> None:
        """Start to accept requests. A user's estimator or script runs in one thread."""
        measured_s = self._tensors.call_s if self._tensors and self._alone else math.inf
        policy = InlinePolicy(measured_s * 1000) if measured_s < math.inf else None
        if self._pictures and not self._pictures.ours:
            instances = 1
        self._engine = BatchExecutor(name, self._run, self._most, instances, ran, policy, self._confine)
        self._engine.start()

    async def infer(
        self, tensors: Sequence[Tensor], outputs: Sequence[str], until: float = float("inf")
    ) -> list[Tensor]:
        """Answer one request; without ``wanted`` with all outputs. Raises ServeError."""
        assert self._engine is not None, "started"  # noqa: S101 - for the type checker
        if self.takes_pictures and any(tensor.name == self.image for tensor in tensors):
            frames = self._frames(tensors, outputs)
            predictions: list[Prediction] = await self._engine.submit(frames, max(1, len(frames)), until)
            texts = [msgspec.json.encode(prediction) for prediction in predictions]
            return [Tensor(self.prediction, BYTES, objects(texts, [len(texts)]))]
        work = self._work(tensors, outputs)
        arrays: list[Array]
        if self._tensors and self._engine.is_quick(work.rows):
            model = self._tensors
            arrays = self._engine.at_once(lambda: model.run(work.feeds, work.outputs), work.rows)
        else:
            arrays = await self._engine.submit(work, work.rows, until)
        ports = self.outputs
        return [Tensor(name, ports[name].datatype, array) for name, array in zip(work.outputs, arrays, strict=True)]

    async def retire(self) -> None:
        """Answer pending requests, then free the model. Submit no more requests."""
        if self._engine:
            await self._engine.drained()
            self._engine.close()
        await asyncio.to_thread(self.free)

    def free(self) -> None:
        """Free the model."""
        for model in (self._tensors, self._pictures):
            if model:
                model.close()

    # --- requests -------------------------------------------------------------------------------------------------

    def _work(self, tensors: Sequence[Tensor], outputs: Sequence[str]) -> Work:
        """Check a request against the model's declared inputs and outputs."""
        ports = self.inputs
        feeds: dict[str, Array] = {}
        for tensor in tensors:
            port = ports.get(tensor.name)
            if port is None:
                raise ServeError(f"there is no input {tensor.name[:80]!r}: this model takes {self._inputs_text()}")
            array = tensor.array
            if tensor.datatype != port.datatype:
                raise ServeError(f"input {port.name} is {port.datatype}, not {tensor.datatype}")
            if not port.takes(array.shape):
                raise ServeError(f"input {port.name} has shape {list(port.shape or ())}, not {list(array.shape)}")
            feeds[port.name] = _text(port.name, array) if port.datatype == BYTES else array
        if len(feeds) != len(ports) or len(tensors) != len(ports):
            raise ServeError(f"give each input once: this model takes {self._inputs_text()}")
        for name in outputs:
            if name not in self.outputs:
                existing = [*self.outputs, *([f"{self.prediction} (for {self.image})"] if self.takes_pictures else [])]
                raise ServeError(f"there is no output {name[:80]!r}: this model has {', '.join(existing)}")
        rows = 1
        if self.batched:
            rows = len(next(iter(feeds.values())))
            if any(len(array) != rows for array in feeds.values()):
                raise ServeError("the first axis of all inputs counts the rows: give as many of each")
        return Work(feeds, outputs or self._all, rows)

    def _inputs_text(self) -> str:
        own = ", ".join(f"{port.name} ({port.datatype} {list(port.shape or ())})" for port in self.inputs.values())
        pictures = f"{self.image} (BYTES [-1]: JPEG or PNG files) as the only input" if self.takes_pictures else ""
        return " or ".join(filter(None, (own, pictures)))

    def _frames(self, tensors: Sequence[Tensor], outputs: Sequence[str]) -> list[Frame]:
        """Make frames from a request's pictures. They are decoded in the model's thread."""
        (tensor, *further) = tensors
        if further or tensor.datatype != BYTES or tensor.array.ndim != 1:
            raise ServeError(f"input {self.image} must be the only input, BYTES with one axis")
        if outputs and list(outputs) != [self.prediction]:
            raise ServeError(f"input {self.image} has only the output {self.prediction}")
        return [_frame(self.image, item) for item in tensor.array]

    # --- in the engine's thread -----------------------------------------------------------------------------------

    def _run(self, jobs: Sequence[Work | list[Frame]]) -> list[Any]:
        """Answer jobs of both kinds; jobs with equal shapes share calls."""
        answers: list[Any] = [None] * len(jobs)
        alike: dict[Like, list[int]] = {}
        pictures: list[int] = []
        for i, job in enumerate(jobs):
            if isinstance(job, Work):
                alike.setdefault(job.like if self.batched else (i,), []).append(i)
            else:
                pictures.append(i)
        for members in alike.values():
            for part in _parts(members, [work.rows if isinstance(work, Work) else 0 for work in jobs], self._most):
                batch = [job for i in part if isinstance(job := jobs[i], Work)]
                for i, answer in zip(part, isolate(batch, self._together), strict=True):
                    answers[i] = answer
        for i, answer in zip(
            pictures, self._answer_pictures([job for job in jobs if isinstance(job, list)]), strict=True
        ):
            answers[i] = answer
        return answers

    def _together(self, batch: Sequence[Work]) -> list[list[Array]]:
        """Run compatible requests in one call."""
        assert self._tensors is not None, "asked by tensors"  # noqa: S101 - for the type checker
        first = batch[0]
        if len(batch) == 1:
            return [self._tensors.run(first.feeds, first.outputs)]
        feeds = {name: np.concatenate([work.feeds[name] for work in batch]) for name in first.feeds}
        whole = self._tensors.run(feeds, first.outputs)
        total = sum(work.rows for work in batch)
        if any(not array.ndim or len(array) != total for array in whole):
            raise SampleError(f"the model did not return {total} rows for {total} rows")
        answers, at = [], 0
        for work in batch:
            answers.append([array[at : at + work.rows] for array in whole])
            at += work.rows
        return answers

    def _answer_pictures(self, jobs: Sequence[list[Frame]]) -> list[Any]:
        """Answer pictures; if one of them fails, its whole request fails."""
        if not jobs:
            return []
        assert self._pictures is not None, "asked by pictures"  # noqa: S101 - for the type checker
        outcomes = Inference(self._most)(self._pictures, [PlainSample(frame) for job in jobs for frame in job])
        answers: list[Any] = []
        at = 0
        for job in jobs:
            mine, at = outcomes[at : at + len(job)], at + len(job)
            bad = next(((i, one) for i, one in enumerate(mine) if one.prediction is None), None)
            if bad is None:
                answers.append([one.prediction for one in mine])
            else:
                text = f"{self.image}[{bad[0]}]: {bad[1].error}"
                answers.append(ServeError(text) if bad[1].unfit else ModelFailedError(text))
        return answers


def open_loaded(
    path: Path, spec: ModelSpec, *, estimator: object | None = None, threads: int = 1, most: int = 64
) -> Loaded:
    """Open a model's file and run it once. Blocks. Raises ModelError or InvalidFieldError."""
    if estimator is not None:
        return Loaded(tensors=None, pictures=open_model(path, spec, estimator), spec=spec, most=most)
    if not spec.preprocess and spec.postprocess is None:
        own = open_tensors(path, spec.format, threads=threads)
        return Loaded(tensors=own, pictures=None, spec=spec, most=most, threads=threads)
    pictures = open_model(path, spec, threads=threads)
    assert isinstance(pictures, FileModel), "without an estimator"  # noqa: S101 - for the type checker
    assert pictures.session is not None, "just opened"  # noqa: S101 - for the type checker
    tensors = TensorModel(pictures.session)
    tensors.smoke()
    return Loaded(tensors=tensors, pictures=pictures, spec=spec, most=most, threads=threads)


def _parts(members: list[int], rows: Sequence[int], most: int) -> list[list[int]]:
    """Split compatible requests into calls of about ``most`` rows."""
    parts: list[list[int]] = []
    filled = 0
    for i in members:
        if not parts or filled + rows[i] > most:
            parts.append([])
            filled = 0
        parts[-1].append(i)
        filled += rows[i]
    return parts


def _text(name: str, array: Array) -> Array:
    """Convert an input to strings for a model of text."""
    if all(isinstance(item, str) for item in array.flat):
        return array
    try:
        texts = [item.decode() if isinstance(item, bytes) else item for item in array.flat]
    except UnicodeDecodeError as error:
        raise ServeError(f"input {name}: an element is not UTF-8: {error.reason}") from error
    return objects(texts, array.shape)


def _frame(name: str, item: bytes | str) -> Frame:
    """Make an upright frame from a picture's file, which JSON holds in base64."""
    try:
        data = item if isinstance(item, bytes) else base64.b64decode(item, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ServeError(f"input {name}: pictures in JSON are base64 of a JPEG or PNG file: {error}") from error
    if encoding := encoding_of(data):
        return Frame(id=new_id(), encoding=encoding, data=memoryview(upright(data)))
    raise ServeError(f"input {name}: an element is neither a JPEG nor a PNG file")


@dataclass(slots=True, eq=False)
class ModelVersionState:
    """An opened version of a model: its desired state, and its reported version."""

    desired: DesiredModel | None
    version: str
    digest: str
    loaded: Loaded


@dataclass(slots=True, eq=False)
class RequestCounts:
    """Outcomes of one model's requests since the start."""

    requests: int = 0
    failures: int = 0
    rollouts: int = 0
    refusals: int = 0


@dataclass(slots=True)
class ModelTimes:
    """One model's times (milliseconds) and batches (rows)."""

    request: Distribution = field(default_factory=Distribution)
    queue: Distribution = field(default_factory=Distribution)
    compute: Distribution = field(default_factory=Distribution)
    batch: Distribution = field(default_factory=Distribution)

    def ran(self, came: Sequence[float], rows: int, began: float, ended: float) -> None:
        """Count a call of the model (see ``batch_executor.Ran``)."""
        self.batch.record(rows)
        self.compute.record((ended - began) * 1000)
        for put in came:
            self.queue.record((began - put) * 1000)


@dataclass(slots=True, eq=False)
class Served:
    """A model by name, with the rollout of its versions, and the counts and times of its requests."""

    name: str
    rollout: Rollout[ModelVersionState] = field(default_factory=Rollout)
    counts: RequestCounts = field(default_factory=RequestCounts)
    times: ModelTimes = field(default_factory=ModelTimes)
    _share: int = 0

    def choose(self, version: str = "") -> ModelVersionState:
        """Return the version for a request: a canary gets its percentage, spread evenly. Raises ServeError."""
        rollout = self.rollout
        current, canary = rollout.current, rollout.canary
        if current is None:
            if rollout.reason:
                raise ModelUnavailableError(f"model {self.name} is not ready: {rollout.reason}: {rollout.message}")
            raise ModelUnavailableError(f"model {self.name} is not ready yet")
        if version:
            for one in (current, canary):
                if one and one.version == version:
                    return one
            has = ", ".join(self.versions()) or "no named version"
            raise ModelNotFoundError(f"there is no version {version[:80]!r} of {self.name} here: it has {has}")
        if canary is None:
            return current
        self._share += rollout.percent
        if self._share < ALL_PERCENT:
            return current
        self._share -= ALL_PERCENT
        return canary

    def open_versions(self) -> list[ModelVersionState]:
        """Return the open versions: the current one and the canary."""
        return [one for one in (self.rollout.current, self.rollout.canary) if one]

    def versions(self) -> list[str]:
        """Return the names of the versions that a request can name."""
        return [one.version for one in self.open_versions() if one.version]
