"""A served model (``Served``) and its opened versions (``Loaded``), which check requests and answer them.

There are two kinds of requests. The first has the model's own tensors, as its file declares them. The second has
pictures, if the model's spec defines their pre-processing and post-processing: the input ``image`` (JPEG or PNG files
as BYTES) is answered with the output ``prediction`` (JSON of a ``Prediction`` as BYTES). A user's estimator accepts
only pictures.
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

#: names of the input and the output of requests with pictures
IMAGE, PREDICTION = "image", "prediction"
#: what requests that can share a call have in common: outputs, and each input's name, type and shape without the first
#: axis
Like = tuple[object, ...]


class Work:
    """One request with tensors, as the executor gets it: inputs by name, names of the outputs, number of samples.

    The number is 1 for a model that is not ``batched``.
    """

    __slots__ = ("feeds", "outputs", "rows")

    def __init__(self, feeds: dict[str, Array], outputs: Sequence[str], rows: int) -> None:
        self.feeds, self.outputs, self.rows = feeds, outputs, rows

    @property
    def like(self) -> Like:
        """What this request has in common with those that can share its call."""
        return (*self.outputs, *((name, a.dtype.char, a.shape[1:]) for name, a in self.feeds.items()))


class Loaded:
    """An opened model with its threads. Call ``start`` once, then ``infer``, and ``retire`` at the end.

    ``tensors``: answers requests with the model's own tensors; None: it takes only pictures. ``pictures``: answers
    requests with pictures; None: it takes none. ``spec``: of its Model. ``most``: samples of one call. ``threads``: of
    one call; 0: one for each core.

    Attributes:
        platform: the name of its format in the protocol.
        inputs: its own input tensors by name; empty if it takes only pictures.
        outputs: its own output tensors by name; empty if it takes only pictures.
        batched: several requests may share a call: the first axis of all inputs counts samples. True without tensors.
        takes_pictures: it answers requests with pictures.
        image: the input with pictures: ``image``, or ``image_file`` if the model has a tensor ``image`` of its own.
        prediction: the output for pictures: ``prediction``, or ``prediction_json`` if the model has such a tensor.

    """

    def __init__(
        self, *, tensors: TensorModel | None, pictures: Model | None, spec: ModelSpec, most: int, threads: int = 1
    ) -> None:
        form = format_of(spec.format)
        self.platform = form.platform if form else spec.format
        self.inputs: Mapping[str, Port] = tensors.inputs if tensors else {}
        self.outputs: Mapping[str, Port] = tensors.outputs if tensors else {}
        self.batched = tensors.batched if tensors else True
        self.takes_pictures = pictures is not None
        self.image = IMAGE if IMAGE not in self.inputs else f"{IMAGE}_file"
        self.prediction = PREDICTION if PREDICTION not in self.outputs else f"{PREDICTION}_json"
        self._tensors = tensors
        self._pictures = pictures
        self._confine = partial(confine, spec)
        self._all_outputs = list(self.outputs)
        self._most = most
        #: whether a call runs in one thread, so that its thread time is its whole time
        self._is_single_threaded = threads == 1
        self._engine: BatchExecutor | None = None

    @property
    def waiting(self) -> int:
        """The number of requests without an answer."""
        return self._engine.waiting if self._engine else 0

    @property
    def busy_s(self) -> float:
        """Seconds for which the model's longest running call has run; 0 without one."""
        return self._engine.busy_s if self._engine else 0.0

    def start(self, name: str, *, instances: int = 1, ran: Ran | None = None) -> None:
        """Start to accept requests. ``name``: of the model; ``instances``: threads; ``ran``: called after each call.

        A user's estimator or script runs in one thread.
        """
        measured_s = self._tensors.call_s if self._tensors and self._is_single_threaded else math.inf
        policy = InlinePolicy(measured_s * 1000) if measured_s < math.inf else None
        if self._pictures and not self._pictures.ours:
            instances = 1
        self._engine = BatchExecutor(name, self._run, self._most, instances, ran, policy, self._confine)
        self._engine.start()

    async def infer(
        self, tensors: Sequence[Tensor], outputs: Sequence[str], until: float = float("inf")
    ) -> list[Tensor]:
        """Return the named outputs for one request; all of them if ``outputs`` is empty. Raises ServeError.

        A request with pictures has one output. ``until``: the deadline in monotonic seconds.
        """
        assert self._engine is not None, "started"  # noqa: S101 - for the type checker
        if self.takes_pictures and any(tensor.name == self.image for tensor in tensors):
            frames = self._frames(tensors, outputs)
            predictions: list[Prediction] = await self._engine.submit(frames, max(1, len(frames)), until)
            texts = [msgspec.json.encode(prediction) for prediction in predictions]
            return [Tensor(self.prediction, BYTES, objects(texts, [len(texts)]))]
        work = self._check_request(tensors, outputs)
        arrays: list[Array]
        if self._tensors and self._engine.is_quick(work.rows):
            model = self._tensors
            arrays = self._engine.run_inline(lambda: model.run(work.feeds, work.outputs), work.rows)
        else:
            arrays = await self._engine.submit(work, work.rows, until)
        ports = self.outputs
        return [Tensor(name, ports[name].datatype, array) for name, array in zip(work.outputs, arrays, strict=True)]

    async def retire(self) -> None:
        """Wait until pending requests are answered, then free the model. No request may come after this call."""
        if self._engine:
            await self._engine.wait_idle()
            self._engine.close()
        await asyncio.to_thread(self.free)

    def free(self) -> None:
        """Free the model's memory, without waiting for requests. Blocks."""
        for model in (self._tensors, self._pictures):
            if model:
                model.close()

    # --- requests -------------------------------------------------------------------------------------------------

    def _check_request(self, tensors: Sequence[Tensor], outputs: Sequence[str]) -> Work:
        """Return a request as work for the executor. Raises ServeError if it does not fit the model's tensors."""
        ports = self.inputs
        feeds: dict[str, Array] = {}
        for tensor in tensors:
            port = ports.get(tensor.name)
            if port is None:
                raise ServeError(f"there is no input {tensor.name[:80]!r}: this model takes {self._inputs_text()}")
            array = tensor.array
            if tensor.datatype != port.datatype:
                raise ServeError(f"input {port.name} is {port.datatype}, not {tensor.datatype}")
            if not port.accepts(array.shape):
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
        return Work(feeds, outputs or self._all_outputs, rows)

    def _inputs_text(self) -> str:
        """Return the model's inputs for messages."""
        own = ", ".join(f"{port.name} ({port.datatype} {list(port.shape or ())})" for port in self.inputs.values())
        pictures = f"{self.image} (BYTES [-1]: JPEG or PNG files) as the only input" if self.takes_pictures else ""
        return " or ".join(filter(None, (own, pictures)))

    def _frames(self, tensors: Sequence[Tensor], outputs: Sequence[str]) -> list[Frame]:
        """Return the pictures in a request as frames, which the model's thread decodes. Raises ServeError."""
        (tensor, *further) = tensors
        if further or tensor.datatype != BYTES or tensor.array.ndim != 1:
            raise ServeError(f"input {self.image} must be the only input, BYTES with one axis")
        if outputs and list(outputs) != [self.prediction]:
            raise ServeError(f"input {self.image} has only the output {self.prediction}")
        return [_frame(self.image, item) for item in tensor.array]

    # --- in the engine's thread -----------------------------------------------------------------------------------

    def _run(self, jobs: Sequence[Work | list[Frame]]) -> list[Any]:
        """Return the answer to each job: tensors, predictions, or an error. Jobs with equal shapes share calls."""
        answers: dict[int, Any] = {}
        alike: dict[Like, dict[int, Work]] = {}
        pictures: dict[int, list[Frame]] = {}
        for i, job in enumerate(jobs):
            if isinstance(job, Work):
                alike.setdefault(job.like if self.batched else (i,), {})[i] = job
            else:
                pictures[i] = job
        for works in alike.values():
            for part in _parts(works, self._most):
                answers.update(zip(part, isolate(list(part.values()), self._run_together), strict=True))
        answers.update(zip(pictures, self._answer_pictures(list(pictures.values())), strict=True))
        return [answers[i] for i in range(len(jobs))]

    def _run_together(self, batch: Sequence[Work]) -> list[list[Array]]:
        """Return the outputs of requests with equal shapes, from one call. Raises SampleError."""
        assert self._tensors is not None, "asked by tensors"  # noqa: S101 - for the type checker
        first = batch[0]
        if len(batch) == 1:
            return [self._tensors.run(first.feeds, first.outputs)]
        feeds = {name: np.concatenate([work.feeds[name] for work in batch]) for name in first.feeds}
        outputs = self._tensors.run(feeds, first.outputs)
        total = sum(work.rows for work in batch)
        if any(not array.ndim or len(array) != total for array in outputs):
            raise SampleError(f"the model did not return {total} rows for {total} rows")
        answers, begin = [], 0
        for work in batch:
            answers.append([array[begin : begin + work.rows] for array in outputs])
            begin += work.rows
        return answers

    def _answer_pictures(self, jobs: Sequence[list[Frame]]) -> list[Any]:
        """Return the predictions for each request's pictures; an error if one of its pictures fails."""
        if not jobs:
            return []
        assert self._pictures is not None, "asked by pictures"  # noqa: S101 - for the type checker
        outcomes = Inference(self._most)(self._pictures, [PlainSample(frame) for job in jobs for frame in job])
        answers: list[Any] = []
        begin = 0
        for job in jobs:
            own, begin = outcomes[begin : begin + len(job)], begin + len(job)
            failed = next(((i, outcome) for i, outcome in enumerate(own) if outcome.prediction is None), None)
            if failed is None:
                answers.append([outcome.prediction for outcome in own])
            else:
                text = f"{self.image}[{failed[0]}]: {failed[1].error}"
                answers.append(ServeError(text) if failed[1].unfit else ModelFailedError(text))
        return answers


