"""The declared pre-processing: converts a decoded frame to a model's input, with one function for each step.

A new step is a class in ``halimede.api.processing`` and a function here, registered for it. Frames are
``[height, width, channels]`` or ``[height, width]``; the result keeps its element type unless a step changes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from PIL import Image

from halimede.api.processing import (
    Cast,
    Channels,
    Crop,
    Fit,
    Grayscale,
    Layout,
    Letterbox,
    Normalize,
    ProcessingStep,
    Resize,
    ResizeMethod,
    Scale,
    each_channel,
)
from halimede.inference.geometry import cut, fit_size, fitted
from halimede.inference.model import Array, SampleError
from halimede.inference.opencv import resize_by_opencv

#: the steps that scale values
SCALING = (Scale, Normalize)
#: ITU-R BT.601 luma of red, green and blue
LUMA = np.array([0.299, 0.587, 0.114])
#: element types whose sum of squares numpy computes fast: float32 and float64
FAST_FLOATS = frozenset("fd")


def apply(steps: Sequence[ProcessingStep], image: Array) -> Array:
    """Apply steps in order. The result is C-contiguous; without steps it is the frame itself if that is contiguous.

    Raises SampleError when a step cannot process its input.
    """
    if image.dtype.kind not in "uif":
        raise SampleError(f"the frame holds {image.dtype}: send whole or floating-point numbers")
    if image.size == 0:
        raise SampleError(f"the frame is empty: its shape is {list(image.shape)}")
    check_finite(image)
    return np.ascontiguousarray(_run_all(steps, image) if steps else image)


def _run_all(steps: Sequence[ProcessingStep], image: Array) -> Array:
    image = np.asarray(image)  # without the mapping to its frame
    done, end = 0, len(steps) - 1
    if end > 0 and isinstance(steps[end], Cast):
        end -= 1
    if end > 0 and isinstance(steps[end - 1], SCALING):
        last = steps[end]
        if isinstance(last, Layout) and last.order == "chw":
            image, done = _planes(steps[:end], image), end + 1
    for step in steps[done:]:
        image = run(step, image)
    return image


def check_finite(image: Array) -> None:
    """Raise SampleError for a frame with NaN or infinity, which a model would answer with a meaningless result.

    A sum of squares is the fastest check: it is finite only if all values are. Squares of large values may not be.
    """
    if image.dtype.kind != "f":
        return
    # vdot does not report that a square overflows, as dot does; hiding that would cost more than the sum
    if image.dtype.char in FAST_FLOATS and math.isfinite(np.vdot(image, image)):
        return
    finite = np.isfinite(image)
    if finite.all():
        return
    wrong = np.argwhere(~finite)
    text = f"the frame holds NaN or infinity {len(wrong)} times, first at {wrong[0].tolist()}"
    raise SampleError(f"{text}: repair its source")


def blank(steps: Sequence[ProcessingStep], channels: int) -> Array | None:
    """Return a frame of zeros that the steps accept; None if no step determines the size of the result."""
    sized = [step for step in steps if isinstance(step, Resize | Letterbox | Crop)]
    if not sized:
        return None
    width = height = 2
    for step in sized:
        if not isinstance(step, Crop):
            break
        width, height = max(width, step.width + (step.x or 0)), max(height, step.height + (step.y or 0))
    return np.zeros((height, width, channels), np.uint8)


@singledispatch
def run(step: ProcessingStep, image: Array) -> Array:  # noqa: ARG001 (the registered functions use it)
    """Apply one step."""
    raise TypeError(f"pre-processing step {type(step).__name__} has no function here")


@run.register
def grayscale(_: Grayscale, image: Array) -> Array:
    """Return ``[height, width, 1]`` of three channels, or of four (alpha is ignored); one channel is not changed."""
    picture = _picture("grayscale", image)
    channels = picture.shape[2]
    if channels == 1:
        return picture
    if channels not in {3, 4}:
        raise _misfit("grayscale", image, "a picture of 1, 3 or 4 channels")
    if image.dtype == np.uint8:
        # Pillow's own rounding, so that the model receives the pixels that it was trained on
        return np.asarray(Image.fromarray(np.ascontiguousarray(picture[..., :3])).convert("L"))[..., np.newaxis]
    return _like(picture[..., :3] @ LUMA, image.dtype)[..., np.newaxis]


@run.register
def channels(step: Channels, image: Array) -> Array:
    """Return ``[height, width, 3]`` of one, three or four channels, which are RGB or gray."""
    picture = _picture("channels", image)
    if picture.shape[2] == 1:
        return np.repeat(picture, 3, axis=2)
    if picture.shape[2] not in {3, 4}:
        raise _misfit("channels", image, "a picture of 1, 3 or 4 channels, last")
    return picture[..., 2::-1] if step.format == "bgr" else picture[..., :3]


@run.register
def resize(step: Resize, image: Array) -> Array:
    """Resize by the step's method. Keeps axes, channels and element type."""
    return _resized(_picture("resize", image), step.width, step.height, step.method).reshape(
        step.height, step.width, *image.shape[2:]
    )


