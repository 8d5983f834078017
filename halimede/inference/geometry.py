"""Maps pixels of a frame to the model's input, so that the model's boxes can be mapped back to the frame.

Each step of pre-processing that moves pixels adds a scale and an offset for each axis to a ``Geometry``. The geometry
is stored on the prepared sample itself (``MappedArray``), because nothing else connects a frame with its boxes. A
picture that was decoded at a smaller scale carries its geometry in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import singledispatch

import numpy as np

from halimede.api.processing import Crop, Fit, Letterbox, ProcessingStep, Resize
from halimede.inference.model import Array, SampleError

#: most pixels of a side that the step fit makes
MAX_SIDE = 8192


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: pixel ``x`` of the frame is at ``x * scale + offset`` of the mapped picture.

    Attributes:
        frame: pixels of the frame on this axis.
        size: pixels of the mapped picture on this axis.
        scale: pixels of the mapped picture for each pixel of the frame.
        offset: where the frame's pixel 0 is in the mapped picture; it may be outside.

    """

    frame: int
    size: int
    scale: float = 1.0
    offset: float = 0.0

    def then(self, scale: float, offset: float, size: int) -> Axis:
        """Return this mapping followed by a step that maps ``x`` to ``x * scale + offset`` of ``size`` pixels."""
        return Axis(self.frame, size, self.scale * scale, self.offset * scale + offset)

    def back(self, values: Array) -> Array:
        """Map coordinates in the mapped picture to coordinates in the frame, clipped to 0..``frame``."""
        return np.clip((values - self.offset) / self.scale, 0, self.frame)


@dataclass(frozen=True, slots=True)
class Geometry:
    """The mapping from the pixels of a frame to those of a picture made from it, such as the model's input.

    ``x``: along the width. ``y``: along the height.
    """

    x: Axis
    y: Axis

    @classmethod
    def of(cls, width: int, height: int, scale: int = 1) -> Geometry:
        """Return the mapping of a frame of this size in pixels to its picture that was decoded at ``1/scale``."""
        return cls(*(Axis(side, scaled_side(side, scale), 1 / scale) for side in (width, height)))

    @property
    def whole(self) -> Geometry:
        """The mapping of the frame to itself."""
        return Geometry.of(self.x.frame, self.y.frame)

    @property
    def moved(self) -> bool:
        """Whether the mapping moves any pixel."""
        return any((axis.scale, axis.offset, axis.size) != (1.0, 0.0, axis.frame) for axis in (self.x, self.y))

    def pixels(self, corners: Array) -> Array:
        """Convert ``[n, 4]`` corners from fractions of the input's width and height to pixels of the input."""
        return corners * [self.x.size, self.y.size, self.x.size, self.y.size]

    def back(self, corners: Array) -> Array:
        """Convert ``[n, 2]`` points or ``[n, 4]`` corners from pixels of the model's input to pixels of the frame."""
        if not self.moved:
            return corners
        result = np.empty_like(corners)
        result[:, 0::2] = self.x.back(corners[:, 0::2])
        result[:, 1::2] = self.y.back(corners[:, 1::2])
        return result


class MappedArray(np.ndarray):
    """A picture or a prepared sample with the mapping of its frame's pixels to it; None: it was not set."""

    geometry: Geometry | None = None


def with_geometry(sample: Array, geometry: Geometry) -> Array:
    """Return the sample as a MappedArray with this geometry; the data are not copied."""
    result = sample.view(MappedArray)
    result.geometry = geometry
    return result


