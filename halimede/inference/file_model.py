"""A model file that answers samples by its spec, whichever runtime runs it.

``open_file`` checks what can be checked before samples come: inputs, outputs, classes, and one run on zeros. So a model
that does not fit its spec becomes a condition with a reason, and not a stream of failing samples. Scripts are functions
of the user's that are steps of pre-processing or read the outputs (``scripts``).
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
from halimede.inference.geometry import Geometry, follow, geometry_of, with_geometry
from halimede.inference.model import Array, Model, ModelError, SampleError
from halimede.inference.postprocess import SCORE_SLACK, ClassReader, EmbeddingReader, FeaturedClassReader
from halimede.inference.scripts import LoadedPostprocessScript, ScriptError, ScriptReader, ScriptSampleError, bind
from halimede.inference.session import Declared, RuntimeSession, failure, open_session
from halimede.inference.tensor_ports import InputPort, choose_input, choose_output, choose_outputs, picture_shape
from halimede.messages import Prediction

#: most bytes of the blank frame by which steps are checked; larger ones are not tried
MAX_BLANK = 64 * 1024**2
#: least height and width in pixels of the blank frame by which scripts are checked
BLANK_SIZE = 480, 640
#: most bytes of a buffer that is kept between calls
MAX_BUFFER = 64 * 1024**2


class Reader(Protocol):
    """Converts a model's outputs to predictions: ``split`` divides a batch's outputs, ``read`` reads a sample's part.

    ``names``: the outputs that are read, in the order of the arrays in both methods.
    """

    names: tuple[str, ...]

    def split(self, outputs: Sequence[Array], count: int) -> list[tuple[Array, ...]]:
        """Return for each of ``count`` samples its part of each output, in order. Raises SampleError."""

    def read(self, part: tuple[Array, ...], geometry: Geometry | None = None) -> Prediction:
        """Return the prediction in one sample's part. Raises SampleError.

        ``geometry``: the mapping of the frame to the model's input, by which coordinates are mapped back; None: they
        stay as they are.
        """


class FileModel(Model):
    """A ``Model`` of an opened file, ``session``.

    ``port``: the model's input. ``reader``: of its outputs. ``spec``: with its scripts loaded.

    Attributes:
        batched: the model takes several samples in one call; else they run one by one.
        labels: names of the classes in order, by the spec.
        ours: True: the spec has no scripts.
        decoding: decides at which smaller scale JPEG frames are decoded, by the declared steps; None: they are decoded
            whole.

    """

    labels: tuple[str, ...] = ()

    def __init__(self, session: RuntimeSession, port: InputPort, reader: Reader, spec: ModelSpec) -> None:
        self.ours = next(scripts_of(spec.preprocess, spec.postprocess), None) is None
        self._session: RuntimeSession | None = session
        self._input = port
        self._reader = reader
        # steps from the first script on run where the model runs, in ``predict``
        scripts = [i for i, step in enumerate(spec.preprocess) if isinstance(step, Script)]
        self._steps = spec.preprocess[: scripts[0]] if scripts else spec.preprocess
        self._late_steps = spec.preprocess[scripts[0] :] if scripts else []
        # a script of preprocess may move pixels: then a script of postprocess maps its boxes back itself
        has_reader_script = spec.postprocess is not None and spec.postprocess.script is not None
        self._mapped_steps = None if scripts and has_reader_script else spec.preprocess
        self.decoding = decoding_of(spec.decode, spec.preprocess)
        #: returns the model's input, without batch axis, for a prepared sample; raises SampleError
        self.make_input: Callable[[Array], Array] = self._run_scripts if scripts else port.fit
        self.labels = tuple(spec.labels)
        self._maps_back = _needs_geometry(spec)
        self.batched = False
        #: by the magnitude (bits) of a sample's bytes and of the number of samples
        self._gains: dict[tuple[int, int], BatchGain] = {}
        #: in which samples are copied side by side; None: no call has made it, or one uses it
        self._buffer: Array | None = None
        self._names = list(reader.names)

    def prepare(self, image: Array) -> Array:
        """Return what the declared steps make of a frame, in the model's element type and shape. Raises SampleError.

        If boxes must be mapped back to the frame, the sample carries the mapping (``geometry``). With a script among
        the steps, the script, the steps after it and the conversion to the model's type run in ``predict``.
        """
        sample = preprocess.apply(self._steps, image)
        if not self._late_steps:
            sample = self._input.fit(sample)
        geometry = follow(self._mapped_steps or (), image.shape, geometry_of(image)) if self._maps_back else None
        if geometry and self._mapped_steps is None:
            geometry = geometry.whole
        return with_geometry(sample, geometry) if geometry else sample

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Return the predictions of prepared samples, in order. Raises SampleError.

        They run in one call if the model takes several samples and one call is faster than several.
        """
        read = self._reader.read
        if len(batch) == 1:
            (part,) = self.run(self.make_input(batch[0])[np.newaxis])
            return [read(part, geometry_of(batch[0]) if self._maps_back else None)]
        samples = [self.make_input(sample) for sample in batch]
        are_alike = len({sample.shape for sample in samples}) == 1  # a script may return other shapes
        parts = self._run_several(samples) if self.batched and samples and are_alike else self._run_alone(samples)
        return [read(part, geometry_of(sample)) for part, sample in zip(parts, batch, strict=True)]

    def _run_scripts(self, sample: Array) -> Array:
        """Return the model's input for a prepared sample: the first script and the steps after it run here."""
        return self._input.fit(preprocess.apply(self._late_steps, sample))

    def _run_several(self, samples: list[Array]) -> list[tuple[Array, ...]]:
        """Return the outputs' parts of samples of one shape, run in one call or one by one, whichever is faster."""
        first = samples[0]
        gain = self._gains.setdefault((first.nbytes.bit_length(), len(samples).bit_length()), BatchGain())
        together = gain.must_batch()
        began = time.perf_counter()
        parts = self._run_together(samples) if together else self._run_alone(samples)
        gain.learn(len(samples), (time.perf_counter() - began) * 1000, together=together)
        return parts

    def _run_alone(self, samples: list[Array]) -> list[tuple[Array, ...]]:
        """Return the outputs' parts of samples, run one by one."""
        return [part for sample in samples for part in self.run(sample[np.newaxis])]

    def _run_together(self, samples: list[Array]) -> list[tuple[Array, ...]]:
        """Return the outputs' parts of samples of one shape, run in one call.

        The samples are copied side by side into a buffer, which is kept: fresh memory pages cost more than the copy.
        """
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
        """Free the model's memory; later calls raise SampleError."""
        self._session = None

    @property
    def session(self) -> RuntimeSession | None:
        """The session of the runtime, for callers that need raw tensors; None when the model is closed."""
        return self._session

    def run(self, samples: Array) -> list[tuple[Array, ...]]:
        """Return each sample's part of the outputs. ``samples``: inputs, ``[count, ...]``. Raises SampleError."""
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
    """Load a file, and check it against its spec. Raises ModelError, InvalidFieldError for a contradictory spec.

    ``threads``: of one call; 0: one for each core.
    """
    check_postprocess(spec.postprocess)
    return make_model(open_session(Path(path), spec.format, threads), bind(spec, Path(path)))