@run.register
def fit(step: Fit, image: Array) -> Array:
    """Resize with the picture's proportions, as ``resize`` does."""
    picture = _picture("fit", image)
    width, height = fit_size(step, picture.shape[1], picture.shape[0])
    return _resized(picture, width, height, step.method).reshape(height, width, *image.shape[2:])


@run.register
def letterbox(step: Letterbox, image: Array) -> Array:
    """Resize the whole picture into the middle of the given size; fill the margins with the fill value, if possible."""
    picture = _picture("letterbox", image)
    width, height, x0, y0 = fitted(step, picture.shape[1], picture.shape[0])
    whole = np.full((step.height, step.width, picture.shape[2]), _fill(step, image.dtype), image.dtype)
    whole[y0 : y0 + height, x0 : x0 + width] = _resized(picture, width, height, step.method)
    return whole.reshape(step.height, step.width, *image.shape[2:])


@run.register
def crop(step: Crop, image: Array) -> Array:
    """Return a part of the picture, without a copy."""
    picture = _picture("crop", image)
    x0, y0 = cut(step, picture.shape[1], picture.shape[0])
    return image[y0 : y0 + step.height, x0 : x0 + step.width]


@run.register
def scale(step: Scale, image: Array) -> Array:
    """Return ``(x * factor - mean) / std`` in single precision; double stays double. Channels are the last axis."""
    return _scaled(step, image, channel_axis=2)


@run.register
def normalize(step: Normalize, image: Array) -> Array:
    """Scale with the factor 1/255."""
    return _scaled(step, image, channel_axis=2)


@run.register
def layout(step: Layout, image: Array) -> Array:
    """Return ``[height, width, channels]``, ``[channels, height, width]`` or one row of all values."""
    if step.order == "flat":
        return image.reshape(-1)
    picture = _picture(f"layout {step.order}", image)
    return picture.transpose(2, 0, 1) if step.order == "chw" else picture


@run.register
def cast(step: Cast, image: Array) -> Array:
    """Change the element type. Whole numbers are truncated, not rounded, and clipped to the type's range."""
    dtype = np.dtype(step.dtype)
    if dtype.kind in "ui":
        if not np.isfinite(image).all():
            raise SampleError(f"the frame holds NaN or infinity, which {dtype} cannot: repair its source")
        return _clip(image, dtype)
    return image.astype(dtype, copy=False)


def _fill(step: Letterbox, dtype: np.dtype[Any]) -> Any:
    """Return the value of the margins, if possible."""
    return _clip(np.array(step.fill), dtype) if dtype.kind in "ui" else step.fill


def _planes(steps: Sequence[ProcessingStep], image: Array) -> Array:
    """Return ``[channels, height, width]``: the last step scales, in one pass to its element type and these axes."""
    *before, scaling = steps
    assert isinstance(scaling, SCALING)  # noqa: S101  # by ``apply``
    box = before[-1] if before else None
    for step in before[:-1] if isinstance(box, Letterbox) else before:
        image = run(step, image)
    if isinstance(box, Letterbox):
        return _letterboxed_planes(box, scaling, image)
    return _scaled(scaling, _picture("layout chw", image).transpose(2, 0, 1), channel_axis=0)


