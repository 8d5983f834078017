"""Selects the input and output of a model, and describes the input. Reads declarations only; runs nothing."""

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
from halimede.inference.session import Declared

DTYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(uint16)": np.uint16,
    "tensor(int16)": np.int16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}
FLOATS = {"tensor(float)", "tensor(float16)", "tensor(double)"}
#: a row of fewer values is no picture
LEAST_SIDE = 4
CHANNELS = frozenset({1, 3, 4})
ZIPMAP = "scikit-learn: export with options={id(model): {'zipmap': False}}"


@dataclass(frozen=True, slots=True)
class PictureShape:
    """A picture as a model's input: its size in pixels (0: open), and the order of its axes."""

    height: int
    width: int
    channels: int
    order: str


@dataclass(frozen=True, slots=True)
class InputPort:
    """The model's input. ``shape`` is that of one sample, None for an open axis; None as a whole: undeclared."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None
    batched: bool

    def fit(self, sample: Array) -> Array:
        """Convert a pre-processed sample to the declared type and axes of length 1. Raises SampleError."""
        declared, shape = self.shape, sample.shape
        if sample.dtype == self.dtype and (declared is None or shape == declared or _takes(declared, shape)):
            return sample
        if not np.can_cast(sample.dtype, self.dtype, "same_kind"):
            raise SampleError(f"{self._expected_shape(sample)}: add a cast step")
        sample = sample.astype(self.dtype, copy=False)
        if self.shape is None or _takes(self.shape, sample.shape):
            return sample
        if None not in self.shape and _long(sample.shape) == _long(self.shape):
            return sample.reshape([size or 0 for size in self.shape])
        raise SampleError(f"{self._expected_shape(sample)}: {self._advice(sample)}")

    def zeros(self, count: int) -> Array:
        """Return ``count`` samples of zeros. Only for a shape without open axes."""
        return np.zeros((count, *[size or 1 for size in self.shape or ()]), self.dtype)

    def _expected_shape(self, sample: Array) -> str:
        first = "N" if self.batched else "1"
        return (
            f"the model wants input {_text(first, self.shape or ())} {self.dtype}, "
            f"the frame gives {_text(first, sample.shape)} {sample.dtype} after pre-processing"
        )

    def _advice(self, sample: Array) -> str:
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
def _takes(declared: tuple[int | None, ...], shape: tuple[int, ...]) -> bool:
    """Whether a shape fits the declared one, in which None allows any length of its axis."""
    return len(shape) == len(declared) and all(w in {None, s} for w, s in zip(declared, shape, strict=True))


def choose_input(inputs: Sequence[Declared]) -> InputPort:
    """Describe the only input of a model. Raises ModelError for a model that cannot take a sample."""
    if len(inputs) != 1:
        names = ", ".join(port.name for port in inputs) or "none"
        raise ModelError(f"the model has {len(inputs)} inputs ({names}): export it with one")
    (port,) = inputs
    if port.type not in DTYPES:
        raise ModelError(f"the model's input {port.name} is {port.type}: export it with a tensor of numbers")
    dtype = np.dtype(DTYPES[port.type])
    if not port.shape:
        return InputPort(port.name, dtype, None, batched=True)
    batch, *shape = (size if isinstance(size, int) and size > 0 else None for size in port.shape)
    if batch not in {None, 1}:
        raise ModelError(
            f"the model takes exactly {batch} samples a run: export it with an open batch axis or one of 1"
        )
    return InputPort(port.name, dtype, tuple(shape), batched=batch is None)


def picture_shape(shape: Sequence[int | None] | None) -> PictureShape | None:
    """Return how a picture has this shape, that of one sample; None if it is none."""
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
    """Return the names of the outputs to read: scores, and separate outputs: boxes and classes, or features."""
    apart = []
    boxes = postprocess.boxes or Boxes()
    named = {
        "boxes.output": boxes.output,
        "boxes.classes": boxes.classes,
        "boxes.offsets": boxes.offsets,
        "boxes.landmarks": boxes.landmarks,
        "features": postprocess.features,
    }
    for field, name in named.items():
        if name and name not in {port.name for port in outputs}:
            listed = ", ".join(f"{port.name} {port.type}" for port in outputs)
            raise ModelError(f"the model has no output {name!r}: set spec.postprocess.{field} to one of {listed}")
        if name:
            apart.append(name)
    candidates = [port for port in outputs if port.name not in apart]
    return [choose_output(candidates, postprocess, labels), *apart]


def choose_output(outputs: Sequence[Declared], postprocess: Postprocess, labels: Sequence[str]) -> str:
    """Return the name of the output to read: the one that the spec names, or the only one of floats for the task."""
    listed = ", ".join(f"{port.name} {port.type}" for port in outputs)
    if postprocess.output:
        named = [port for port in outputs if port.name == postprocess.output]
        if not named:
            raise ModelError(
                f"the model has no output {postprocess.output!r}: set spec.postprocess.output to one of {listed}"
            )
        if named[0].type not in FLOATS:
            raise ModelError(
                f"the output {named[0].name} is {named[0].type}, which holds no scores; there are {listed}"
            )
        return named[0].name
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


def _long(shape: Sequence[int | None]) -> list[int | None]:
    """Return the axes that matter, without those of length 1."""
    return [size for size in shape if size != 1]


def _text(first: str, shape: Sequence[int | None]) -> str:
    return "[" + ",".join([first, *("?" if size is None else str(size) for size in shape)]) + "]"
