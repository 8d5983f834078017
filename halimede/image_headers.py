"""Reads headers of JPEG and PNG files: claimed size, orientation and essential parts, without decoding.

Essential parts are the bytes that a decoder needs, and only they reach one: comments, profiles, thumbnails and
animations may inflate to a thousand times their size. ``ImageHeader.check`` bounds the work of decoding these parts.
The module imports neither numpy nor Pillow, so that LC and ``publish`` can use it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from halimede.errors import DecodeError
from halimede.picture_files import JPEG_MAGIC, PNG_MAGIC, encoding_of

#: most pixels of a side, and of a picture
MAX_SIDE = 16_384
MAX_PIXELS = 64 * 1024 * 1024
#: most pixels times scans: a progressive JPEG repeats its picture in scans of a few bytes each, usually about ten
MAX_SCANNED = 1024 * 1024 * 1024

#: most chunks of a PNG and segments of a JPEG: more than any encoder writes; each takes time to read
MAX_CHUNKS, MAX_SEGMENTS = 65_536, 4096
#: most bytes of tables before a JPEG's first scan; real ones have less than 4 KiB
MAX_TABLES = 64 * 1024

#: the essential chunks of a PNG after IHDR, and the chunk that has its EXIF data
PNG_PARTS = {b"PLTE", b"IDAT", b"IEND"}
PNG_EXIF = b"eXIf"
#: channels after decoding, by a PNG's colour type; alpha is dropped
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 1, 6: 3}
_chunk = struct.Struct(">I4s")
_size = struct.Struct(">II")

#: JPEG markers: start of a scan, end of the image, Huffman tables, reserved, arithmetic coding, EXIF
SOS, EOI, DHT, JPG, DAC, APP1 = 0xDA, 0xD9, 0xC4, 0xC8, 0xCC, 0xE1
#: markers of the header that has the picture's size
FRAMES = set(range(0xC0, 0xD0)) - {DHT, JPG, DAC}
#: frames that are decoded: baseline, extended and progressive, the last two also with arithmetic coding. No others
#: reach a decoder: libjpeg-turbo 3.1 writes a lossless picture whole, beyond the end of an array for a smaller scale
DECODABLE = {0xC0, 0xC1, 0xC2, 0xC9, 0xCA}
#: bits of a sample that are decoded
SAMPLE_BITS = 8
#: frames with Huffman codes, which take at least a bit for each block of 8 x 8 samples
HUFFMAN = {0xC0, 0xC1, 0xC2}
#: bare markers without a length: restarts, start and end of image, and TEM; decoders skip a stuffed byte, and would
#: read another picture in what looks like its segment
BARE = {*range(0xD0, 0xDA), 0x01, 0x00}
#: comments and application segments: a decoder gets only those of ``COLOURS``
REMARKS = {*range(0xE0, 0xF0), 0xFE}
#: segments that may stand between two scans, and contain any bytes: tables of codes, of the quantization and of
#: restarts, the number of lines, and remarks
BETWEEN_SCANS = {SOS, DHT, DAC, 0xDB, 0xDC, 0xDD, *REMARKS}
#: the application segments that define the colours, and how they begin
COLOURS = {0xE0: b"JFIF", 0xEE: b"Adobe"}
#: the last bytes of a JPEG
END = bytes([0xFF, EOI])
#: a marker between scans; stuffed, fill and restart bytes of a scan are none
_marker = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")

#: how an EXIF segment of a JPEG begins, before its TIFF file
EXIF_BEGIN = b"Exif\0\0"
#: the tag of the orientation, the types of whole numbers that writers use for it, and the orientation without a turn
ORIENTATION, WHOLE_NUMBERS, UPRIGHT = 0x0112, {1: "B", 3: "H", 4: "I"}, 1


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What is known of a picture file without decoding it.

    Attributes:
        width, height: the pixels that the header claims, before any turn by EXIF.
        channels: 1 for grey, 3 for colours, after decoding.
        scans: passes that a decoder makes over all pixels; 1 for a PNG.
        parts: the bytes that a decoder needs, in order; joined, they are a valid file.
        exif: the file's EXIF data (a TIFF file), which no decoder gets; empty: none.

    """

    width: int
    height: int
    channels: int
    scans: int = 1
    parts: Sequence[bytes | memoryview] = ()
    exif: bytes | memoryview = b""

    @property
    def orientation(self) -> int:
        """How to turn the pixels, as EXIF counts: 1 (upright) to 8. It is 1 without readable EXIF data."""
        try:
            return _orientation(bytes(self.exif).removeprefix(EXIF_BEGIN))
        except struct.error:
            return UPRIGHT

    def check(self) -> int:
        """Return the number of decoded bytes; raise DecodeError if sides, pixels or scans are over the limits."""
        width, height = self.width, self.height
        if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
            raise DecodeError(f"{width} x {height} pixels: a side has 1 to {MAX_SIDE}")
        if width * height > MAX_PIXELS:
            raise DecodeError(f"{width} x {height} pixels are more than {MAX_PIXELS}")
        if width * height * self.scans > MAX_SCANNED:
            raise DecodeError(f"{self.scans} scans of {width} x {height} pixels are too much work")
        return width * height * self.channels


