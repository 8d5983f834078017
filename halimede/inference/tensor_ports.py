"""Selects the input and the outputs of a model by what its file declares and its spec says, without a run.

A port is an input or output of a model file. ``FileModel`` and proposals use this module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from halimede.api.processing import Boxes, Postprocess
from halimede.inference.detection import BOX_COLUMNS
from halimede.inference.model import Array, ModelError, SampleError
from halimede.inference.session import TYPE_NAMES, Declared

#: element types of inputs that are refused: neither pictures nor the step cast have them
OTHER_TYPES = frozenset({"tensor(bool)", "tensor(uint32)", "tensor(uint64)"})
#: NumPy's types of the inputs that are accepted, by ONNX Runtime's names
DTYPES = {name: dtype for dtype, name in TYPE_NAMES.items() if name not in OTHER_TYPES}
#: the types of outputs that hold scores
FLOATS = frozenset({"tensor(float)", "tensor(float16)", "tensor(double)"})
#: least side in pixels of a square picture that a model takes as one row of values
LEAST_SIDE = 4
#: numbers of channels by which an input is recognised as a picture
CHANNELS = frozenset({1, 3, 4})
#: part of errors: how scikit-learn's models are exported with tensors
ZIPMAP = "scikit-learn: export with options={id(model): {'zipmap': False}}"


@dataclass(frozen=True, slots=True)
class PictureShape:
    """A picture as a model's input.

    Attributes:
        height: pixels; 0: the file leaves it open.
        width: pixels; 0: the file leaves it open.
        channels: 1, 3 or 4.
        order: of the axes: ``chw`` (channels first), ``hwc``, ``flat`` (one row of values), or empty without channels.

    """

    height: int
    width: int
    channels: int
    order: str


@dataclass(frozen=True, slots=True)
class InputPort:
    """A model's only input.

    Attributes:
        name: as the file declares it.
        dtype: the element type of samples.
        shape: of one sample, without batch axis, with None for an open axis; None: the file declares no shape.
        batched: the batch axis is open, so the model may take several samples in one call; True without a shape.

    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None
    batched: bool

    def fit(self, sample: Array) -> Array:
        """Return a pre-processed sample in the input's element type; axes of length 1 are added or removed to fit it.

        Raises SampleError, with advice, if the type or the shape does not fit.
        """
        declared, shape = self.shape, sample.shape
        if sample.dtype == self.dtype and (declared is None or shape == declared or _accepts(declared, shape)):
            return sample
        if not np.can_cast(sample.dtype, self.dtype, "same_kind"):
            raise SampleError(f"{self._expected_shape(sample)}: add a cast step")
        sample = sample.astype(self.dtype, copy=False)
        if self.shape is None or _accepts(self.shape, sample.shape):
            return sample
        if None not in self.shape and _significant_axes(sample.shape) == _significant_axes(self.shape):
            return sample.reshape([size or 0 for size in self.shape])
        raise SampleError(f"{self._expected_shape(sample)}: {self._advice(sample)}")

    def zeros(self, count: int) -> Array:
        """Return ``count`` samples of zeros, with the batch axis. The shape must have no open axes."""
        return np.zeros((count, *[size or 1 for size in self.shape or ()]), self.dtype)

    def _expected_shape(self, sample: Array) -> str:
        """Return the text that compares the input's type and shape with those of a sample."""
        first = "N" if self.batched else "1"
        return (
            f"the model wants input {_text(first, self.shape or ())} {self.dtype}, "
            f"the frame gives {_text(first, sample.shape)} {sample.dtype} after pre-processing"
        )

    def _advice(self, sample: Array) -> str:
        """Return which step would give a sample the input's shape, by the number of its values."""
        if self.shape is None or None in self.shape:
            return "add a resize or layout step"
        size = int(np.prod([size or 1 for size in self.shape]))
        if sample.size == size:
            return f"add a layout step ({'flat' if len(self.shape) == 1 else 'chw or hwc'})"
        if sample.size == 3 * size:
            return "add a grayscale step"
        if size == 3 * sample.size:
            return "add a channels step first, which makes three channels of a gray picture"
        return "add a resize step, and a grayscale or channels step if the number of channels differs"


@lru_cache(maxsize=1024)  # called for each sample, with few different shapes
def _accepts(declared: tuple[int | None, ...], shape: tuple[int, ...]) -> bool:
    """Whether a shape fits the declared one, in which None allows any length of its axis."""
    return len(shape) == len(declared) and all(w in {None, s} for w, s in zip(declared, shape, strict=True))


