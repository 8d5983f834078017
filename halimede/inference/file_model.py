"""A model file that answers samples by its spec, whichever runtime runs it.

Whatever can be checked when a file is opened is checked then: inputs, outputs, classes, and one run on zeros. So a
model that does not fit its spec becomes a condition with a reason and not a stream of failing samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from halimede.api.model import ModelSpec
from halimede.api.processing import (
    Boxes,
    Channels,
    Crop,
    Fit,
    Grayscale,
    Letterbox,
    Postprocess,
    Resize,
    Script,
    anchors_of,
    check_postprocess,
    scripts_of,
)
from halimede.inference import preprocess
from halimede.inference.batching import BatchGain
from halimede.inference.decoders.anchors import AnchorBoxes, anchor_boxes
from halimede.inference.decoders.ctc import LoadedText, TextReader
from halimede.inference.decoding import decoding_of
from halimede.inference.detection import BoxReader
from halimede.inference.geometry import Geometry, follow, geometry_of, placed
from halimede.inference.model import Array, Model, ModelError, SampleError
from halimede.inference.postprocess import ClassReader, EmbeddingReader, FeaturedClassReader
from halimede.inference.scripts import LoadedPostprocessScript, ScriptError, ScriptReader, ScriptSampleError, bind
from halimede.inference.session import Declared, RuntimeSession, failure, open_session
from halimede.inference.tensor_ports import InputPort, choose_input, choose_output, choose_outputs, picture_shape
from halimede.messages import Prediction

#: bytes of a blank frame for the check of the steps
MAX_BLANK = 64 * 1024**2
#: height and width of a blank frame for scripts
BLANK_SIZE = 480, 640
#: bytes of the buffer that is kept to concatenate samples in
MAX_BUFFER = 64 * 1024**2


class Reader(Protocol):
    """Reads the outputs ``names`` of the model: divides them by samples, then reads one sample at a time."""

    names: tuple[str, ...]

    def split(self, outputs: Sequence[Array], count: int) -> list[tuple[Array, ...]]:
        """Divide outputs by samples. Raises SampleError."""

    def read(self, part: tuple[Array, ...], geometry: Geometry | None = None) -> Prediction:
        """Read one sample's part. Raises SampleError."""