def read_png(data: memoryview) -> ImageHeader:
    """Return the header of a PNG file. Raises DecodeError if its chunks are invalid, or end early."""
    if data[:8] != PNG_MAGIC or len(data) < 33 or _chunk.unpack_from(data, 8) != (13, b"IHDR"):
        raise DecodeError("no readable png: it has no header")
    width, height = _size.unpack_from(data, 16)
    channels = PNG_CHANNELS.get(data[25], 3)
    parts, at, exif = [data[:33]], 33, data[:0]
    for _ in range(MAX_CHUNKS):
        if at + 12 > len(data):
            raise DecodeError("no readable png: it ends early")
        length, kind = _chunk.unpack_from(data, at)
        if kind in PNG_PARTS:
            parts.append(data[at : at + 12 + length])
        elif kind == PNG_EXIF:
            exif = exif or data[at + 8 : at + 8 + length]
        at += 12 + length
        if kind == b"IEND":
            return ImageHeader(width, height, channels, 1, parts, exif)
    raise DecodeError(f"a png of more than {MAX_CHUNKS} chunks")


def read_jpeg(data: memoryview) -> ImageHeader:
    """Return the header of a JPEG file, and read its scans up to its end; any bytes may follow.

    Raises DecodeError for an invalid structure, a kind that is not decoded, and a picture that is cut off.
    """
    if data[:3] != JPEG_MAGIC:
        raise DecodeError("no readable jpeg: it has no header")
    size: tuple[int, int, int] | None = None
    kind = 0
    parts, tables, exif = [data[:2]], 0, data[:0]
    for at, marker, segment in _segments(data):
        if marker == SOS:
            if size is None:
                break
            end, number = _read_scans(data[at:])
            if not end:
                raise DecodeError(f"it is cut off after {len(data)} bytes", fix="send the whole picture")
            if kind in HUFFMAN and end < _least_bytes(*size[:2]):
                raise DecodeError(f"a jpeg of {size[0]} x {size[1]} pixels has more than {end} bytes")
            return ImageHeader(*size, number, [*parts, data[at : at + end]], exif)
        if marker in FRAMES:
            if size or len(segment) < 10:
                break
            if marker not in DECODABLE or segment[4] != SAMPLE_BITS:
                raise DecodeError(
                    f"a jpeg of the kind SOF{marker - 0xC0} with {segment[4]} bits a sample",
                    fix=f"send a baseline or progressive one with {SAMPLE_BITS} bits",
                )
            kind = marker
            height, width = struct.unpack_from(">HH", segment, 5)
            size = (width, height, 1 if segment[9] == 1 else 3)
        if marker not in REMARKS or segment[4:9].tobytes().startswith(COLOURS.get(marker, b"\0none")):
            parts.append(segment)
            tables += len(segment)
            if tables > MAX_TABLES:
                raise DecodeError(f"a jpeg of more than {MAX_TABLES} bytes of tables")
        elif marker == APP1 and not exif and segment[4:10] == EXIF_BEGIN:
            exif = segment[10:]
    raise DecodeError("no readable jpeg: its header is broken, or ends early")


