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
#: bytes near the end of a complete file, by its first bytes, and the distance from the end within which they stand
END_MARKS, END_DISTANCE = {JPEG_MAGIC: END, PNG_MAGIC: b"IEND"}, 4096
#: most bytes of a picture that is read whole to find its end: pictures with more are refused everywhere
MAX_PICTURE = 64 * 1024**2


class Images(DatasetReader):
    """Reads folders of pictures: a ``DatasetReader``, which describes the methods."""

    suffixes = frozenset(MAGIC)
    has_samples_in_files = False

    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> None:
        """Count a picture of which begin and end are as they should be."""
        if reason := _fault(source):
            tally.record_fault(source.name, reason)
            return
        tally.samples += 1
        if name := class_of(source.path.relative_to(root)):
            tally.add_classes({name: 1})


def _fault(source: FileBlocks) -> str:
    """Return why a picture is unusable, empty for a usable picture."""
    if not source.size:
        return "an empty file"
    descriptor, head = source.file.fileno(), os.pread(source.file.fileno(), 16, 0)
    expected = MAGIC.get(source.path.suffix.lower(), ())
    # a picture with the suffix of another format can still be decoded
    candidates = (magic for magics in (expected, *MAGIC.values()) for magic in magics)
    magic = next((magic for magic in candidates if head.startswith(magic)), None)
    if magic is None:
        return f"no picture: it does not begin as a {source.path.suffix.lower().lstrip('.')} file does"
    end = END_MARKS.get(magic)
    if end is None or end in os.pread(descriptor, END_DISTANCE, max(0, source.size - END_DISTANCE)):
        return ""
    return "" if _is_whole(os.pread(descriptor, MAX_PICTURE, 0)) else "cut off: its end is missing"


def _is_whole(data: bytes) -> bool:
    """Whether a picture is complete; padding or a film may follow its end."""
    encoding = encoding_of(data)
    try:
        return encoding is not None and bool(READERS[encoding](memoryview(data)))
    except DecodeError:
        return False