def _letterboxed_planes(step: Letterbox, scaling: Scale | Normalize, image: Array) -> Array:
    """Return the planes of a letterbox whose picture alone is scaled: the margins have one value a channel."""
    picture = _picture("letterbox", image)
    width, height, x0, y0 = fitted(step, picture.shape[1], picture.shape[0])
    whole = np.empty((picture.shape[2], step.height, step.width), _float_type(image))
    resized = _resized(picture, width, height, step.method).transpose(2, 0, 1)
    _scaled(scaling, resized, channel_axis=0, out=whole[:, y0 : y0 + height, x0 : x0 + width])
    fill = np.full((picture.shape[2], 1, 1), _fill(step, image.dtype), image.dtype)
    margin = _scaled(scaling, fill, channel_axis=0)
    for region in (whole[:, :y0], whole[:, y0 + height :], whole[..., :x0], whole[..., x0 + width :]):
        region[...] = margin
    return whole


def _float_type(image: Array) -> np.dtype[Any]:
    return np.dtype(np.float64 if image.dtype == np.float64 else np.float32)


def _scaled(step: Scale | Normalize, image: Array, channel_axis: int, out: Array | None = None) -> Array:
    """Scale in one pass to the new type and order of the axes, and the rest in place."""
    factor = step.factor if isinstance(step, Scale) else 1 / 255
    dtype = _float_type(image)
    has_channels = image.ndim == 3
    count = image.shape[channel_axis] if has_channels else 1
    mean, std = each_channel(step.mean), each_channel(step.std)
    for name, values in (("mean", mean), ("std", std)):
        if len(values) > 1 and len(values) != count:
            channels_last = image if channel_axis else image.transpose(1, 2, 0)
            raise _misfit(
                "scale", channels_last, f"{len(values)} channels last, as many as {name} has (put scale before layout)"
            )
    if out is None:
        result = image.astype(dtype, order="C")
    else:
        result = out
        result[...] = image
    result *= dtype.type(factor)
    shape = (-1, 1, 1) if has_channels and not channel_axis else (-1,)
    if mean:
        result -= np.asarray(mean, dtype).reshape(shape)
    if std:
        result /= np.asarray(std, dtype).reshape(shape)
    return result


def _picture(step: str, image: Array) -> Array:
    """Return the frame with its channel axis."""
    if image.ndim == 2:
        return image[..., np.newaxis]
    if image.ndim != 3:
        raise _misfit(step, image, "[height, width, channels] or [height, width]")
    return image


def _resized(picture: Array, width: int, height: int, method: ResizeMethod) -> Array:
    """Return ``[height, width, channels]`` by Pillow's bilinear filter, which averages when shrinking, or by OpenCV."""
    if picture.shape[:2] == (height, width):
        return picture
    if method != "antialias":
        return _like(resize_by_opencv(picture, width, height, method), picture.dtype)
    if picture.dtype == np.uint8 and picture.shape[2] == 3:
        whole = Image.fromarray(np.ascontiguousarray(picture))
        return np.asarray(whole.resize((width, height), Image.Resampling.BILINEAR))
    # channel by channel: Pillow would treat a fourth one as alpha, and weigh the others by it
    planes = [_resize_plane(picture[..., i], width, height) for i in range(picture.shape[2])]
    return np.stack(planes, axis=-1)


def _resize_plane(plane: Array, width: int, height: int) -> Array:
    whole = Image.fromarray(np.ascontiguousarray(plane if plane.dtype == np.uint8 else plane.astype(np.float32)))
    return _like(np.asarray(whole.resize((width, height), Image.Resampling.BILINEAR)), plane.dtype)


def _like(values: Array, dtype: np.dtype[Any]) -> Array:
    """Convert computed values to the frame's element type, rounded if it holds whole numbers."""
    if values.dtype == dtype:
        return values
    return _clip(np.rint(values), dtype) if dtype.kind in "ui" else values.astype(dtype)


def _clip(values: Array, dtype: np.dtype[Any]) -> Array:
    """Cast to whole numbers without wrapping around."""
    bounds = np.iinfo(dtype)
    high: Any = bounds.max
    if values.dtype.kind == "f":
        values = values.astype(np.float64)
        # doubles represent all bounds except those of 64 bits, which round up and would wrap
        high = np.nextafter(float(bounds.max), 0) if dtype.itemsize == 8 else bounds.max
    return np.clip(values, bounds.min, high).astype(dtype)


def _misfit(step: str, image: Array, expected: str) -> SampleError:
    return SampleError(f"the pre-processing step {step} wants {expected}, and is given {list(image.shape)}")