def _least_bytes(width: int, height: int) -> int:
    """Return the least bytes of scans for a Huffman-coded picture of this size.

    A file with fewer bytes would cost memory for pixels that it does not have. All colours together have at least half
    as many blocks of 8 x 8 samples as the picture, in each sampling.
    """
    return -(-width // 8) * -(-height // 8) // 16


def _segments(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Yield position, marker and bytes of each segment; end at bytes that are no segment. Stop at the first scan.

    The bytes include the marker and the length. Raises DecodeError for more than MAX_SEGMENTS segments.
    """
    at = 2
    for _ in range(MAX_SEGMENTS):
        while at < len(data) and data[at] == 0xFF and data[at + 1 : at + 2].tobytes() == b"\xff":
            at += 1  # fill bytes
        if at + 4 > len(data) or data[at] != 0xFF:
            return
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4])
        if marker in BARE or length < 2:
            return
        yield at, marker, data[at : at + 2 + length]
        at += 2 + length
    raise DecodeError(f"a jpeg of more than {MAX_SEGMENTS} segments")


def _read_scans(scans: memoryview) -> tuple[int, int]:
    """Return the number of bytes of a picture's scans (0: the picture is cut off), and the number of scans.

    ``scans`` begins with the first scan. With too many segments, the result is all bytes and MAX_SEGMENTS scans. One
    search finds all markers: two searches, for an end and for scans, take several times as long.
    """
    at = number = 0
    for _ in range(MAX_SEGMENTS):
        match = _marker.search(scans, at)
        if match is None:
            break
        at, marker = match.end(), scans[match.end() - 1]
        if marker == EOI:
            return at, number
        number += marker == SOS
        if marker in BETWEEN_SCANS:
            at += int.from_bytes(scans[at : at + 2])
    else:
        return len(scans), MAX_SEGMENTS
    # a spoiled byte may look like a table that is longer than the picture
    return (len(scans), number) if scans[-len(END) :] == END else (0, number)


def end_of_jpeg(data: bytes) -> int:
    """Return the position behind the JPEG with which ``data`` begins; 0 if it is not complete.

    Raises DecodeError for too many segments.
    """
    for at, marker, _ in _segments(memoryview(data)):
        if marker == SOS:
            end, _ = _read_scans(memoryview(data)[at:])
            return at + end if end else 0
    return 0


def _orientation(tiff: bytes) -> int:
    """Return the orientation in EXIF data. Raises struct.error if it ends early."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return UPRIGHT
    (directory,) = struct.unpack_from(f"{order}I", tiff, 4)
    (entries,) = struct.unpack_from(f"{order}H", tiff, directory)
    for at in range(directory + 2, directory + 2 + 12 * entries, 12):
        tag, kind = struct.unpack_from(f"{order}HH", tiff, at)
        if tag == ORIENTATION and kind in WHOLE_NUMBERS:
            (value,) = struct.unpack_from(f"{order}{WHOLE_NUMBERS[kind]}", tiff, at + 8)
            return value if 1 <= value <= 8 else UPRIGHT
    return UPRIGHT


#: the reader of a file's header, by encoding; it raises DecodeError
READERS: dict[str, Callable[[memoryview], ImageHeader]] = {"png": read_png, "jpeg": read_jpeg}


def orientation_of(data: bytes) -> int:
    """Return the EXIF orientation of a picture file; 1 (upright) for a file that cannot be read."""
    encoding = encoding_of(data)
    try:
        return READERS[encoding](memoryview(data)).orientation if encoding else UPRIGHT
    except DecodeError:
        return UPRIGHT
