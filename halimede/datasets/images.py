"""Image folder: one sample per picture, its class is its folder. Pictures are checked, never decoded."""

from __future__ import annotations

import os
from pathlib import Path

from halimede.datasets.counts import DatasetCounts
from halimede.datasets.registry import DatasetReader, FileBlocks
from halimede.errors import DecodeError
from halimede.image_headers import END, READERS
from halimede.picture_files import JPEG_MAGIC, PNG_MAGIC, encoding_of
from halimede.sample_files.rules import class_of

#: first bytes of files, by suffix
MAGIC = {
    ".jpg": (JPEG_MAGIC,), ".jpeg": (JPEG_MAGIC,), ".jpe": (JPEG_MAGIC,), ".jfif": (JPEG_MAGIC,), ".png": (PNG_MAGIC,),
    ".gif": (b"GIF87a", b"GIF89a"), ".bmp": (b"BM",), ".webp": (b"RIFF",), ".tif": (b"II*\0", b"MM\0*", b"II+\0"),
    ".tiff": (b"II*\0", b"MM\0*", b"II+\0"), ".ppm": (b"P6", b"P3"), ".pgm": (b"P5", b"P2"),
}  # fmt: skip
#: bytes near the end of a complete file, for formats that have one, and the distance from the end
ENDS = {JPEG_MAGIC: END, PNG_MAGIC: b"IEND"}
NEAR = 4096
#: most bytes of a picture that is read whole to find its end: pictures with more are refused everywhere
MAX_PICTURE = 64 * 1024**2


class Images(DatasetReader):
    """Pictures in folders."""

    suffixes = frozenset(MAGIC)
    has_samples_in_files = False

    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> bool:
        """Check the begin and the end of a picture."""
        if reason := _fault(source):
            tally.fault(source.name, reason)
            return True
        tally.samples += 1
        if name := class_of(source.path.relative_to(root)):
            tally.sort({name: 1})
        return True


def _fault(source: FileBlocks) -> str:
    """Return why a picture is unusable."""
    if not source.size:
        return "an empty file"
    number, head = source.file.fileno(), os.pread(source.file.fileno(), 16, 0)
    expected = MAGIC.get(source.path.suffix.lower(), ())
    # a picture with the suffix of another format can still be decoded
    magic = next((m for beginnings in (expected, *MAGIC.values()) for m in beginnings if head.startswith(m)), None)
    if magic is None:
        return f"no picture: it does not begin as a {source.path.suffix.lower().lstrip('.')} file does"
    end = ENDS.get(magic)
    if end is None or end in os.pread(number, NEAR, max(0, source.size - NEAR)):
        return ""
    return "" if _is_whole(os.pread(number, MAX_PICTURE, 0)) else "cut off: its end is missing"


def _is_whole(data: bytes) -> bool:
    """Whether a picture has its end, with padding or a film behind it."""
    encoding = encoding_of(data)
    try:
        return encoding is not None and bool(READERS[encoding](memoryview(data)))
    except DecodeError:
        return False
