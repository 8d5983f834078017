"""Pictures that are made to cost more than they look: false sizes, bombs, endless scans."""

from __future__ import annotations

import io
import struct
import zlib

from PIL import Image

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *extra: bytes, pixels: bytes | None = None) -> bytes:
    """Return an RGB PNG of that size, all black unless ``pixels`` (compressed rows) says otherwise."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    rows = zlib.compress(bytes((3 * width + 1) * height)) if pixels is None else pixels
    return PNG_MAGIC + header + b"".join(extra) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def png_that_claims(width: int, height: int) -> bytes:
    """Return a small PNG whose header promises that many pixels."""
    return png(width, height, pixels=zlib.compress(bytes(1000)))


def zeros(mebibytes: int) -> bytes:
    """Return a zlib stream, a thousandth of its content's size: the same compressed MiB again and again."""
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = struct.pack(">HH", (mebibytes << 20) % 65521, 1)  # Adler-32 of so many zeros
    return b"\x78\xda" + block * mebibytes + b"\x03\x00" + checksum


def jpeg(width: int = 8, height: int = 8, **options: object) -> bytes:
    out = io.BytesIO()
    Image.new("L", (width, height)).save(out, format="JPEG", **options)
    return out.getvalue()


def jpeg_that_claims(width: int, height: int) -> bytes:
    """Return a small JPEG whose header promises that many pixels."""
    whole = bytearray(jpeg())
    at = whole.index(b"\xff\xc0") + 5
    whole[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(whole)


def jpeg_with_scans(side: int, scans: int) -> bytes:
    """Return a progressive JPEG that repeats its last scan that often: each is a pass over all pixels."""
    whole = jpeg(side, side, progressive=True)
    last = max(whole.rindex(b"\xff\xda"), 0)
    table = whole.rindex(b"\xff\xc4", 0, last)
    if whole.rindex(b"\xff\xda", 0, last) < table:
        last = table  # with the table that it reads
    return whole[:-2] + whole[last:-2] * scans + b"\xff\xd9"


def jpeg_with_segments(count: int, segment: bytes = b"\xff\xe1\x00\x09Exif\0\0x") -> bytes:
    """Return a JPEG with that many segments of an application before its picture."""
    whole = jpeg()
    return whole[:2] + segment * count + whole[2:]