def make_model(session: RuntimeSession, spec: ModelSpec) -> FileModel:
    """Return the model of an opened file, checked against its spec. Raises ModelError.

    ``spec``: with its scripts, anchors and alphabet loaded (``scripts.bind``).
    """
    port = choose_input(session.get_inputs())
    reader = _reader(session.get_outputs(), spec, port)
    model = FileModel(session, port, reader, spec)
    if model.ours:
        _check_steps(spec, port)
    else:
        _check_scripts(model, reader, port, spec)
    is_closed = port.shape is not None and None not in port.shape
    if is_closed and not (spec.postprocess and spec.postprocess.script):
        _check_answer(model, reader, port, spec)
    model.batched = port.batched and (not is_closed or _accepts_two(model, port))
    return model


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
    """Return the anchors of the model's boxes for the size of its input; None without anchors. Raises ModelError."""
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
    """Whether predictions need the frame's size: to map boxes back to it, or for a script that receives it."""
    if spec.postprocess and spec.postprocess.script:
        return True
    if not spec.postprocess or spec.postprocess.task != "detection":
        return False
    moves_pixels = any(isinstance(step, Resize | Fit | Letterbox | Crop) for step in spec.preprocess)
    return moves_pixels or (spec.postprocess.boxes or Boxes()).normalized


