"""From what a source gives to what is sent: JPEG as it is where the source has JPEG, else encoded, scaled if asked."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from av import VideoFrame
from PIL import Image

from halimede.cameras.ipc_messages import ReaderJob
from halimede.errors import DecodeError
from halimede.frames.encodings import Pixels
from halimede.frames.image_headers import MAX_SIDE, read_jpeg

#: a marker of JPEG tables without which a picture cannot be read by itself
DHT = 0xC4


class NoTablesError(DecodeError):
    """A JPEG of a video, whose tables everybody is supposed to know: it cannot be sent as it is."""


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """A picture ready to send."""

    encoding: Literal["jpeg", "png"]
    width: int
    height: int
    data: bytes


@dataclass(frozen=True, slots=True)
class FrameEncoder:
    """A frame that may be sent: ``make`` encodes it, and raises DecodeError if that cannot be done."""

    taken_ns: int
    codec: str
    make: Callable[[], EncodedFrame]


def size_of(data: bytes) -> tuple[int, int]:
    """Return width and height of a JPEG that can be read by itself. Raises DecodeError."""
    picture = read_jpeg(memoryview(data))
    picture.check()
    if not any(part[1] == DHT for part in picture.parts[1:-1]):
        raise NoTablesError("a jpeg without its tables")
    return picture.width, picture.height


def fitting(job: ReaderJob, width: int, height: int) -> tuple[int, int]:
    """Return the size at which a picture is sent: no wider than the job allows, of even sides where it is scaled."""
    if not job.max_width or width <= job.max_width:
        return width, height
    narrow = max(job.max_width // 2 * 2, 2)
    return narrow, max(round(height * narrow / width / 2) * 2, 2)


def from_frame(job: ReaderJob, frame: VideoFrame) -> EncodedFrame:
    """Encode a decoded frame."""
    if not (0 < frame.width <= MAX_SIDE and 0 < frame.height <= MAX_SIDE):
        raise DecodeError(f"{frame.width} x {frame.height} pixels: a side has 1 to {MAX_SIDE}")
    width, height = fitting(job, frame.width, frame.height)
    grey = frame.format.name in {"gray", "gray8"}
    scaled = frame.reformat(width=width, height=height, format="gray" if grey else "rgb24")
    return _encoded(job, scaled.to_image())  # type: ignore[no-untyped-call]


def from_pixels(job: ReaderJob, pixels: Pixels) -> EncodedFrame:
    """Encode pixels."""
    image = Image.fromarray(pixels)
    size = fitting(job, *image.size)
    return _encoded(job, image if size == image.size else image.resize(size, Image.Resampling.BILINEAR))


def _encoded(job: ReaderJob, image: Image.Image) -> EncodedFrame:
    out = io.BytesIO()
    image.save(out, format="JPEG", quality=job.quality)
    data = out.getvalue()
    if len(data) > job.max_bytes:
        raise DecodeError(f"{len(data)} bytes as a jpeg are more than {job.max_bytes}: lower its width or quality")
    return EncodedFrame("jpeg", image.width, image.height, data)