class FileModel(Model):
    """A loaded file. ``batched``: several samples run in one call, else one by one."""

    def __init__(
        self, session: RuntimeSession, port: InputPort, reader: Reader, spec: ModelSpec, *, batched: bool
    ) -> None:
        self.ours = next(scripts_of(spec.preprocess, spec.postprocess), None) is None
        self._session: RuntimeSession | None = session
        self._input = port
        self._reader = reader
        # steps from the first script on run where the model runs: see ``predict``
        scripts = [i for i, step in enumerate(spec.preprocess) if isinstance(step, Script)]
        self._steps = spec.preprocess[: scripts[0]] if scripts else spec.preprocess
        self._late_steps = spec.preprocess[scripts[0] :] if scripts else []
        # a script of preprocess may move pixels: then the one of postprocess maps its boxes back itself
        reads = spec.postprocess is not None and spec.postprocess.script is not None
        self._mapped_steps = None if scripts and reads else spec.preprocess
        self.decoding = decoding_of(spec.decode, spec.preprocess)
        #: makes the model's input of a prepared sample
        self.fit: Callable[[Array], Array] = self._run_scripts if scripts else port.fit
        self._labels = tuple(spec.labels)
        self._maps_back = _needs_geometry(spec)
        self._batched = batched
        self._gains: dict[tuple[int, int], BatchGain] = {}
        self._buffer: Array | None = None
        self._names = list(reader.names)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes in order."""
        return self._labels

    def prepare(self, image: Array) -> Array:
        """Apply the declared steps, then convert to the model's element type and its axes of length 1.

        If boxes must be mapped back to the frame, the sample carries the mapping (``geometry``). A script and the steps
        after it are left to ``predict``.
        """
        sample = preprocess.apply(self._steps, image)
        if not self._late_steps:
            sample = self._input.fit(sample)
        geometry = follow(self._mapped_steps or (), image.shape, geometry_of(image)) if self._maps_back else None
        if geometry and self._mapped_steps is None:
            geometry = geometry.whole
        return placed(sample, geometry) if geometry else sample

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Run the samples in one call if the model can, and read each one's part of the output."""
        read = self._reader.read
        if len(batch) == 1:
            (part,) = self.run(self.fit(batch[0])[np.newaxis])
            return [read(part, geometry_of(batch[0]) if self._maps_back else None)]
        samples = [self.fit(sample) for sample in batch]
        alike = len({sample.shape for sample in samples}) == 1
        parts = self._run_several(samples) if self._batched and samples and alike else self._run_alone(samples)
        return [read(part, geometry_of(sample)) for part, sample in zip(parts, batch, strict=True)]

    def _run_scripts(self, sample: Array) -> Array:
        """Return the model's input of a prepared sample: the first script and the steps after it run now."""
        return self._input.fit(preprocess.apply(self._late_steps, sample))

    def _run_several(self, samples: list[Array]) -> list[tuple[Array, ...]]:
        """Run samples of one shape, in one call or one by one, whichever is cheaper."""
        first = samples[0]
        gain = self._gains.setdefault((first.nbytes.bit_length(), len(samples).bit_length()), BatchGain())
        together = gain.choose()
        began = time.perf_counter()
        parts = self._run_together(samples) if together else self._run_alone(samples)
        gain.learn(len(samples), (time.perf_counter() - began) * 1000, together=together)
        return parts

    def _run_alone(self, samples: list[Array]) -> list[tuple[Array, ...]]:
        return [part for sample in samples for part in self.run(sample[np.newaxis])]

    def _run_together(self, samples: list[Array]) -> list[tuple[Array, ...]]:
        """Run samples in one call. Their buffer is kept: fresh memory pages cost more than the copy."""
        buffer, self._buffer = self._buffer, None  # a concurrent call allocates its own buffer
        size = sum(sample.nbytes for sample in samples)
        if buffer is None or buffer.nbytes < size:
            buffer = np.empty(size, np.uint8)
        first = samples[0]
        side_by_side = buffer[:size].view(first.dtype).reshape((len(samples), *first.shape))
        try:
            return self.run(np.stack(samples, out=side_by_side))
        finally:
            self._buffer = buffer if buffer.nbytes <= MAX_BUFFER else None

    def close(self) -> None:
        """Free the session."""
        self._session = None

    @property
    def session(self) -> RuntimeSession | None:
        """The session, for callers that need raw tensors; None once it is closed."""
        return self._session

    def run(self, samples: Array) -> list[tuple[Array, ...]]:
        """Return each sample's part of the outputs; the first axis of ``samples`` counts them."""
        session = self._session  # another thread may call close()
        if session is None:
            raise SampleError("the model is closed")
        try:
            outputs = session.run(self._names, {self._input.name: samples})
        except Exception as error:
            raise SampleError(failure(session, error)) from error
        parts = self._reader.split([np.asarray(output) for output in outputs], len(samples))
        if len(parts) != len(samples):
            raise SampleError(f"the model gives {len(parts)} rows for {len(samples)} samples")
        return parts


def open_file(path: Path | str, spec: ModelSpec, *, threads: int = 1) -> FileModel:
    """Load a file by its spec. Raises ModelError, or InvalidFieldError for a spec that contradicts itself."""
    check_postprocess(spec.postprocess)
    session = open_session(Path(path), spec.format, threads)
    return fit(session, bind(spec, Path(path)))


def fit(session: RuntimeSession, spec: ModelSpec) -> FileModel:
    """Make a model from an opened file by its spec, whose scripts are loaded. Raises ModelError."""
    postprocess = spec.postprocess or Postprocess()
    port = choose_input(session.get_inputs())
    reader = _reader(session.get_outputs(), spec, port)
    one_by_one = FileModel(session, port, reader, spec, batched=False)
    if one_by_one.ours:
        _check_steps(spec, port)
    else:
        _check_scripts(one_by_one, reader, port, spec)
    if port.shape is None or None in port.shape:
        return FileModel(session, port, reader, spec, batched=port.batched)
    if postprocess.script is None:
        _check_answer(one_by_one, reader, port, spec)
    return FileModel(session, port, reader, spec, batched=port.batched and _takes_two(one_by_one, port))


def _reader(outputs: Sequence[Declared], spec: ModelSpec, port: InputPort) -> Reader:
    """Return the reader of the outputs for the model's task. Raises ModelError."""
    postprocess, labels = spec.postprocess or Postprocess(), spec.labels
    if isinstance(postprocess.script, LoadedPostprocessScript):
        names = [port.name for port in outputs if port.type.startswith("tensor")]
        return ScriptReader(names, postprocess.script.call, labels)
    if postprocess.task == "embedding":
        return EmbeddingReader(choose_output(outputs, postprocess, ()))
    names = choose_outputs(outputs, postprocess, labels)
    if postprocess.task == "detection":
        return BoxReader(names, postprocess, labels, _anchors(postprocess, port))
    if isinstance(postprocess.text, LoadedText):
        return TextReader(names[0], postprocess, postprocess.text)
    classes = ClassReader(names[0], postprocess, labels)
    return FeaturedClassReader(classes, postprocess.features) if postprocess.features else classes


