"""What users have at hand becomes a frame: arrays, pictures of Pillow, paths, and bytes of a JPEG or PNG."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from halimede.codec import MAX_BYTES
from halimede.errors import DecodeError, InvalidFieldError, TooLargeError
from halimede.frames.encodings import BROKEN, DTYPES
from halimede.frames.payloads import new_frame, open_payload, pack
from halimede.inference import Array

Sample: TypeAlias = "Array | Image.Image | str | os.PathLike[str] | bytes | bytearray | memoryview | Sequence[float]"

WANTED = "give a NumPy array, a Pillow image, the path of a JPEG or PNG, or its bytes"
#: elements of an axis, as a frame says them
LONGEST = 65_535
TOO_LARGE = f"it is over {MAX_BYTES >> 20} MiB: give it as a JPEG or PNG, or make it smaller"


def payload(sample: Sample, field: str = "x") -> bytes:
    """Return a sample as a camera would send it. Raises InvalidFieldError, naming ``field``."""
    if isinstance(sample, bytes | bytearray | memoryview):
        return _checked(bytes(sample), field, f"{len(sample)} bytes")
    if isinstance(sample, str | os.PathLike):
        return _read(Path(sample), field)
    if isinstance(sample, Image.Image):
        sample = _pixels(sample, field)
    return _pack(_array(sample, field), field)


def _pixels(image: Image.Image, field: str) -> Array:
    try:
        return np.asarray(image if image.mode in {"L", "RGB"} else image.convert("RGB"))
    except BROKEN as error:  # Pillow reads a file when its pixels are asked for
        raise InvalidFieldError(field, image, f"it cannot be read: {error}") from error


def _read(path: Path, field: str) -> bytes:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # a pipe, a device: there may be no end
            raise InvalidFieldError(field, str(path), f"it is no file: {WANTED}")
        if path.stat().st_size > MAX_BYTES:
            raise InvalidFieldError(field, str(path), TOO_LARGE)
        return _checked(path.read_bytes(), field, str(path))
    except (OSError, ValueError) as error:  # ValueError: a name that holds a NUL
        said = error.strerror if isinstance(error, OSError) else error
        raise InvalidFieldError(field, str(path), f"it cannot be read: {said}") from error


def _checked(data: bytes, field: str, shown: str) -> bytes:
    try:
        frame = open_payload(data, "")
    except DecodeError as error:
        raise InvalidFieldError(field, shown, f"{error}: {WANTED}") from error
    if frame.encoding == "raw":
        raise InvalidFieldError(field, shown, f"it is no JPEG or PNG: {WANTED}")
    return data


def _array(sample: Any, field: str) -> Array:
    try:
        array = np.asarray(sample)
    except (ValueError, TypeError) as error:
        raise InvalidFieldError(field, type(sample).__name__, WANTED) from error
    if array.dtype == np.bool_:
        array = array.astype(np.uint8)
    if array.dtype.kind not in "iuf" or not 1 <= array.ndim <= 4 or 0 in array.shape:
        raise InvalidFieldError(field, f"{type(sample).__name__} {array.dtype} {array.shape}", WANTED)
    shown = f"{array.dtype} {array.shape}"
    if array.dtype.name not in DTYPES:
        raise InvalidFieldError(field, shown, f"make it one of {', '.join(DTYPES)}")
    if array.nbytes > MAX_BYTES:  # before anything is copied: a view of few bytes may stand for terabytes
        raise InvalidFieldError(field, shown, TOO_LARGE)
    if max(array.shape) > LONGEST:
        raise InvalidFieldError(field, shown, f"give it axes of at most {LONGEST}: reshape it")
    return array


def _pack(array: Array, field: str) -> bytes:
    try:
        return pack(new_frame(array))
    except TooLargeError as error:
        raise InvalidFieldError(field, f"{array.dtype} {array.shape}", TOO_LARGE) from error
