"""Runs ONNX files with ONNX Runtime, on the CPU.

What can be known when a file is opened is checked then, so that a model that does not fit its spec is a condition
with a reason and not a stream of failing samples: inputs, outputs, classes, and one run on zeros. Nothing but the
file is loaded: custom operator libraries never are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

# read when it is loaded: unless told so it writes to the user's home and reports to its makers
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime as ort

from halimede.api.model import ModelSpec
from halimede.api.processing import Grayscale, Postprocess, Resize
from halimede.errors import InvalidFieldError
from halimede.inference import preprocess
from halimede.inference.model import Array, Model, ModelError, SampleError
from halimede.inference.ports import InputPort, choose_input, choose_output
from halimede.inference.postprocess import classify, detect
from halimede.messages import Prediction

MAX_REASON = 300


class OnnxModel(Model):
    """An opened ONNX file. ``batched`` tells whether several samples run in one call, or one after the other."""

    def __init__(
        self, session: ort.InferenceSession, port: InputPort, output: str, spec: ModelSpec, *, batched: bool
    ) -> None:
        self._session: ort.InferenceSession | None = session
        self._input = port
        self._output = output
        self._steps = spec.preprocess
        self._labels = tuple(spec.labels)
        self._postprocess = spec.postprocess or Postprocess()
        self._batched = batched

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes in order."""
        return self._labels

    def prepare(self, image: Array) -> Array:
        """Apply the declared steps, then the model's own element type; axes of length 1 are set as it wants them."""
        return self._input.fit(preprocess.apply(self._steps, image))

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Run the samples in one call where the model can, and read each one's share of the output."""
        samples = [self._input.fit(sample) for sample in batch]
        if self._batched and len(samples) > 1:
            rows = self.run(np.stack(samples))
        else:
            rows = [row for sample in samples for row in self.run(sample[np.newaxis])]
        return [self._read(row) for row in rows]

    def close(self) -> None:
        """Free the session."""
        self._session = None

    def run(self, samples: Array) -> list[Array]:
        """Give the raw output of each of ``samples``, whose first axis counts them."""
        session = self._session  # close() may come from another thread
        if session is None:
            raise SampleError("the model is closed")
        try:
            (output,) = session.run([self._output], {self._input.name: samples})
        except Exception as error:
            raise SampleError(f"ONNX Runtime failed: {reason(error)}") from error
        rows = _rows(np.asarray(output), len(samples), detection=self._postprocess.task == "detection")
        if len(rows) != len(samples):
            raise SampleError(f"the model gives {len(rows)} rows for {len(samples)} samples")
        return rows

    def _read(self, row: Array) -> Prediction:
        if self._postprocess.task == "detection":
            return detect(row, self._labels)
        return classify(row, self._labels, self._postprocess.activation)


def open_onnx(path: Path | str, spec: ModelSpec, *, threads: int = 1) -> OnnxModel:
    """Load an ONNX file. Raises ModelError, or InvalidFieldError for a spec that contradicts itself."""
    postprocess = spec.postprocess or Postprocess()
    if postprocess.task == "detection" and postprocess.activation != "none":
        raise InvalidFieldError(
            "spec.postprocess.activation", postprocess.activation, "use none: boxes come with their final scores"
        )
    session = _open_session(Path(path), spec.format, threads)
    port = choose_input(session.get_inputs())
    output = choose_output(session.get_outputs(), postprocess, spec.labels)
    _check_steps(spec, port)
    one_by_one = OnnxModel(session, port, output, spec, batched=False)
    if port.shape is None or None in port.shape:
        return OnnxModel(session, port, output, spec, batched=port.batched)
    _check_answer(one_by_one, port, spec)
    return OnnxModel(session, port, output, spec, batched=port.batched and _takes_two(one_by_one, port))


def reason(error: Exception) -> str:
    """First line of what ONNX Runtime says, at a length that fits a condition."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:MAX_REASON]


def _open_session(path: Path, file_format: str, threads: int) -> ort.InferenceSession:
    if file_format.lower() != "onnx":
        raise ModelError(
            f"the model's format is {file_format!r}: export it to ONNX and set spec.format to onnx, "
            "or name an estimator that reads it"
        )
    if not path.is_file():
        raise ModelError(f"the model file {path} does not exist: check the model's url")
    if path.stat().st_size == 0:
        raise ModelError(f"the model file {path} is empty: export or download it again")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3  # errors come as exceptions; warnings on standard error are nobody's log
    # Idle threads sleep: on an edge node the cores belong to other processes too.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"the model file {path} is no ONNX model that can run here: {reason(error)}") from error


def _rows(output: Array, count: int, *, detection: bool) -> list[Array]:
    """Part an output by samples: ``[classes]`` each, or ``[boxes, 6]`` each."""
    if detection:
        # Models that suppress overlaps themselves often answer one sample without a batch axis.
        if output.ndim == 2 and count == 1:
            return [output]
        if output.ndim != 3:
            raise SampleError(f"the model gives {list(output.shape)}, which is no [samples, boxes, 6]")
        return list(output)
    if output.ndim == 1:
        return list(output[:, np.newaxis])
    # Pooling leaves axes of length 1, such as [samples, classes, 1, 1].
    return list(output.reshape(len(output), *[size for size in output.shape[1:] if size > 1] or [1]))


def _check_steps(spec: ModelSpec, port: InputPort) -> None:
    """Refuse steps that can never give what the model wants. Only a resize step makes that known before a frame."""
    sizes = [step for step in spec.preprocess if isinstance(step, Resize)]
    if not sizes or port.shape is None or None in port.shape:
        return
    gray = any(isinstance(step, Grayscale) for step in spec.preprocess)
    wanted = int(np.prod([size or 1 for size in port.shape]))
    channels = 3 if gray else max(1, wanted // (sizes[-1].width * sizes[-1].height))
    try:
        port.fit(preprocess.apply(spec.preprocess, np.zeros((2, 2, channels), np.uint8)))
    except SampleError as error:
        raise ModelError(f"spec.preprocess does not fit the model: {error}") from error


def _check_answer(model: OnnxModel, port: InputPort, spec: ModelSpec) -> None:
    """Run once on zeros. NaN there is no fault: a model may divide by what a blank frame lacks."""
    try:
        (row,) = model.run(port.zeros(1))
    except SampleError as error:
        raise ModelError(f"the model fails on a sample of zeros: {error}") from error
    postprocess = spec.postprocess or Postprocess()
    try:
        if postprocess.task == "detection":
            detect(np.zeros_like(row))
            return
        classify(np.zeros_like(row, np.float64))
    except SampleError as error:
        raise ModelError(f"{error}: check spec.postprocess") from error
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