def _anchors(postprocess: Postprocess, port: InputPort) -> AnchorBoxes | None:
    """Return the anchors of the model's boxes for the size of its input. Raises ModelError."""
    anchors, picture = anchors_of(postprocess), picture_shape(port.shape)
    if anchors is None:
        return None
    if picture is None or not picture.width or not picture.height:
        raise ModelError(
            f"spec.postprocess.boxes.decode ssd-anchors needs a picture of a fixed size, and the model's input "
            f"{port.name} has the shape {list(port.shape or ())}: export it with its height and width"
        )
    return anchor_boxes(anchors, (picture.width, picture.height))


def _needs_geometry(spec: ModelSpec) -> bool:
    """Whether boxes must be mapped back to the frame, or a script gets its size."""
    if spec.postprocess and spec.postprocess.script:
        return True
    if not spec.postprocess or spec.postprocess.task != "detection":
        return False
    moving = any(isinstance(step, Resize | Fit | Letterbox | Crop) for step in spec.preprocess)
    return moving or (spec.postprocess.boxes or Boxes()).normalized


def _check_steps(spec: ModelSpec, port: InputPort) -> None:
    """Refuse steps that cannot produce the model's input. Only steps with a size make that known without a frame."""
    sizes = [step for step in spec.preprocess if isinstance(step, Resize | Letterbox | Crop)]
    if not sizes or port.shape is None or None in port.shape:
        return
    coloured = any(isinstance(step, Grayscale | Channels) for step in spec.preprocess)
    size = int(np.prod([size or 1 for size in port.shape]))
    channels = 3 if coloured else max(1, size // (sizes[-1].width * sizes[-1].height))
    frame = preprocess.blank(spec.preprocess, channels)
    if frame is None or frame.size > MAX_BLANK:
        return
    try:
        port.fit(preprocess.apply(spec.preprocess, frame))
    except SampleError as error:
        raise ModelError(f"spec.preprocess does not fit the model: {error}") from error


def _check_scripts(model: FileModel, reader: Reader, port: InputPort, spec: ModelSpec) -> None:
    """Answer the first blank frame that the model can answer. Raises ScriptError for what a script does wrong there."""
    first: SampleError | None = None
    for frame in _blank_frames(spec, port):
        frame.setflags(write=False)  # as frames from the bus are
        try:
            sample = model.prepare(frame)
            (part,) = model.run(model.fit(sample)[np.newaxis])
        except SampleError as error:
            first = first or error
            continue
        try:
            reader.read(tuple(map(_finite, part)), geometry_of(sample))
        except ScriptSampleError as error:
            raise ScriptError(str(error)) from error
        except SampleError:
            return  # declared post-processing: ``_check_answer`` finds out why
        return
    if first and any(isinstance(step, Script) for step in spec.preprocess):
        raise ScriptError(f"spec.preprocess: a blank frame does not become the model's input: {first}") from first


def _blank_frames(spec: ModelSpec, port: InputPort) -> Iterator[Array]:
    """Yield frames of zeros: of 480 x 640, or more if a declared step needs that; at last the model's own input."""
    needed = preprocess.blank(spec.preprocess, 1)
    height, width = BLANK_SIZE
    if needed is not None and needed.size <= MAX_BLANK:
        height, width = max(height, needed.shape[0]), max(width, needed.shape[1])
    yield np.zeros((height, width, 3), np.uint8)
    yield np.zeros((height, width, 1), np.uint8)
    if port.shape is not None and None not in port.shape:
        yield port.zeros(1)[0]


def _finite(output: Array) -> Array:
    """Return an output without NaN and infinity, which a model may have computed from a blank frame."""
    return np.nan_to_num(output, posinf=0, neginf=0) if output.dtype.kind == "f" else output


def _check_answer(model: FileModel, reader: Reader, port: InputPort, spec: ModelSpec) -> None:
    """Run once on zeros. NaN there is no error: a model may divide by values that a blank frame lacks."""
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
    # one score with two labels is a two-class model with one output
    if spec.labels and len(spec.labels) != row.size and (row.size, len(spec.labels)) != (1, 2):
        raise ModelError(
            f"the model has {row.size} classes and spec.labels names {len(spec.labels)}: name each, in order"
        )
    if postprocess.activation == "none" and (row.min() < -1e-3 or row.max() > 1 + 1e-3):
        raise ModelError(
            f"the model gives scores from {row.min():.4g} to {row.max():.4g}, which are no probabilities: "
            "set spec.postprocess.activation to softmax or sigmoid"
        )


def _takes_two(model: FileModel, port: InputPort) -> bool:
    """Whether a batch axis that is declared open really is; exporters often fix a size of 1 in the graph."""
    try:
        model.run(port.zeros(2))
    except SampleError:
        return False
    return True
