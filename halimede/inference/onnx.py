"""Runs ONNX files with ONNX Runtime, on the CPU.

What can be known when a file is opened is checked then, so that a model that does not fit its spec is a condition
with a reason and not a stream of failing samples: inputs, outputs, classes, and one run on zeros. Nothing but the
file and the weights beside it is loaded (``contents`` sees to that before ONNX Runtime reads a byte): custom operator
libraries never are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

# read when it is loaded: unless told so it writes to the user's home and reports to its makers
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime as ort

from halimede.api.model import ModelSpec
from halimede.api.processing import Boxes, Crop, Grayscale, Letterbox, Postprocess, Resize
from halimede.errors import InvalidFieldError
from halimede.inference import preprocess
from halimede.inference.batching import BatchGain
from halimede.inference.detection import BoxReader
from halimede.inference.file_checks import check_model
from halimede.inference.geometry import Geometry, follow, geometry_of, placed
from halimede.inference.model import Array, Model, ModelError, SampleError
from halimede.inference.onnx_io import Declared, InputPort, choose_input, choose_output, choose_outputs
from halimede.inference.postprocess import ClassReader, EmbeddingReader, FeaturedClassReader
from halimede.messages import Prediction

MAX_REASON = 300
#: bytes of a frame that are spent on finding out whether steps fit
MAX_BLANK = 64 * 1024**2
#: bytes that are kept to put samples side by side in
MAX_ROOM = 64 * 1024**2


class Reader(Protocol):
    """Reads outputs: ``names`` are asked for, parted by samples, and read one sample at a time."""

    names: tuple[str, ...]

    def split(self, outputs: Sequence[Array], count: int) -> list[tuple[Array, ...]]:
        """Part outputs by samples. Raises SampleError."""

    def read(self, part: tuple[Array, ...], geometry: Geometry | None = None) -> Prediction:
        """Read one sample's share. Raises SampleError."""


class OnnxModel(Model):
    """A loaded ONNX file. ``batched``: several samples run in one call, else one after the other."""

    ours = True

    def __init__(
        self, session: ort.InferenceSession, port: InputPort, reader: Reader, spec: ModelSpec, *, batched: bool
    ) -> None:
        self._session: ort.InferenceSession | None = session
        self._input = port
        self._reader = reader
        self._steps = spec.preprocess
        self._labels = tuple(spec.labels)
        self._places = _needs_geometry(spec)
        self._batched = batched
        self._ways: dict[tuple[int, int], BatchGain] = {}
        self._room: Array | None = None
        self._names = list(reader.names)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes in order."""
        return self._labels

    def prepare(self, image: Array) -> Array:
        """Apply the declared steps, then the model's own element type; axes of length 1 are set as it wants them.

        Where boxes have to find their way back to the frame, the sample knows it (``geometry``).
        """
        sample = self._input.fit(preprocess.apply(self._steps, image))
        geometry = follow(self._steps, image.shape) if self._places else None
        return placed(sample, geometry) if geometry else sample

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Run the samples in one call where the model can, and read each one's share of the output."""
        read = self._reader.read
        if len(batch) == 1:
            (part,) = self.run(self._input.fit(batch[0])[np.newaxis])
            return [read(part, geometry_of(batch[0]) if self._places else None)]
        samples = [self._input.fit(sample) for sample in batch]
        parts = self._run_several(samples) if self._batched and samples else self._run_alone(samples)
        return [read(part, geometry_of(sample)) for part, sample in zip(parts, batch, strict=True)]

    def _run_several(self, samples: list[Array]) -> list[tuple[Array, ...]]:
        """Run samples of one shape in whichever way costs less."""
        first = samples[0]
        ways = self._ways.setdefault((first.nbytes.bit_length(), len(samples).bit_length()), BatchGain())
        together = ways.choose()
        began = time.perf_counter()
        parts = self._run_together(samples) if together else self._run_alone(samples)
        ways.learn(len(samples), (time.perf_counter() - began) * 1000, together=together)
        return parts

    def _run_alone(self, samples: list[Array]) -> list[tuple[Array, ...]]:
        return [part for sample in samples for part in self.run(sample[np.newaxis])]

    def _run_together(self, samples: list[Array]) -> list[tuple[Array, ...]]:
        """Run samples in one call. Memory to put them side by side in is kept: fresh pages cost more than the copy."""
        room, self._room = self._room, None  # whoever else is in here makes his own
        size = sum(sample.nbytes for sample in samples)
        if room is None or room.nbytes < size:
            room = np.empty(size, np.uint8)
        first = samples[0]
        side_by_side = room[:size].view(first.dtype).reshape((len(samples), *first.shape))
        try:
            return self.run(np.stack(samples, out=side_by_side))
        finally:
            self._room = room if room.nbytes <= MAX_ROOM else None

    def close(self) -> None:
        """Free the session."""
        self._session = None

    @property
    def session(self) -> ort.InferenceSession | None:
        """What runs it, for who wants the raw tensors; None once it is closed."""
        return self._session

    def run(self, samples: Array) -> list[tuple[Array, ...]]:
        """Give each sample's share of the outputs that are read; the first axis of ``samples`` counts them."""
        session = self._session  # close() may come from another thread
        if session is None:
            raise SampleError("the model is closed")
        try:
            outputs = session.run(self._names, {self._input.name: samples})
        except Exception as error:
            raise SampleError(f"ONNX Runtime failed: {reason(error)}") from error
        parts = self._reader.split([np.asarray(output) for output in outputs], len(samples))
        if len(parts) != len(samples):
            raise SampleError(f"the model gives {len(parts)} rows for {len(samples)} samples")
        return parts