def scaled_side(side: int, scale: int) -> int:
    """Return the pixels of a side after decoding at ``1/scale``: libjpeg rounds up."""
    return -(-side // scale)


def geometry_of(sample: Array) -> Geometry | None:
    """Return the geometry that ``with_geometry`` stored on a sample; None if it has none."""
    return getattr(sample, "geometry", None)


def frame_geometry(image: Array) -> Geometry:
    """Return the mapping of a frame to its decoded picture, ``[height, width, ...]``, whole or at a smaller scale."""
    return geometry_of(image) or Geometry.of(image.shape[1], image.shape[0])


def scale_of(image: Array) -> int:
    """Return by what decoding has divided the sides of a picture: 1, 2, 4 or 8. Call it before any step is applied."""
    geometry = geometry_of(image)
    return round(1 / geometry.x.scale) if geometry else 1


def follow(steps: Iterable[ProcessingStep], shape: tuple[int, ...], decoded: Geometry | None = None) -> Geometry | None:
    """Return the mapping of a frame to what these steps make of it; None if ``shape`` is not that of a picture.

    ``shape``: of the pixels before the steps, ``[height, width]`` or ``[height, width, channels]``. ``decoded``: the
    mapping of the frame to these pixels; None: they are the frame's. Raises SampleError if a step cannot be applied.
    """
    if len(shape) not in {2, 3}:
        return None
    geometry = decoded or Geometry.of(shape[1], shape[0])
    for step in steps:
        geometry = move(step, geometry)
    return geometry


@singledispatch
def move(step: ProcessingStep, geometry: Geometry) -> Geometry:  # noqa: ARG001 (most steps leave pixels where they are)
    """Return a geometry followed by a step. Raises SampleError if the step cannot take a picture of that size."""
    return geometry


@move.register
def _(step: Resize | Fit, geometry: Geometry) -> Geometry:
    x, y = geometry.x, geometry.y
    width, height = scaled_size(step, x.size, y.size)
    return Geometry(x.then(width / x.size, 0, width), y.then(height / y.size, 0, height))


@move.register
def _(step: Letterbox, geometry: Geometry) -> Geometry:
    x, y = geometry.x, geometry.y
    width, height, x0, y0 = fit_letterbox(step, x.size, y.size)
    return Geometry(x.then(width / x.size, x0, step.width), y.then(height / y.size, y0, step.height))


@move.register
def _(step: Crop, geometry: Geometry) -> Geometry:
    x, y = geometry.x, geometry.y
    x0, y0 = crop_offset(step, x.size, y.size)
    return Geometry(x.then(1, -x0, step.width), y.then(1, -y0, step.height))


def scaled_size(step: Resize | Fit, width: int, height: int) -> tuple[int, int]:
    """Return the width and height in pixels that a step scales a picture to. Raises SampleError above MAX_SIDE."""
    if isinstance(step, Resize):
        return step.width, step.height
    share = step.height / height if step.height else (step.longest or max(width, height)) / max(width, height)
    new_width, new_height = (max(1, round(side * share / step.multiple)) * step.multiple for side in (width, height))
    if step.height:
        new_height = step.height
    if max(new_width, new_height) > MAX_SIDE:
        raise SampleError(
            f"the pre-processing step fit makes {new_width} x {new_height} pixels of a picture of {width} x {height}, "
            f"more than {MAX_SIDE} a side: put a crop step before it, or lower its longest or height"
        )
    return new_width, new_height


def fit_letterbox(step: Letterbox, width: int, height: int) -> tuple[int, int, int, int]:
    """Return width and height of the scaled picture in the letterbox, and the margins at its left and its top: pixels.

    The picture keeps its proportions and is as large as fits.
    """
    share = min(step.width / width, step.height / height)
    new_width = min(step.width, max(1, round(width * share)))
    new_height = min(step.height, max(1, round(height * share)))
    return new_width, new_height, (step.width - new_width) // 2, (step.height - new_height) // 2


def crop_offset(step: Crop, width: int, height: int) -> tuple[int, int]:
    """Return the pixels that are cut off at the left and the top. Raises SampleError if the picture is too small."""
    x0 = (width - step.width) // 2 if step.x is None else step.x
    y0 = (height - step.height) // 2 if step.y is None else step.y
    if min(x0, y0) < 0 or x0 + step.width > width or y0 + step.height > height:
        raise SampleError(
            f"the pre-processing step crop wants {step.width} x {step.height} pixels from ({max(x0, 0)}, "
            f"{max(y0, 0)}) on, and is given a picture of {width} x {height}: put a resize step before it"
        )
    return x0, y0
