"""Decodes and encodes the pixels of frames: ``raw`` arrays, JPEG and PNG. A registry has each encoding by its name.

Every limit is checked before memory is allocated: the size of a picture is read from its header, that of a raw array
from its shape. Unknown element types, pictures over 64 megapixels and truncated files are refused. Pixels are used as
stored: code that makes a frame of a file turns the picture upright first (``halimede.frames.orientation``).

libjpeg-turbo decodes JPEG files, whole or at a smaller scale: through simplejpeg, or through Pillow if simplejpeg
cannot read them. Pillow reads PNG.
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

#: the array of a sample: of a picture ``(height, width[, 3]) uint8``, of raw data any shape and element type
Pixels = NDArray[Any]

#: the default quality of a JPEG; qualities are 1 to 95
JPEG_QUALITY = 90

#: bits of a pixel that cameras measure and store as 16-bit grey
GREY_DEPTHS = (8, 10, 12, 14, 16)

#: the colours that simplejpeg decodes to, by those of the file, and their number of channels; Pillow converts CMYK
JPEG_COLOURS = {"Gray": "GRAY", "RGB": "RGB", "YCbCr": "RGB", "CMYK": "CMYK", "YCCK": "CMYK"}
COLOUR_CHANNELS = {"GRAY": 1, "RGB": 3, "CMYK": 4}
#: libjpeg's remark about bytes between the picture and its end mark
BYTES_BEFORE_END = "extraneous bytes before marker 0xd9"
#: libjpeg's remarks about pixels that the file does not have, such as rows that only the header claims: libjpeg fills
#: them in grey
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

#: errors of Pillow's parsers on hostile files; its own errors are OSError
PILLOW_ERRORS = (
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
    """Decides how small a JPEG may be decoded. ``halimede.inference.decoding`` implements it from a model's input."""

    @property
    def grey(self) -> bool:
        """Whether only the luma is needed, so that pixels are ``(height, width)``."""

    def scale(self, width: int, height: int) -> int:
        """Return the number by which the sides of a picture of this size are divided: 1, 2, 4 or 8."""


@dataclass(frozen=True, slots=True)
class ImageEncoding:
    """The functions of a pixel encoding.

    Attributes:
        decode: returns the pixels of a frame, read-only, perhaps at a smaller scale; raises DecodeError.
        encode: returns the bytes of pixels at a quality of 1 to 95 (0: the default), which only JPEG uses; raises
            InvalidFieldError.
        measure: returns the bytes of a frame's pixels without decoding it; raises DecodeError.
        cheap: decoding copies nothing, so it may run on the event loop.

    """

    decode: Callable[[Frame, Scaling | None], Pixels]
    encode: Callable[[Pixels, int], bytes]
    measure: Callable[[Frame], int]
    cheap: bool = False


_registry: dict[str, ImageEncoding] = {}


def register(name: str, encoding: ImageEncoding) -> None:
    """Register an encoding. Raises ValueError if the name is taken."""
    if name in _registry:
        raise ValueError(f"encoding {name} is registered twice")
    _registry[name] = encoding


def find(name: str) -> ImageEncoding:
    """Return the encoding of a name; raise DecodeError for an unknown name."""
    encoding = _registry.get(name)
    if encoding is None:
        raise DecodeError(f"unknown encoding; known are {', '.join(sorted(_registry))}")
    return encoding


def measure(frame: Frame) -> int:
    """Return the bytes that the decoded pixels of a frame take. Raises DecodeError for an invalid or too large one."""
    return find(frame.encoding).measure(frame)


def picture_size(frame: Frame) -> list[int] | None:
    """Return width and height of a frame's picture in pixels, read from its header; None: it is no readable picture."""
    if frame.encoding == "raw":
        return [frame.shape[1], frame.shape[0]] if len(frame.shape) > 1 else None
    try:
        header = _read(frame)
    except DecodeError:
        return None
    return [header.width, header.height]