def open_loaded(
    path: Path, spec: ModelSpec, *, estimator: object | None = None, threads: int = 1, most: int = 64
) -> Loaded:
    """Open a model's file, and run it on small inputs unless an estimator reads it. Blocks.

    Raises ModelError or InvalidFieldError.

    Args:
        path: the file.
        spec: the spec of its Model.
        estimator: a user's object that reads the file and answers pictures; None: a model runtime does.
        threads: of one call; 0: one for each core.
        most: samples of one call.

    """
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


def _parts(works: Mapping[int, Work], most: int) -> list[dict[int, Work]]:
    """Divide requests with equal shapes into calls of up to ``most`` samples; a larger request is one call."""
    parts: list[dict[int, Work]] = []
    filled = 0
    for i, work in works.items():
        if not parts or filled + work.rows > most:
            parts.append({})
            filled = 0
        parts[-1][i] = work
        filled += work.rows
    return parts


def _text(name: str, array: Array) -> Array:
    """Return the elements of an input as strings, for a model of text. Raises ServeError unless they are UTF-8."""
    if all(isinstance(item, str) for item in array.flat):
        return array
    try:
        texts = [item.decode() if isinstance(item, bytes) else item for item in array.flat]
    except UnicodeDecodeError as error:
        raise ServeError(f"input {name}: an element is not UTF-8: {error.reason}") from error
    return objects(texts, array.shape)


