"""Pixel encodings: a registry from an encoding's name to its decoder and encoder.

Every limit is checked before memory is allocated: the size of a picture is read from its header (``image_headers``),
that of a raw array from its shape. Object arrays, unknown element types, anything over 64 megapixels and truncated
files are refused. Pixels are used as stored: who makes a frame of a file turns it before (``orientation``).
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from halimede.errors import DecodeError, InvalidFieldError
from halimede.image_headers import READERS, ImageHeader
from halimede.messages import Frame

Pixels = NDArray[Any]

JPEG_QUALITY = 90

#: bits of a pixel that cameras measure and store as 16-bit grey
GREY_DEPTHS = (8, 10, 12, 14, 16)

#: element types of raw frames, little endian
DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float16", "float32", "float64")
}

#: errors of Pillow's parsers on hostile files, besides its own errors (which are OSError)
BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


@dataclass(frozen=True, slots=True)
class ImageEncoding:
    """A pixel encoding. ``cheap``: decoding copies nothing, so it may run on the event loop.

    ``encode`` gets the pixels and a quality (0: the default), which only lossy encodings use. ``measure`` returns the
    bytes of a frame's decoded pixels without decoding it, or raises DecodeError.
    """

    decode: Callable[[Frame], Pixels]
    encode: Callable[[Pixels, int], bytes]
    measure: Callable[[Frame], int]
    cheap: bool = False


_registry: dict[str, ImageEncoding] = {}


def register(name: str, encoding: ImageEncoding) -> None:
    """Register an encoding under a unique name."""
    if name in _registry:
        raise ValueError(f"encoding {name} is registered twice")
    _registry[name] = encoding


def find(name: str) -> ImageEncoding:
    """Return an encoding; raise DecodeError for an unknown one."""
    encoding = _registry.get(name)
    if encoding is None:
        raise DecodeError(f"unknown encoding; known are {', '.join(sorted(_registry))}")
    return encoding


def measure(frame: Frame) -> int:
    """Return the claimed size of a frame's pixels in bytes. Raises DecodeError over the limits."""
    return find(frame.encoding).measure(frame)


def decode(frame: Frame) -> Pixels:
    """Return the pixels of a frame; read-only.

    jpeg and png: height x width x 3 uint8, or height x width for grey ones. raw: the frame's own dtype and shape, as a
    view of the received buffer. Raises DecodeError.
    """
    encoding = _registry.get(frame.encoding) or find(frame.encoding)
    return encoding.decode(frame)


def encode_image(image: Pixels, encoding: str = "png", quality: int = 0) -> bytes:
    """Encode pixels: height x width (x 3) uint8 for jpeg and png, any array of a known dtype for raw.

    ``quality`` (1 to 95) applies only to jpeg; 0: the default. Raises InvalidFieldError if the encoding does not
    support the array.
    """
    if encoding not in _registry:
        raise InvalidFieldError("encoding", encoding, f"use one of {', '.join(sorted(_registry))}")
    return _registry[encoding].encode(image, quality)


def is_picture(pixels: Pixels) -> bool:
    """Whether jpeg and png support the pixels: height x width (x 3) uint8."""
    return pixels.dtype == np.uint8 and pixels.size > 0 and (pixels.ndim == 2 or pixels.shape[2:] == (3,))


# --- raw ----------------------------------------------------------------------------------------------------------


def _measure_raw(frame: Frame) -> int:
    dtype = DTYPES.get(frame.dtype)
    if dtype is None:
        raise DecodeError(f"dtype is not one of {', '.join(DTYPES)}")
    if not frame.shape:
        raise DecodeError("a raw frame needs a shape")
    count = math.prod(frame.shape)
    if count * dtype.itemsize != frame.data.nbytes:
        raise DecodeError(f"shape {frame.shape} of {frame.dtype} does not fit {frame.data.nbytes} bytes")
    return frame.data.nbytes


