"""The declared pre-processing: ``apply`` converts a decoded frame to a model's input, step by step.

A new step is a class in ``halimede.api.processing`` and a function here, registered for it with ``run``. Frames are
``[height, width, channels]`` or ``[height, width]``; the result keeps its element type unless a step changes it. Each
function raises SampleError if it cannot process the array that the step before has made.
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
    channel_values,
)
from halimede.inference.geometry import crop_offset, fit_letterbox, scaled_size
from halimede.inference.model import Array, SampleError
from halimede.inference.opencv import resize_by_opencv

#: the steps that scale values
SCALING = (Scale, Normalize)
#: ITU-R BT.601 luma of red, green and blue
LUMA = np.array([0.299, 0.587, 0.114])
#: NumPy's letters of the element types whose sum of squares is fast: float32 and float64
FAST_FLOATS = frozenset("fd")


def apply(steps: Sequence[ProcessingStep], image: Array) -> Array:
    """Return what the steps, in order, make of a frame: a C-contiguous array, without steps perhaps the frame itself.

    Raises SampleError for an empty frame, for NaN, infinity or other values than numbers, and if a step does not fit.
    """
    if image.dtype.kind not in "uif":
        raise SampleError(f"the frame holds {image.dtype}: send whole or floating-point numbers")
    if image.size == 0:
        raise SampleError(f"the frame is empty: its shape is {list(image.shape)}")
    check_finite(image)
    return np.ascontiguousarray(_run_all(steps, image) if steps else image)


def _run_all(steps: Sequence[ProcessingStep], image: Array) -> Array:
    """Return what all steps make of a picture; scaling and layout chw at the end (or before a cast) are one pass."""
    image = np.asarray(image)  # without the mapping to its frame
    completed, end = 0, len(steps) - 1
    if end > 0 and isinstance(steps[end], Cast):
        end -= 1
    if end > 0 and isinstance(steps[end - 1], SCALING):
        last = steps[end]
        if isinstance(last, Layout) and last.order == "chw":
            image, completed = _planes(steps[:end], image), end + 1
    for step in steps[completed:]:
        image = run(step, image)
    return image


def check_finite(image: Array) -> None:
    """Raise SampleError for a frame with NaN or infinity, which a model would answer with a meaningless result.

    The fastest check is a sum of squares: if it is finite, all values are. Otherwise each value is checked, because
    squares of large finite values overflow.
    """
    if image.dtype.kind != "f":
        return
    # np.dot would warn that a square overflows, and to suppress the warning would cost more than the sum
    if image.dtype.char in FAST_FLOATS and math.isfinite(np.vdot(image, image)):
        return
    finite = np.isfinite(image)
    if finite.all():
        return
    positions = np.argwhere(~finite)
    text = f"the frame holds NaN or infinity {len(positions)} times, first at {positions[0].tolist()}"
    raise SampleError(f"{text}: repair its source")


def blank(steps: Sequence[ProcessingStep], channels: int) -> Array | None:
    """Return a uint8 frame of zeros that the steps accept; None if no step determines the size of the result."""
    sized = [step for step in steps if isinstance(step, Resize | Letterbox | Crop)]
    if not sized:
        return None
    width = height = 2  # any size suits a step that resizes
    for step in sized:
        if not isinstance(step, Crop):
            break
        width, height = max(width, step.width + (step.x or 0)), max(height, step.height + (step.y or 0))
    return np.zeros((height, width, channels), np.uint8)


@singledispatch
def run(step: ProcessingStep, image: Array) -> Array:  # noqa: ARG001 (the registered functions use it)
    """Return what one step makes of a picture. Each kind of step has its function below.

    Raises SampleError, and TypeError for a step without a function, such as a script that ``scripts.bind`` has not
    loaded.
    """
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
    """Return ``[height, width, 3]``, in the step's order, of one gray channel, or of RGB (alpha is left out)."""
    picture = _picture("channels", image)
    if picture.shape[2] == 1:
        return np.repeat(picture, 3, axis=2)
    if picture.shape[2] not in {3, 4}:
        raise _misfit("channels", image, "a picture of 1, 3 or 4 channels, last")
    return picture[..., 2::-1] if step.format == "bgr" else picture[..., :3]


@run.register
def resize(step: Resize | Fit, image: Array) -> Array:
    """Return the picture in the step's size, by the step's method. Axes, channels and element type stay."""
    picture = _picture("fit" if isinstance(step, Fit) else "resize", image)
    width, height = scaled_size(step, picture.shape[1], picture.shape[0])
    return _resize_picture(picture, width, height, step.method).reshape(height, width, *image.shape[2:])


@run.register
def letterbox(step: Letterbox, image: Array) -> Array:
    """Return the whole picture, scaled, in the middle of the step's size, with the fill value in the margins."""
    picture = _picture("letterbox", image)
    width, height, x0, y0 = fit_letterbox(step, picture.shape[1], picture.shape[0])
    whole = np.full((step.height, step.width, picture.shape[2]), _fill(step, image.dtype), image.dtype)
    whole[y0 : y0 + height, x0 : x0 + width] = _resize_picture(picture, width, height, step.method)
    return whole.reshape(step.height, step.width, *image.shape[2:])


@run.register
def crop(step: Crop, image: Array) -> Array:
    """Return the step's rectangle of the picture, without a copy."""
    picture = _picture("crop", image)
    x0, y0 = crop_offset(step, picture.shape[1], picture.shape[0])
    return image[y0 : y0 + step.height, x0 : x0 + step.width]


