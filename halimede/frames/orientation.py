"""Turns pictures of files upright: a frame on the bus has no orientation apart from its pixels.

Cameras and phones store a picture as the sensor has it, with an EXIF orientation. Code that makes a frame of a file
turns the picture here first; boxes and previews are then in the pixels that people see. A picture without an
orientation, or with orientation 1, is returned unchanged, byte by byte.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
from PIL import Image, JpegImagePlugin

from halimede.errors import DecodeError
from halimede.frames.encodings import JPEG_QUALITY, Pixels, decode, encode_image
from halimede.image_headers import READERS, UPRIGHT, ImageHeader
from halimede.messages import Frame
from halimede.picture_files import Encoding, encoding_of

#: the function that turns pixels upright, by orientation as EXIF 2.3 defines it
UPRIGHT_OPERATIONS: dict[int, Callable[[Pixels], Pixels]] = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: pixels.swapaxes(0, 1)[:, ::-1],
    7: lambda pixels: pixels.swapaxes(0, 1)[::-1, ::-1],
    8: lambda pixels: pixels.swapaxes(0, 1)[::-1],
}
#: orientations that exchange width and height
SIDEWAYS = frozenset({5, 6, 7, 8})
#: modes of Pillow whose quantization tables can be used again: colours of other modes are converted
SAME_COLOURS = frozenset({"L", "RGB"})
#: Pillow's numbers for how colours are stored: at full size, at half the width, or otherwise. A turned picture of half
#: the width would need half the height, which Pillow cannot write
NO_SAMPLING, HALF_WIDTH, OTHER_SAMPLING = 0, 1, -1


def upright(data: bytes) -> bytes:
    """Return the bytes of a JPEG or PNG file, turned upright by its EXIF orientation, in the same encoding.

    A file that is upright is returned unchanged, and so is a file that cannot be read: its decoder names the cause.
    """
    encoding = encoding_of(data)
    if encoding is None:
        return data
    try:
        header = READERS[encoding](memoryview(data))
        return data if header.orientation == UPRIGHT else _upright_file(data, encoding, header)
    except DecodeError:
        return data


def _upright_file(data: bytes, encoding: Encoding, header: ImageHeader) -> bytes:
    """Return a picture file with pixels turned by its orientation. Raises DecodeError."""
    stored = decode(Frame(id=b"", encoding=encoding, data=memoryview(data)))
    pixels = np.ascontiguousarray(UPRIGHT_OPERATIONS[header.orientation](stored))
    if encoding == "png":
        return encode_image(pixels, encoding)
    out = io.BytesIO()
    with Image.open(io.BytesIO(b"".join(header.parts)), formats=["JPEG"]) as picture:
        Image.fromarray(pixels).save(out, format="JPEG", **_settings(picture, header.orientation))
    return out.getvalue()


def _settings(picture: Image.Image, orientation: int) -> dict[str, object]:
    """Return Pillow's options for the turned pixels of a JPEG: its own tables, so that the turn loses little."""
    tables: dict[int, list[int]] = getattr(picture, "quantization", {})
    if picture.mode not in SAME_COLOURS or not tables:
        return {"quality": JPEG_QUALITY}
    sampling = JpegImagePlugin.get_sampling(picture)
    if sampling == OTHER_SAMPLING or (sampling == HALF_WIDTH and orientation in SIDEWAYS):
        sampling = NO_SAMPLING
    if orientation in SIDEWAYS:  # the transposed table, because horizontal frequencies become vertical ones
        tables = {number: [table[i % 8 * 8 + i // 8] for i in range(64)] for number, table in tables.items()}
    return {"qtables": tables, "subsampling": sampling}