def open_onnx(path: Path | str, spec: ModelSpec, *, threads: int = 1) -> OnnxModel:
    """Load an ONNX file. Raises ModelError, or InvalidFieldError for a spec that contradicts itself."""
    check_spec(spec)
    return fit(open_session(Path(path), spec.format, threads), spec)


def check_spec(spec: ModelSpec) -> None:
    """Refuse a spec that contradicts itself. Raises InvalidFieldError."""
    postprocess = spec.postprocess or Postprocess()
    boxes = postprocess.boxes or Boxes()
    rows = postprocess.task == "detection" and boxes.decode == "rows" and not boxes.output
    if rows and postprocess.activation != "none":
        raise InvalidFieldError(
            "spec.postprocess.activation", postprocess.activation, "use none: boxes come with their final scores"
        )
    if postprocess.task == "embedding" and postprocess.activation != "none":
        raise InvalidFieldError(
            "spec.postprocess.activation", postprocess.activation, "use none: features are read as they are"
        )
    if boxes.decode != "rows" and boxes.output:
        raise InvalidFieldError(
            "spec.postprocess.boxes.decode", boxes.decode, "leave it out: boxes.output names an output of boxes alone"
        )
    if boxes.classes and not boxes.output:
        raise InvalidFieldError(
            "spec.postprocess.boxes.classes", boxes.classes, "name the output of boxes too, in boxes.output"
        )


def fit(session: ort.InferenceSession, spec: ModelSpec) -> OnnxModel:
    """Make a model of an opened file, as the spec says it is to be used. Raises ModelError."""
    postprocess = spec.postprocess or Postprocess()
    port = choose_input(session.get_inputs())
    reader = _reader(session.get_outputs(), postprocess, spec.labels)
    _check_steps(spec, port)
    one_by_one = OnnxModel(session, port, reader, spec, batched=False)
    if port.shape is None or None in port.shape:
        return OnnxModel(session, port, reader, spec, batched=port.batched)
    _check_answer(one_by_one, reader, port, spec)
    return OnnxModel(session, port, reader, spec, batched=port.batched and _takes_two(one_by_one, port))


def _reader(outputs: Sequence[Declared], postprocess: Postprocess, labels: Sequence[str]) -> Reader:
    """Return who reads the outputs: the model's task says how. Raises ModelError."""
    if postprocess.task == "embedding":
        return EmbeddingReader(choose_output(outputs, postprocess, ()))
    names = choose_outputs(outputs, postprocess, labels)
    if postprocess.task == "detection":
        return BoxReader(names, postprocess, labels)
    classes = ClassReader(names[0], postprocess, labels)
    return FeaturedClassReader(classes, postprocess.features) if postprocess.features else classes