@run.register
def scale(step: Scale | Normalize, image: Array) -> Array:
    """Return ``(x * factor - mean) / std`` as float32; float64 stays. Channels are last. Normalize scales by 1/255."""
    return _scale_values(step, image, channel_axis=2)


@run.register
def layout(step: Layout, image: Array) -> Array:
    """Return ``[height, width, channels]``, ``[channels, height, width]`` or one row of all values."""
    if step.order == "flat":
        return image.reshape(-1)
    picture = _picture(f"layout {step.order}", image)
    return picture.transpose(2, 0, 1) if step.order == "chw" else picture


@run.register
def cast(step: Cast, image: Array) -> Array:
    """Return the values in the step's element type; as whole numbers they are truncated and clipped to its range."""
    dtype = np.dtype(step.dtype)
    if dtype.kind in "ui":
        if not np.isfinite(image).all():
            raise SampleError(f"the frame holds NaN or infinity, which {dtype} cannot: repair its source")
        return _clip(image, dtype)
    return image.astype(dtype, copy=False)


def _fill(step: Letterbox, dtype: np.dtype[Any]) -> Any:
    """Return the value of the margins, clipped to the range of the element type."""
    return _clip(np.array(step.fill), dtype) if dtype.kind in "ui" else step.fill


def _planes(steps: Sequence[ProcessingStep], image: Array) -> Array:
    """Return ``[channels, height, width]`` of a picture, for steps of which the last one scales.

    The scaling writes its element type and this order of axes in one pass.
    """
    *before, scaling = steps
    assert isinstance(scaling, SCALING)  # noqa: S101  # by ``_run_all``
    box = before[-1] if before else None
    for step in before[:-1] if isinstance(box, Letterbox) else before:
        image = run(step, image)
    if isinstance(box, Letterbox):
        return _letterboxed_planes(box, scaling, image)
    return _scale_values(scaling, _picture("layout chw", image).transpose(2, 0, 1), channel_axis=0)


def _letterboxed_planes(step: Letterbox, scaling: Scale | Normalize, image: Array) -> Array:
    """Return ``[channels, height, width]`` of a letterbox with scaled values.

    Only the picture's pixels are scaled: the margins have one value a channel, which is computed once.
    """
    picture = _picture("letterbox", image)
    width, height, x0, y0 = fit_letterbox(step, picture.shape[1], picture.shape[0])
    whole = np.empty((picture.shape[2], step.height, step.width), _float_type(image))
    resized = _resize_picture(picture, width, height, step.method).transpose(2, 0, 1)
    _scale_values(scaling, resized, channel_axis=0, out=whole[:, y0 : y0 + height, x0 : x0 + width])
    fill = np.full((picture.shape[2], 1, 1), _fill(step, image.dtype), image.dtype)
    margin = _scale_values(scaling, fill, channel_axis=0)
    for region in (whole[:, :y0], whole[:, y0 + height :], whole[..., :x0], whole[..., x0 + width :]):
        region[...] = margin
    return whole


def _float_type(image: Array) -> np.dtype[Any]:
    """Return the element type of scaled values."""
    return np.dtype(np.float64 if image.dtype == np.float64 else np.float32)


def _scale_values(step: Scale | Normalize, image: Array, channel_axis: int, out: Array | None = None) -> Array:
    """Return ``(x * factor - mean) / std``, C-contiguous, or in ``out``. Raises SampleError.

    One pass converts to the element type and to the order of axes, and the arithmetic is done in place.
    ``channel_axis``: of an array with three axes, 0 or 2.
    """
    factor = step.factor if isinstance(step, Scale) else 1 / 255
    dtype = _float_type(image)
    has_channels = image.ndim == 3
    count = image.shape[channel_axis] if has_channels else 1
    mean, std = channel_values(step.mean), channel_values(step.std)
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
    """Return the frame as ``[height, width, channels]``. Raises SampleError, which names the step, for other shapes."""
    if image.ndim == 2:
        return image[..., np.newaxis]
    if image.ndim != 3:
        raise _misfit(step, image, "[height, width, channels] or [height, width]")
    return image


def _resize_picture(picture: Array, width: int, height: int, method: ResizeMethod) -> Array:
    """Return a picture resized to ``[height, width, channels]``, in its element type.

    The method antialias is Pillow's bilinear filter, which averages when it makes a picture smaller. OpenCV has the
    other methods.
    """
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
    """Return one channel, ``[height, width]``, resized by Pillow in its element type."""
    whole = Image.fromarray(np.ascontiguousarray(plane if plane.dtype == np.uint8 else plane.astype(np.float32)))
    return _like(np.asarray(whole.resize((width, height), Image.Resampling.BILINEAR)), plane.dtype)


def _like(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return computed values in an element type; for whole numbers they are rounded and clipped."""
    if values.dtype == dtype:
        return values
    return _clip(np.rint(values), dtype) if dtype.kind in "ui" else values.astype(dtype)


def _clip(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return values in an element type of whole numbers, clipped to its range."""
    bounds = np.iinfo(dtype)
    high: Any = bounds.max
    if values.dtype.kind == "f":
        values = values.astype(np.float64)
        # doubles represent all bounds except those of 64 bits, which round up and would wrap
        high = np.nextafter(float(bounds.max), 0) if dtype.itemsize == 8 else bounds.max
    return np.clip(values, bounds.min, high).astype(dtype)


def _misfit(step: str, image: Array, expected: str) -> SampleError:
    """Return the error that a step cannot take an array of this shape."""
    return SampleError(f"the pre-processing step {step} wants {expected}, and is given {list(image.shape)}")
