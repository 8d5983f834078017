"""Pixel encodings: a registry from an encoding's name to its decoder and encoder.

Every limit is checked before memory is allocated: the size of a picture is read from its header (``image_headers``),
that of a raw array from its shape. Object arrays, unknown element types, anything over 64 megapixels and truncated
files are refused. Pixels are used as stored: who makes a frame of a file turns it before (``orientation``).

JPEG files are decoded by libjpeg-turbo, whole or at a smaller scale: by simplejpeg, or by Pillow what that does not
read. Pillow reads PNG.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from halimede.errors import DecodeError, InvalidFieldError
from halimede.image_headers import READERS, ImageHeader
from halimede.messages import Frame

Pixels = NDArray[Any]

JPEG_QUALITY = 90

#: bits of a pixel that cameras measure and store as 16-bit grey
GREY_DEPTHS = (8, 10, 12, 14, 16)

#: what simplejpeg makes of the colours of JPEG files, and its channels; Pillow converts CMYK
JPEG_COLOURS = {"Gray": "GRAY", "RGB": "RGB", "YCbCr": "RGB", "CMYK": "CMYK", "YCCK": "CMYK"}
COLOUR_CHANNELS = {"GRAY": 1, "RGB": 3, "CMYK": 4}
#: libjpeg's remark about bytes between the picture and its end mark
BYTES_BEFORE_END = "extraneous bytes before marker 0xd9"
#: its remarks about pixels that the file does not have, such as rows that only the header claims: it fills them in grey
MISSING_PIXELS = (
    "Corrupt JPEG data: premature end of data segment",
    "Corrupt JPEG data: found marker ",
    "Premature end of JPEG file",
)

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


class Scaling(Protocol):
    """Decides how small a JPEG may be decoded (``halimede.inference.decoding``)."""

    @property
    def grey(self) -> bool:
        """Whether only the luma is needed."""

    def scale(self, width: int, height: int) -> int:
        """Return by what the sides of a picture are divided: 1, 2, 4 or 8."""


@dataclass(frozen=True, slots=True)
class ImageEncoding:
    """A pixel encoding. ``cheap``: decoding copies nothing, so it may run on the event loop.

    ``encode`` gets the pixels and a quality (0: the default), which only lossy encodings use. ``measure`` returns the
    bytes of a frame's decoded pixels without decoding it, or raises DecodeError.
    """

    decode: Callable[[Frame, Scaling | None], Pixels]
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


def decode(frame: Frame, scaling: Scaling | None = None) -> Pixels:
    """Return the pixels of a frame; read-only.

    jpeg and png: height x width x 3 uint8, or height x width for grey ones. raw: the frame's own dtype and shape, as a
    view of the received buffer. With ``scaling`` a jpeg may be decoded at a smaller scale, and then carries the mapping
    to its frame (``halimede.inference.geometry``). Raises DecodeError.
    """
    encoding = _registry.get(frame.encoding) or find(frame.encoding)
    return encoding.decode(frame, scaling)


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


def _decode_raw(frame: Frame, _: Scaling | None = None) -> Pixels:
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


def _decode_jpeg(frame: Frame, scaling: Scaling | None = None) -> Pixels:
    claimed = _read(frame)
    scale = scaling.scale(claimed.width, claimed.height) if scaling else 1
    grey = scaling is not None and scaling.grey
    data = b"".join(claimed.parts)
    try:
        array = _decode_by_simplejpeg(data, claimed, scale, grey=grey)
        if array is None:
            array = _decode_by_pillow(data, claimed, "JPEG", scale, grey=grey)
    except BROKEN as error:
        raise _damaged("jpeg", error) from error
    array.flags.writeable = False
    if scale == 1:
        return array
    from halimede.inference.geometry import Geometry, placed  # noqa: PLC0415  # whoever scales has a model

    return placed(array, Geometry.of(claimed.width, claimed.height, scale))


def _decode_by_simplejpeg(data: bytes, claimed: ImageHeader, scale: int, *, grey: bool) -> Pixels | None:
    """Return the pixels of a JPEG; None if Pillow has to read it. Raises DecodeError, MemoryError.

    Every remark of libjpeg is an error here, and a picture with an error is never used: parts of it may be unwritten
    memory. Pillow reads files with other remarks than about missing pixels, and those that are not converted here:
    CMYK, and samplings of the colours that TurboJPEG has no name for.
    """
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if (width, height) != (claimed.width, claimed.height):
            raise DecodeError("no readable jpeg: its header contradicts itself")
        form = JPEG_COLOURS[colours]
        if grey and form == "RGB":
            form = "GRAY"
        # the array is made here: simplejpeg would keep a decoder for ever if it could not allocate one
        array = np.empty((-(-height // scale), -(-width // scale), COLOUR_CHANNELS[form]), np.uint8)
        try:
            simplejpeg.decode_jpeg(data, form, min_height=array.shape[0], min_width=array.shape[1], buffer=array)
        except ValueError as error:
            if str(error).startswith(MISSING_PIXELS):
                raise DecodeError("pixels of the jpeg are missing", fix="send the whole picture") from None
            # cameras write some bytes behind the picture: all of it is decoded then
            if not str(error).endswith(BYTES_BEFORE_END):
                return None
    except (KeyError, ValueError):
        return None
    if form == "CMYK":
        return None
    return array[:, :, 0] if form == "GRAY" else array


def _decode_png(frame: Frame, _: Scaling | None = None) -> Pixels:
    claimed = _read(frame)
    try:
        array = _decode_by_pillow(b"".join(claimed.parts), claimed, "PNG")
    except BROKEN as error:
        raise _damaged("png", error) from error
    array.flags.writeable = False
    return array


def _decode_by_pillow(data: bytes, claimed: ImageHeader, form: str, scale: int = 1, *, grey: bool = False) -> Pixels:
    with Image.open(io.BytesIO(data), formats=[form]) as picture:
        if picture.size != (claimed.width, claimed.height):
            raise DecodeError(f"no readable {form.lower()}: its header contradicts itself")
        if scale > 1 or grey:
            picture.draft("L" if grey else None, (max(1, claimed.width // scale), max(1, claimed.height // scale)))
        return _pixels(picture.convert("L") if grey else picture)


def _damaged(name: str, error: Exception) -> DecodeError:
    """Return the error of a damaged picture. A decoder's own text may quote the file."""
    cause = "there is not enough memory for it" if isinstance(error, MemoryError) else "its content is damaged"
    return DecodeError(f"no readable {name}: {cause}")


def _pixels(picture: Image.Image) -> Pixels:
    if picture.mode.startswith("I"):
        array: Pixels = _high_byte(np.asarray(picture))
    elif picture.mode in {"1", "L", "LA"}:
        array = np.asarray(picture if picture.mode == "L" else picture.convert("L"))
    else:
        array = np.asarray(picture if picture.mode == "RGB" else picture.convert("RGB"))
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
register("jpeg", ImageEncoding(_decode_jpeg, _encode_jpeg, _measure_picture))
register("png", ImageEncoding(_decode_png, _encode_png, _measure_picture))