def reason(error: Exception) -> str:
    """First line of what ONNX Runtime says, at a length that fits a condition."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:MAX_REASON]


def open_session(path: Path, file_format: str, threads: int) -> ort.InferenceSession:
    """Load a file, whatever its inputs and outputs are. Raises ModelError."""
    if file_format.lower() != "onnx":
        raise ModelError(
            f"the model's format is {file_format!r}: export it to ONNX and set spec.format to onnx, "
            "or name an estimator that reads it"
        )
    if not path.is_file():
        raise ModelError(f"the model file {path} does not exist: check the model's url")
    if path.stat().st_size == 0:
        raise ModelError(f"the model file {path} is empty: export or download it again")
    path = path.resolve()  # weights beside it are looked for there, by us and by ONNX Runtime
    try:
        check_model(path)
    except OSError as error:
        raise ModelError(f"the model file {path} cannot be read: {error.strerror}") from error
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3  # errors come as exceptions; warnings on standard error are nobody's log
    # Idle threads sleep: on an edge node the cores belong to other processes too.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # whatever its name is: ORT's own format has checks of its own, and was not looked into
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"the model file {path} is no ONNX model that can run here: {reason(error)}") from error


def _needs_geometry(spec: ModelSpec) -> bool:
    """Whether boxes have to be led back to the frame."""
    if not spec.postprocess or spec.postprocess.task != "detection":
        return False
    moving = any(isinstance(step, Resize | Letterbox | Crop) for step in spec.preprocess)
    return moving or (spec.postprocess.boxes or Boxes()).normalized


def _check_steps(spec: ModelSpec, port: InputPort) -> None:
    """Refuse steps that can never give what the model wants. Only one with a size makes that known before a frame."""
    sizes = [step for step in spec.preprocess if isinstance(step, Resize | Letterbox | Crop)]
    if not sizes or port.shape is None or None in port.shape:
        return
    gray = any(isinstance(step, Grayscale) for step in spec.preprocess)
    wanted = int(np.prod([size or 1 for size in port.shape]))
    channels = 3 if gray else max(1, wanted // (sizes[-1].width * sizes[-1].height))
    frame = preprocess.blank(spec.preprocess, channels)
    if frame is None or frame.size > MAX_BLANK:
        return
    try:
        port.fit(preprocess.apply(spec.preprocess, frame))
    except SampleError as error:
        raise ModelError(f"spec.preprocess does not fit the model: {error}") from error


def _check_answer(model: OnnxModel, reader: Reader, port: InputPort, spec: ModelSpec) -> None:
    """Run once on zeros. NaN there is no fault: a model may divide by what a blank frame lacks."""
    try:
        (part,) = model.run(port.zeros(1))
    except SampleError as error:
        raise ModelError(f"the model fails on a sample of zeros: {error}") from error
    postprocess = spec.postprocess or Postprocess()
    try:
        reader.read(tuple(np.zeros_like(array, np.float64) for array in part))
    except SampleError as error:
        raise ModelError(f"{error}: check spec.postprocess") from error
    if postprocess.task != "classification":
        return
    row = part[0]
    # One score and two labels is a two-class model with one output.
    if spec.labels and len(spec.labels) != row.size and (row.size, len(spec.labels)) != (1, 2):
        raise ModelError(
            f"the model has {row.size} classes and spec.labels names {len(spec.labels)}: name each, in order"
        )
    if postprocess.activation == "none" and (row.min() < -1e-3 or row.max() > 1 + 1e-3):
        raise ModelError(
            f"the model gives scores from {row.min():.4g} to {row.max():.4g}, which are no probabilities: "
            "set spec.postprocess.activation to softmax or sigmoid"
        )


def _takes_two(model: OnnxModel, port: InputPort) -> bool:
    """Whether a batch axis that is declared open really is; exporters often bake a size of 1 into the graph."""
    try:
        model.run(port.zeros(2))
    except SampleError:
        return False
    return True