def _check_steps(spec: ModelSpec, port: InputPort) -> None:
    """Raise ModelError for steps that cannot produce the model's input from a blank frame.

    Nothing is checked if no step sets the size of its result, or the model's input has an open axis.
    """
    sized_steps = [step for step in spec.preprocess if isinstance(step, Resize | Letterbox | Crop)]
    if not sized_steps or port.shape is None or None in port.shape:
        return
    sets_channels = any(isinstance(step, Grayscale | Channels) for step in spec.preprocess)
    size = int(np.prod([length or 1 for length in port.shape]))
    channels = 3 if sets_channels else max(1, size // (sized_steps[-1].width * sized_steps[-1].height))
    frame = preprocess.blank(spec.preprocess, channels)
    if frame is None or frame.size > MAX_BLANK:
        return
    try:
        port.fit(preprocess.apply(spec.preprocess, frame))
    except SampleError as error:
        raise ModelError(f"spec.preprocess does not fit the model: {error}") from error


def _check_scripts(model: FileModel, reader: Reader, port: InputPort, spec: ModelSpec) -> None:
    """Run the scripts on blank frames until the model answers one.

    Raises ScriptError if the script of postprocess fails on that answer. If the model answers no frame, that is a
    ScriptError only with a script among the steps of pre-processing.
    """
    first_error: SampleError | None = None
    for frame in _blank_frames(spec, port):
        frame.setflags(write=False)  # as frames from the bus are
        try:
            sample = model.prepare(frame)
            (part,) = model.run(model.make_input(sample)[np.newaxis])
        except SampleError as error:
            first_error = first_error or error
            continue
        try:
            reader.read(tuple(map(_without_nan, part)), geometry_of(sample))
        except ScriptSampleError as error:
            raise ScriptError(str(error)) from error
        except SampleError:
            return  # declared post-processing: ``_check_answer`` finds out why
        return
    if first_error and any(isinstance(step, Script) for step in spec.preprocess):
        raise ScriptError(
            f"spec.preprocess: a blank frame does not become the model's input: {first_error}"
        ) from first_error


def _blank_frames(spec: ModelSpec, port: InputPort) -> Iterator[Array]:
    """Yield frames of zeros: of BLANK_SIZE, or larger if a declared step needs that; last, one shaped as the input."""
    needed = preprocess.blank(spec.preprocess, 1)
    height, width = BLANK_SIZE
    if needed is not None and needed.size <= MAX_BLANK:
        height, width = max(height, needed.shape[0]), max(width, needed.shape[1])
    yield np.zeros((height, width, 3), np.uint8)
    yield np.zeros((height, width, 1), np.uint8)
    if port.shape is not None and None not in port.shape:
        yield port.zeros(1)[0]


def _without_nan(output: Array) -> Array:
    """Return an output with 0 for NaN and infinity, which a model may have computed from a blank frame."""
    return np.nan_to_num(output, posinf=0, neginf=0) if output.dtype.kind == "f" else output


def _check_answer(model: FileModel, reader: Reader, port: InputPort, spec: ModelSpec) -> None:
    """Run once on zeros. Raises ModelError if the model fails, or its outputs' shapes or scores do not fit the spec.

    NaN in the output is no error: a model may divide by values that a blank frame lacks.
    """
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
    if postprocess.activation == "none" and (row.min() < -SCORE_SLACK or row.max() > 1 + SCORE_SLACK):
        raise ModelError(
            f"the model gives scores from {row.min():.4g} to {row.max():.4g}, which are no probabilities: "
            "set spec.postprocess.activation to softmax or sigmoid"
        )


def _accepts_two(model: FileModel, port: InputPort) -> bool:
    """Whether the model runs two samples in one call: exporters often fix a size of 1 behind an open batch axis."""
    try:
        model.run(port.zeros(2))
    except SampleError:
        return False
    return True