def decode(frame: Frame, scaling: Scaling | None = None) -> Pixels:
    """Return the pixels of a frame; read-only. Raises DecodeError.

    jpeg and png: ``(height, width, 3) uint8``, or ``(height, width) uint8`` for grey pictures. raw: the frame's own
    dtype and shape, as a view of the received buffer. With ``scaling`` a jpeg may be decoded at a smaller scale; the
    array then carries the mapping of its pixels to those of the frame (``halimede.inference.geometry``).
    """
    return (_registry.get(frame.encoding) or find(frame.encoding)).decode(frame, scaling)


def encode_image(image: Pixels, encoding: str = "png", quality: int = 0) -> bytes:
    """Return pixels encoded: ``(height, width[, 3]) uint8`` as jpeg or png, any array of a known dtype as raw.

    ``quality`` (1 to 95) applies only to jpeg; 0: the default. Raises InvalidFieldError for an unknown encoding, and
    for an array that the encoding does not support.
    """
    if encoding not in _registry:
        raise InvalidFieldError("encoding", encoding, f"use one of {', '.join(sorted(_registry))}")
    return _registry[encoding].encode(image, quality)


def is_picture(pixels: Pixels) -> bool:
    """Whether jpeg and png support the pixels: ``(height, width[, 3]) uint8``, not empty."""
    return pixels.dtype == np.uint8 and pixels.size > 0 and (pixels.ndim == 2 or pixels.shape[2:] == (3,))


# --- raw ----------------------------------------------------------------------------------------------------------


def _measure_raw(frame: Frame) -> int:
    """Return the bytes of a raw frame. Raises DecodeError if dtype, shape and data do not fit together."""
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
    """Return a raw frame as a read-only view of its data. Raises DecodeError."""
    try:
        array = np.frombuffer(frame.data, dtype=DTYPES[frame.dtype]).reshape(frame.shape or (-1, 0))
    except (KeyError, ValueError):
        _measure_raw(frame)  # raises with the reason
        raise
    array.flags.writeable = False
    return array


#: name of each element type: needed for every frame, and numpy builds a name again each time
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def raw_view(image: Pixels) -> tuple[str, memoryview] | None:
    """Return the element type and the bytes of an array without a copy; None if the array must be copied first.

    An array is copied if it is writable (data in flight must not change), not contiguous, empty, or of another type.
    """
    name = _NAMES.get(image.dtype)
    if name is None or image.flags.writeable or not image.flags.c_contiguous or not image.size:
        return None
    return name, image.data.cast("B")


def _encode_raw(image: Pixels, _: int = 0) -> bytes:
    """Return the elements of an array in C order, little endian. Raises InvalidFieldError for an unknown type."""
    dtype = DTYPES.get(image.dtype.name)
    if dtype is None:
        raise InvalidFieldError("dtype", image.dtype.name, f"use one of {', '.join(DTYPES)}")
    return np.ascontiguousarray(image, dtype=dtype).tobytes()


# --- pictures -----------------------------------------------------------------------------------------------------


def _read(frame: Frame) -> ImageHeader:
    """Return the header of a picture, whose size is within the limits. Raises DecodeError."""
    picture = READERS[frame.encoding](frame.data.cast("B"))
    picture.check()
    return picture


def _measure_picture(frame: Frame) -> int:
    """Return the bytes of the pixels of a picture, from its header. Raises DecodeError."""
    return _read(frame).check()


def _decode_jpeg(frame: Frame, scaling: Scaling | None = None) -> Pixels:
    """Return the pixels of a JPEG, read-only; with ``scaling`` perhaps smaller or grey. Raises DecodeError."""
    claimed = _read(frame)
    scale = scaling.scale(claimed.width, claimed.height) if scaling else 1
    grey = scaling is not None and scaling.grey
    data = b"".join(claimed.parts)
    try:
        array = _decode_by_simplejpeg(data, claimed, scale, grey=grey)
        if array is None:
            array = _decode_by_pillow(data, claimed, "JPEG", scale, grey=grey)
    except PILLOW_ERRORS as error:
        raise _damage_error("jpeg", error) from error
    array.flags.writeable = False
    if scale == 1:
        return array
    from halimede.inference.geometry import Geometry, with_geometry  # noqa: PLC0415  # only a program with a model scales

    return with_geometry(array, Geometry.of(claimed.width, claimed.height, scale))