def _frame(name: str, item: bytes | str) -> Frame:
    """Return the upright frame of a picture's file; text is its base64. Raises ServeError."""
    try:
        data = item if isinstance(item, bytes) else base64.b64decode(item, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ServeError(f"input {name}: pictures in JSON are base64 of a JPEG or PNG file: {error}") from error
    if encoding := encoding_of(data):
        return Frame(id=new_id(), encoding=encoding, data=memoryview(upright(data)))
    raise ServeError(f"input {name}: an element is neither a JPEG nor a PNG file")


@dataclass(slots=True, eq=False)
class ModelVersionState:
    """An opened version of a model.

    Attributes:
        desired: the desired model for which it was opened; a server's is never None (``OpenedVersion``).
        version: its name; empty if it has none.
        digest: SHA-256 of its file.
        loaded: the opened model.

    """

    desired: DesiredModel | None
    version: str
    digest: str
    loaded: Loaded


@dataclass(slots=True, eq=False)
class RequestCounts:
    """Counts of one model since the server's start.

    Attributes:
        requests: those for which there was a version.
        failures: those of them that got an error.
        rollouts: versions that became the current one.
        refusals: versions that were refused, and canaries that were withdrawn because they failed.

    """

    requests: int = 0
    failures: int = 0
    rollouts: int = 0
    refusals: int = 0


@dataclass(slots=True)
class ModelTimes:
    """Distributions of one model, in milliseconds except for ``batch``.

    Attributes:
        request: from a request's begin to its answer; only of requests without an error.
        queue: from a request's arrival until its call began.
        compute: of each call of the model.
        batch: samples in each call.

    """

    request: Distribution = field(default_factory=Distribution)
    queue: Distribution = field(default_factory=Distribution)
    compute: Distribution = field(default_factory=Distribution)
    batch: Distribution = field(default_factory=Distribution)

    def record_call(self, arrivals: Sequence[float], rows: int, began: float, ended: float) -> None:
        """Record a call of the model; ``BatchExecutor`` calls this.

        ``arrivals``: of its requests. ``rows``: its samples. All times are monotonic seconds.
        """
        self.batch.record(rows)
        self.compute.record((ended - began) * 1000)
        for arrival in arrivals:
            self.queue.record((began - arrival) * 1000)


@dataclass(slots=True, eq=False)
class Served:
    """A model that requests can name, with the rollout of its versions, and the counts and times of its requests."""

    name: str
    rollout: Rollout[ModelVersionState] = field(default_factory=Rollout)
    counts: RequestCounts = field(default_factory=RequestCounts)
    times: ModelTimes = field(default_factory=ModelTimes)
    #: grows by the canary's percentage with each request for any version; at 100 the canary answers
    _share: int = 0

    def choose(self, version: str = "") -> ModelVersionState:
        """Return the version that answers the next request. Of requests for any version, a canary gets its percentage.

        ``version``: the requested one; empty: any. Raises ModelUnavailableError before a version is open,
        ModelNotFoundError for an unknown version.
        """
        rollout = self.rollout
        current, canary = rollout.current, rollout.canary
        if current is None:
            if rollout.reason:
                raise ModelUnavailableError(f"model {self.name} is not ready: {rollout.reason}: {rollout.message}")
            raise ModelUnavailableError(f"model {self.name} is not ready yet")
        if version:
            for candidate in (current, canary):
                if candidate and candidate.version == version:
                    return candidate
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
        return [version for version in (self.rollout.current, self.rollout.canary) if version]

    def versions(self) -> list[str]:
        """Return the names of the versions that a request can name."""
        return [opened.version for opened in self.open_versions() if opened.version]
