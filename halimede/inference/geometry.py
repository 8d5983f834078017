"""Where the pixels of a frame are in what the model sees, so that the model's boxes find their way back to the frame.

Each step that moves pixels says how: along each axis a scale and an offset, which add up. The result travels on the
prepared sample itself (``Placed``), since a frame and its boxes are apart in time and meet nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import singledispatch

import numpy as np

from halimede.api.processing import Crop, Letterbox, ProcessingStep, Resize
from halimede.inference.model import Array, SampleError


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: pixel ``x`` of the frame is at ``x * scale + offset`` of ``seen`` pixels, and there are ``frame``."""

    frame: int
    seen: int
    scale: float = 1.0
    offset: float = 0.0

    def then(self, scale: float, offset: float, seen: int) -> Axis:
        """Put another step behind."""
        return Axis(self.frame, seen, self.scale * scale, self.offset * scale + offset)

    def back(self, values: Array) -> Array:
        """Give places in the frame for places in what the model sees; none is outside of the frame."""
        return np.clip((values - self.offset) / self.scale, 0, self.frame)


@dataclass(frozen=True, slots=True)
class Geometry:
    """Both axes of one sample."""

    x: Axis
    y: Axis

    @property
    def moved(self) -> bool:
        """Whether any pixel is elsewhere."""
        return any((axis.scale, axis.offset, axis.seen) != (1.0, 0.0, axis.frame) for axis in (self.x, self.y))

    def pixels(self, corners: Array) -> Array:
        """Give pixels of what the model sees for shares of its width and height, ``[n, 4]`` corners."""
        return corners * [self.x.seen, self.y.seen, self.x.seen, self.y.seen]

    def back(self, corners: Array) -> Array:
        """Give pixels of the frame for pixels of what the model sees, ``[n, 4]`` corners."""
        if not self.moved:
            return corners
        result = np.empty_like(corners)
        result[:, 0::2] = self.x.back(corners[:, 0::2])
        result[:, 1::2] = self.y.back(corners[:, 1::2])
        return result


class Placed(np.ndarray):
    """A prepared sample that knows where its pixels come from."""

    geometry: Geometry | None = None


def placed(sample: Array, geometry: Geometry) -> Array:
    """Return the sample with its geometry; the data are not copied."""
    result = sample.view(Placed)
    result.geometry = geometry
    return result


def geometry_of(sample: Array) -> Geometry | None:
    """Return where a sample's pixels come from; None if nobody has said."""
    return getattr(sample, "geometry", None)


def follow(steps: Iterable[ProcessingStep], shape: tuple[int, ...]) -> Geometry | None:
    """Return what steps do to a frame of that shape, ``[height, width, ...]``; None for what is no picture."""
    if len(shape) not in {2, 3}:
        return None
    geometry = Geometry(Axis(shape[1], shape[1]), Axis(shape[0], shape[0]))
    for step in steps:
        geometry = move(step, geometry)
    return geometry


@singledispatch
def move(step: ProcessingStep, geometry: Geometry) -> Geometry:  # noqa: ARG001 (most steps leave pixels where they are)
    """Put a step behind a geometry."""
    return geometry


@move.register
def _(step: Resize, geometry: Geometry) -> Geometry:
    x, y = geometry.x, geometry.y
    return Geometry(x.then(step.width / x.seen, 0, step.width), y.then(step.height / y.seen, 0, step.height))


@move.register
def _(step: Letterbox, geometry: Geometry) -> Geometry:
    x, y = geometry.x, geometry.y
    width, height, left, top = fitted(step, x.seen, y.seen)
    return Geometry(x.then(width / x.seen, left, step.width), y.then(height / y.seen, top, step.height))


@move.register
def _(step: Crop, geometry: Geometry) -> Geometry:
    x, y = geometry.x, geometry.y
    left, top = cut(step, x.seen, y.seen)
    return Geometry(x.then(1, -left, step.width), y.then(1, -top, step.height))


def fitted(step: Letterbox, width: int, height: int) -> tuple[int, int, int, int]:
    """Return the size that a picture gets in the letterbox, and the margins left and above."""
    share = min(step.width / width, step.height / height)
    new_width = min(step.width, max(1, round(width * share)))
    new_height = min(step.height, max(1, round(height * share)))
    return new_width, new_height, (step.width - new_width) // 2, (step.height - new_height) // 2


def cut(step: Crop, width: int, height: int) -> tuple[int, int]:
    """Return how much is cut off left and above. Raises SampleError for a picture that is too small."""
    left = (width - step.width) // 2 if step.x is None else step.x
    top = (height - step.height) // 2 if step.y is None else step.y
    if min(left, top) < 0 or left + step.width > width or top + step.height > height:
        raise SampleError(
            f"the pre-processing step crop wants {step.width} x {step.height} pixels from ({max(left, 0)}, "
            f"{max(top, 0)}) on, and is given a picture of {width} x {height}: put a resize step before it"
        )
    return left, top
