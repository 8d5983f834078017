"""Turns pictures of files upright: a frame on the bus has no orientation beside its pixels.

Cameras and phones store a picture as the sensor has it, and an EXIF mark says how to turn it. Who makes a frame of a
file turns it here first; boxes and previews are then in the pixels that people see. A picture without a mark, or with
the mark 1, is returned unchanged, byte by byte.
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

#: how the pixels of each orientation become upright, as EXIF 2.3 defines them
TURNS: dict[int, Callable[[Pixels], Pixels]] = {
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
#: modes of Pillow whose tables can be used again: of the others the colours are converted
SAME_COLOURS = frozenset({"L", "RGB"})
#: numbers that Pillow has for the sampling of colours: of half their width, which turned would be half their height
NO_SAMPLING, HALF_WIDTH, OTHER_SAMPLING = 0, 1, -1


def upright(data: bytes) -> bytes:
    """Return a JPEG or PNG file whose pixels are turned as its EXIF orientation says, in the same encoding.

    A file that is upright is returned unchanged, and so is one that cannot be read: who decodes it names the cause.
    """
    encoding = encoding_of(data)
    if encoding is None:
        return data
    try:
        header = READERS[encoding](memoryview(data))
        return data if header.orientation == UPRIGHT else _turned(data, encoding, header)
    except DecodeError:
        return data


def _turned(data: bytes, encoding: Encoding, header: ImageHeader) -> bytes:
    stored = decode(Frame(id=b"", encoding=encoding, data=memoryview(data)))
    pixels = np.ascontiguousarray(TURNS[header.orientation](stored))
    if encoding == "png":
        return encode_image(pixels, encoding)
    out = io.BytesIO()
    with Image.open(io.BytesIO(b"".join(header.parts)), formats=["JPEG"]) as picture:
        Image.fromarray(pixels).save(out, format="JPEG", **_settings(picture, header.orientation))
    return out.getvalue()


def _settings(picture: Image.Image, orientation: int) -> dict[str, object]:
    """Return the settings with which a JPEG was written, for its turned pixels: so the turn costs next to nothing."""
    tables: dict[int, list[int]] = getattr(picture, "quantization", {})
    if picture.mode not in SAME_COLOURS or not tables:
        return {"quality": JPEG_QUALITY}
    sampling = JpegImagePlugin.get_sampling(picture)
    if sampling == OTHER_SAMPLING or (sampling == HALF_WIDTH and orientation in SIDEWAYS):
        sampling = NO_SAMPLING
    if orientation in SIDEWAYS:
        tables = {number: [table[i % 8 * 8 + i // 8] for i in range(64)] for number, table in tables.items()}
    return {"qtables": tables, "subsampling": sampling}