def _decode_raw(frame: Frame) -> Pixels:
    try:
        array = np.frombuffer(frame.data, dtype=DTYPES[frame.dtype]).reshape(frame.shape or (-1, 0))
    except (KeyError, ValueError):
        _measure_raw(frame)  # raises with the reason
        raise
    array.flags.writeable = False
    return array


#: names of the element types: needed for every frame, and numpy builds a name again each time
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def raw_view(image: Pixels) -> tuple[str, memoryview] | None:
    """Return the element type and the bytes of an array without a copy; None if it must be copied or converted.

    Only for a read-only array: data in flight must not change.
    """
    name = _NAMES.get(image.dtype)
    if name is None or image.flags.writeable or not image.flags.c_contiguous or not image.size:
        return None
    return name, image.data.cast("B")


def _encode_raw(image: Pixels, _: int = 0) -> bytes:
    dtype = DTYPES.get(image.dtype.name)
    if dtype is None:
        raise InvalidFieldError("dtype", image.dtype.name, f"use one of {', '.join(DTYPES)}")
    return np.ascontiguousarray(image, dtype=dtype).tobytes()


# --- pictures -----------------------------------------------------------------------------------------------------


def _read(frame: Frame) -> ImageHeader:
    """Read the header of a picture. Raises DecodeError, also over the limits."""
    picture = READERS[frame.encoding](frame.data.cast("B"))
    picture.check()
    return picture


def _measure_picture(frame: Frame) -> int:
    return _read(frame).check()


def _decode_picture(frame: Frame) -> Pixels:
    name: str = frame.encoding
    claimed = _read(frame)
    try:
        with Image.open(io.BytesIO(b"".join(claimed.parts)), formats=[name.upper()]) as picture:
            if picture.size != (claimed.width, claimed.height):
                raise DecodeError(f"no readable {name}: its header contradicts itself")
            return _pixels(picture)
    except DecodeError:
        raise
    except BROKEN as error:
        # Pillow's own texts may quote the file
        cause = "there is not enough memory for it" if isinstance(error, MemoryError) else "its content is damaged"
        raise DecodeError(f"no readable {name}: {cause}") from error


def _pixels(picture: Image.Image) -> Pixels:
    if picture.mode.startswith("I"):
        array: Pixels = _high_byte(np.asarray(picture))
    elif picture.mode in {"1", "L", "LA"}:
        array = np.asarray(picture if picture.mode == "L" else picture.convert("L"))
    else:
        array = np.asarray(picture if picture.mode == "RGB" else picture.convert("RGB"))
    array.flags.writeable = False
    return array


def _high_byte(grey: Pixels) -> Pixels:
    """Return the 8 highest bits of the smallest usual depth that holds the maximum.

    Cameras of 10, 12 and 14 bits write 16-bit files: the high byte of these would be black.
    """
    brightest = int(grey.max(initial=0))
    depth = next(bits for bits in GREY_DEPTHS if brightest < 1 << bits)
    return (grey >> (depth - 8)).astype(np.uint8)


def _encode_jpeg(image: Pixels, quality: int) -> bytes:
    return _saved(image, "JPEG", quality=quality or JPEG_QUALITY)


def _encode_png(image: Pixels, _: int) -> bytes:
    return _saved(image, "PNG")


def _saved(image: Pixels, form: str, **options: int) -> bytes:
    if not is_picture(image):
        raise InvalidFieldError("image", f"{image.dtype} {image.shape}", "give uint8, height x width or x 3")
    out = io.BytesIO()
    Image.fromarray(image).save(out, format=form, **options)
    return out.getvalue()


register("raw", ImageEncoding(_decode_raw, _encode_raw, _measure_raw, cheap=True))
register("jpeg", ImageEncoding(_decode_picture, _encode_jpeg, _measure_picture))
register("png", ImageEncoding(_decode_picture, _encode_png, _measure_picture))
