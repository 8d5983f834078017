"""Reads headers of picture files: claimed size and essential parts, without decoding.

Only those parts reach a decoder: a picture's comments, profiles, thumbnails and animations may inflate to a thousand
times their size, and nothing here reads them. The rest is bounded by the size that the header claims, which callers
check first, and by the passes that a decoder must make over it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from halimede.errors import DecodeError
from halimede.picture_files import JPEG_MAGIC, PNG_MAGIC

MAX_SIDE = 16_384
MAX_PIXELS = 64 * 1024 * 1024
#: pixels times scans: a progressive JPEG repeats its picture in scans of a few bytes each, usually about ten
MAX_SCANNED = 1024 * 1024 * 1024

#: most parts: more than any encoder writes; each takes time to read
MAX_CHUNKS, MAX_SEGMENTS = 65_536, 4096
#: most bytes of tables before a JPEG's first scan; real ones have less than 4 KiB
MAX_TABLES = 64 * 1024

#: the chunks that contain pixels; IHDR comes first
PNG_PARTS = {b"PLTE", b"IDAT", b"IEND"}
#: channels after decoding, by a PNG's colour type; alpha is dropped
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 1, 6: 3}
_chunk = struct.Struct(">I4s")
_size = struct.Struct(">II")

#: JPEG markers
SOS, DHT, JPG, DAC = 0xDA, 0xC4, 0xC8, 0xCC
FRAMES = set(range(0xC0, 0xD0)) - {DHT, JPG, DAC}
#: bare markers without a length: restarts, start and end of image, and TEM
BARE = {*range(0xD0, 0xDA), 0x01}
#: comments and application segments, except for the two that define the colours
REMARKS = {*range(0xE0, 0xF0), 0xFE}
COLOURS = {0xE0: b"JFIF", 0xEE: b"Adobe"}


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """A picture file: the size that its header claims, passes over its pixels, and its essential parts in order."""

    width: int
    height: int
    channels: int
    scans: int
    parts: Sequence[bytes | memoryview]

    def check(self) -> int:
        """Return the bytes of its pixels; raise DecodeError if these, or the work, are too many."""
        width, height = self.width, self.height
        if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
            raise DecodeError(f"{width} x {height} pixels: a side has 1 to {MAX_SIDE}")
        if width * height > MAX_PIXELS:
            raise DecodeError(f"{width} x {height} pixels are more than {MAX_PIXELS}")
        if width * height * self.scans > MAX_SCANNED:
            raise DecodeError(f"{self.scans} scans of {width} x {height} pixels are too much work")
        return width * height * self.channels


def read_png(data: memoryview) -> ImageHeader:
    """Read a PNG. Raises DecodeError if its outer structure is invalid."""
    if data[:8] != PNG_MAGIC or len(data) < 33 or _chunk.unpack_from(data, 8) != (13, b"IHDR"):
        raise DecodeError("no readable png: it has no header")
    width, height = _size.unpack_from(data, 16)
    channels = PNG_CHANNELS.get(data[25], 3)
    parts, at = [data[:33]], 33
    for _ in range(MAX_CHUNKS):
        if at + 12 > len(data):
            raise DecodeError("no readable png: it ends early")
        length, kind = _chunk.unpack_from(data, at)
        if kind in PNG_PARTS:
            parts.append(data[at : at + 12 + length])
        at += 12 + length
        if kind == b"IEND":
            return ImageHeader(width, height, channels, 1, parts)
    raise DecodeError(f"a png of more than {MAX_CHUNKS} chunks")


def read_jpeg(data: memoryview) -> ImageHeader:
    """Read a JPEG up to its first scan, and count its scans. Raises DecodeError for an invalid structure."""
    if data[:3] != JPEG_MAGIC:
        raise DecodeError("no readable jpeg: it has no header")
    size: tuple[int, int, int] | None = None
    parts, tables, at = [data[:2]], 0, 2
    for _ in range(MAX_SEGMENTS):
        while at < len(data) and data[at] == 0xFF and data[at + 1 : at + 2].tobytes() == b"\xff":
            at += 1  # fill bytes
        if at + 4 > len(data) or data[at] != 0xFF:
            break
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4])
        if marker in BARE or length < 2:
            break
        if marker == SOS:
            if size is None:
                break
            scans = bytes(data[at:])
            return ImageHeader(*size, scans.count(b"\xff\xda"), [*parts, scans])
        segment = data[at : at + 2 + length]
        if marker in FRAMES:
            if size or length < 8:
                break
            height, width = struct.unpack_from(">HH", segment.tobytes().ljust(10, b"\0"), 5)
            size = (width, height, 1 if segment[9:10].tobytes() == b"\1" else 3)
        if marker not in REMARKS or segment[4:9].tobytes().startswith(COLOURS.get(marker, b"\0none")):
            parts.append(segment)
            tables += len(segment)
            if tables > MAX_TABLES:
                raise DecodeError(f"a jpeg of more than {MAX_TABLES} bytes of tables")
        at += 2 + length
    else:
        raise DecodeError(f"a jpeg of more than {MAX_SEGMENTS} segments")
    raise DecodeError("no readable jpeg: its header is broken, or ends early")


READERS: dict[str, Callable[[memoryview], ImageHeader]] = {"png": read_png, "jpeg": read_jpeg}