def choose_input(inputs: Sequence[Declared]) -> InputPort:
    """Return a model's only input. Raises ModelError for several, no numbers, or a batch axis neither 1 nor open."""
    if len(inputs) != 1:
        names = ", ".join(port.name for port in inputs) or "none"
        raise ModelError(f"the model has {len(inputs)} inputs ({names}): export it with one")
    (port,) = inputs
    if port.type not in DTYPES:
        raise ModelError(f"the model's input {port.name} is {port.type}: export it with a tensor of numbers")
    dtype = DTYPES[port.type]
    if not port.shape:
        return InputPort(port.name, dtype, None, batched=True)
    batch, *shape = (size if isinstance(size, int) and size > 0 else None for size in port.shape)
    if batch not in {None, 1}:
        raise ModelError(
            f"the model takes exactly {batch} samples a run: export it with an open batch axis or one of 1"
        )
    return InputPort(port.name, dtype, tuple(shape), batched=batch is None)


def picture_shape(shape: Sequence[int | None] | None) -> PictureShape | None:
    """Return the picture that an input of this shape takes; None if it takes none.

    ``shape``: of one sample, with None for an open axis.
    """
    sizes = [size or 0 for size in shape or ()]
    if len(sizes) == 3 and sizes[0] in CHANNELS:
        return PictureShape(sizes[1], sizes[2], sizes[0], "chw")
    if len(sizes) == 3 and sizes[2] in CHANNELS:
        return PictureShape(sizes[0], sizes[1], sizes[2], "hwc")
    if len(sizes) == 2:
        return PictureShape(sizes[0], sizes[1], 1, "")
    if len(sizes) == 1:
        for channels in (1, 3):
            side = math.isqrt(sizes[0] // channels)
            if side >= LEAST_SIDE and side * side * channels == sizes[0]:
                return PictureShape(side, side, channels, "flat")
    return None


def choose_outputs(outputs: Sequence[Declared], postprocess: Postprocess, labels: Sequence[str]) -> list[str]:
    """Return the names of the outputs to read: the scores first, then separate outputs of boxes or of features.

    The separate ones are those that the spec names, in the order boxes, classes, offsets, landmarks, features.
    Raises ModelError if an output does not exist, or if it is not clear which one has the scores.
    """
    boxes = postprocess.boxes or Boxes()
    named = {
        "boxes.output": boxes.output,
        "boxes.classes": boxes.classes,
        "boxes.offsets": boxes.offsets,
        "boxes.landmarks": boxes.landmarks,
        "features": postprocess.features,
    }
    separate = [_output(outputs, name, field).name for field, name in named.items() if name]
    candidates = [port for port in outputs if port.name not in separate]
    return [choose_output(candidates, postprocess, labels), *separate]


def choose_output(outputs: Sequence[Declared], postprocess: Postprocess, labels: Sequence[str]) -> str:
    """Return the name of the output with the scores: the one that the spec names, or the only one that fits the task.

    Without a name it is the only output of floats, or of several the only one with as many columns as there are labels
    (for boxes six). Raises ModelError, which lists the outputs.
    """
    listed = _output_list(outputs)
    if postprocess.output:
        named = _output(outputs, postprocess.output, "output")
        if named.type not in FLOATS:
            raise ModelError(f"the output {named.name} is {named.type}, which holds no scores; there are {listed}")
        return named.name
    floats = [port for port in outputs if port.type in FLOATS]
    if not floats:
        hint = f" ({ZIPMAP})" if any(port.type.startswith("seq") for port in outputs) else ""
        raise ModelError(f"the model has no output of floats but {listed}: export it with scores{hint}")
    if len(floats) == 1:
        return floats[0].name
    columns = BOX_COLUMNS if postprocess.task == "detection" else len(labels)
    fitting = [port for port in floats if columns and port.shape and port.shape[-1] == columns]
    if len(fitting) == 1:
        return fitting[0].name
    raise ModelError(
        f"the model has several outputs of floats, {listed}: name one in spec.postprocess.output ({ZIPMAP})"
    )


def _output(outputs: Sequence[Declared], name: str, field: str) -> Declared:
    """Return the output of a name, which ``field`` of the post-processing has. Raises ModelError."""
    for port in outputs:
        if port.name == name:
            return port
    raise ModelError(
        f"the model has no output {name!r}: set spec.postprocess.{field} to one of {_output_list(outputs)}"
    )


def _output_list(outputs: Sequence[Declared]) -> str:
    """Return names and types of outputs, for errors."""
    return ", ".join(f"{port.name} {port.type}" for port in outputs)


def _significant_axes(shape: Sequence[int | None]) -> list[int | None]:
    """Return the axes that matter, without those of length 1."""
    return [size for size in shape if size != 1]


def _text(first: str, shape: Sequence[int | None]) -> str:
    """Return a shape as text, with ``first`` for the batch axis and ``?`` for open axes."""
    return "[" + ",".join([first, *("?" if size is None else str(size) for size in shape)]) + "]"