def _decode_by_simplejpeg(data: bytes, claimed: ImageHeader, scale: int, *, grey: bool) -> Pixels | None:
    """Return the pixels of a JPEG; None if Pillow has to read it. Raises DecodeError and MemoryError.

    simplejpeg turns every remark of libjpeg into an error, and the picture of an error is never used: parts of it may
    be unwritten memory. If the remark is about missing pixels, the file is refused. Pillow reads files with other
    remarks, CMYK, and samplings of the colours that TurboJPEG has no name for.
    """
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if (width, height) != (claimed.width, claimed.height):
            raise DecodeError("no readable jpeg: its header contradicts itself")
        form = JPEG_COLOURS[colours]
        if grey and form == "RGB":
            form = "GRAY"
        # the array is made here: simplejpeg would leak a decoder if it could not allocate one
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
    """Return the pixels of a PNG, read-only and whole. Raises DecodeError."""
    claimed = _read(frame)
    try:
        array = _decode_by_pillow(b"".join(claimed.parts), claimed, "PNG")
    except PILLOW_ERRORS as error:
        raise _damage_error("png", error) from error
    array.flags.writeable = False
    return array


def _decode_by_pillow(data: bytes, claimed: ImageHeader, form: str, scale: int = 1, *, grey: bool = False) -> Pixels:
    """Return the pixels of a picture file of Pillow's format ``form``. Raises PILLOW_ERRORS and DecodeError."""
    with Image.open(io.BytesIO(data), formats=[form]) as picture:
        if picture.size != (claimed.width, claimed.height):
            raise DecodeError(f"no readable {form.lower()}: its header contradicts itself")
        if scale > 1 or grey:
            picture.draft("L" if grey else None, (max(1, claimed.width // scale), max(1, claimed.height // scale)))
        return _pixels(picture.convert("L") if grey else picture)


def _damage_error(name: str, error: Exception) -> DecodeError:
    """Return the error of a damaged picture. A decoder's own text may quote the file."""
    cause = "there is not enough memory for it" if isinstance(error, MemoryError) else "its content is damaged"
    return DecodeError(f"no readable {name}: {cause}")


def _pixels(picture: Image.Image) -> Pixels:
    """Return the pixels of a picture of any mode as ``uint8``: grey as ``(height, width)``, else three colours."""
    if picture.mode.startswith("I"):
        return _high_byte(np.asarray(picture))
    mode = "L" if picture.mode in {"1", "L", "LA"} else "RGB"
    return np.asarray(picture if picture.mode == mode else picture.convert(mode))


def _high_byte(grey: Pixels) -> Pixels:
    """Return 16-bit grey as ``uint8``: the 8 highest bits of the smallest usual depth that holds the maximum.

    Cameras of 10, 12 and 14 bits write 16-bit files, whose high byte alone would be black.
    """
    brightest = int(grey.max(initial=0))
    depth = next(bits for bits in GREY_DEPTHS if brightest < 1 << bits)
    return (grey >> (depth - 8)).astype(np.uint8)


def _encode_jpeg(image: Pixels, quality: int) -> bytes:
    """Return pixels as a JPEG; ``quality`` 0: JPEG_QUALITY. Raises InvalidFieldError."""
    return _encode_picture(image, "JPEG", quality=quality or JPEG_QUALITY)


def _encode_png(image: Pixels, _: int) -> bytes:
    """Return pixels as a PNG. Raises InvalidFieldError."""
    return _encode_picture(image, "PNG")


def _encode_picture(image: Pixels, form: str, **options: int) -> bytes:
    """Return a picture file of Pillow's format ``form``. Raises InvalidFieldError for an array that is no picture."""
    if not is_picture(image):
        raise InvalidFieldError("image", f"{image.dtype} {image.shape}", "give uint8, height x width or x 3")
    out = io.BytesIO()
    Image.fromarray(image).save(out, format=form, **options)
    return out.getvalue()


register("raw", ImageEncoding(_decode_raw, _encode_raw, _measure_raw, cheap=True))
register("jpeg", ImageEncoding(_decode_jpeg, _encode_jpeg, _measure_picture))
register("png", ImageEncoding(_decode_png, _encode_png, _measure_picture))
