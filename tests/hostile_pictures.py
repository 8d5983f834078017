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


def jpeg_that_claims(width: int, height: int, **options: object) -> bytes:
    """Return a small JPEG whose header promises that many pixels."""
    whole = bytearray(jpeg(**options))  # type: ignore[arg-type]
    at = whole.index(b"\xff\xc2" if options.get("progressive") else b"\xff\xc0") + 5
    whole[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(whole)


def jpeg_with_rows(data: bytes, rows: int) -> bytes:
    """Return a JPEG whose header claims that many rows, whatever its scans have."""
    at = 2
    while data[at + 1] not in {0xC0, 0xC1, 0xC2, 0xC9, 0xCA}:
        at += 1 if data[at + 1] == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4])
    return data[: at + 5] + struct.pack(">H", rows) + data[at + 7 :]


def jpeg_of_kind(kind: int, bits: int = 8) -> bytes:
    """Return a small JPEG whose header claims that kind of coding (0xC0: baseline) and those bits a sample."""
    whole = bytearray(jpeg())
    at = whole.index(b"\xff\xc0") + 1
    whole[at], whole[at + 3] = kind, bits
    return bytes(whole)


def segment(marker: int, data: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(data) + 2).to_bytes(2) + data


def lossless_jpeg(width: int, height: int) -> bytes:
    """Return a lossless JPEG of that size, all of one grey: each of its samples is the one before."""
    ids = b"RGB"
    size = struct.pack(">BHHB", 8, height, width, 3)
    frame = size + b"".join(bytes([name, 0x11, 0]) for name in ids)
    codes = b"\0" + b"\1" + bytes(15) + b"\0"  # one code of one bit: no difference
    scan = b"\3" + b"".join(bytes([name, 0]) for name in ids) + b"\1\0\0"
    adobe = b"Adobe\0\x64\0\0\0\0\0"
    header = segment(0xEE, adobe) + segment(0xC3, frame) + segment(0xC4, codes) + segment(0xDA, scan)
    return b"\xff\xd8" + header + bytes(-(-3 * width * height // 8)) + b"\xff\xd9"


def jpeg_with_two_sizes(width: int, height: int) -> bytes:
    """Return a JPEG of 8 x 8 pixels with a second header, of that size, behind its own."""
    whole = jpeg()
    at = whole.index(b"\xff\xc0")
    end = at + 2 + int.from_bytes(whole[at + 2 : at + 4])
    return whole[:end] + whole[at : at + 5] + struct.pack(">HH", height, width) + whole[at + 9 : end] + whole[end:]


def jpeg_without_a_height() -> bytes:
    """Return a JPEG of 8 x 8 pixels that names its height behind the scan (DNL), which few decoders read."""
    return jpeg_that_claims(8, 0)[:-2] + segment(0xDC, b"\0\x08") + b"\xff\xd9"


def jpeg_that_hides(hidden: bytes, shown: bytes) -> bytes:
    """Return a JPEG with another one in what looks like its first segment: decoders skip a stuffed byte only."""
    return shown[:2] + segment(0x00, hidden[2:]) + shown[2:]


def jpeg_with_scans(side: int, scans: int) -> bytes:
    """Return a progressive JPEG that repeats its last scan that often: each is a pass over all pixels."""
    whole = jpeg(side, side, progressive=True)
    last = max(whole.rindex(b"\xff\xda"), 0)
    table = whole.rindex(b"\xff\xc4", 0, last)
    if whole.rindex(b"\xff\xda", 0, last) < table:
        last = table  # with the table that it reads
    return whole[:-2] + whole[last:-2] * scans + b"\xff\xd9"


def jpeg_with_segments(count: int, repeated: bytes = b"\xff\xe1\x00\x09Exif\0\0x") -> bytes:
    """Return a JPEG with that many segments of an application before its picture."""
    whole = jpeg()
    return whole[:2] + repeated * count + whole[2:]
