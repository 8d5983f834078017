"""Encodes samples for upload in a separate thread; ``transcode_policy`` decides how.

A frame that is sent as received costs only two comparisons and a count. A frame that is too large for the broker is
encoded again. Such frames are decoded under the limits of all decoding, a JPEG no larger than the first attempt needs.
If the picture was made smaller, the boxes of the answer are scaled to the original frame.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import structlog
from msgspec import Struct
from PIL import Image

from halimede.api.deferral import AS_IT_CAME
from halimede.api.processing import Resize
from halimede.errors import DecodeError
from halimede.frames.encodings import Pixels, decode, encode_image, is_picture
from halimede.frames.transcode_policy import (
    MOST_TRIES,
    REQUEST_BYTES,
    EncodeAttempt,
    PixelSize,
    SizeEstimator,
    UploadFormat,
    first,
    following,
)
from halimede.image_headers import ImageHeader, read_jpeg
from halimede.inference.coordinates import map_coordinates
from halimede.inference.decoding import Decoding
from halimede.inference.geometry import Geometry, frame_geometry
from halimede.messages import Frame, Prediction, Reply
from halimede.offload.errors import OffloadError, OffloadReason
from halimede.offload.limits import CircuitBreaker
from halimede.tracing.latency import Distribution

if TYPE_CHECKING:
    from halimede.bus import Bus
    from halimede.pipeline.executor import ModelThread

log = structlog.get_logger()

#: least seconds between two log lines about samples that cannot be encoded
EVERY_S = 60.0
#: weight of the older sizes in the running mean of encoded sizes
KEPT = 0.9


class Upload(Struct, frozen=True, gc=False):
    """A frame ready for upload. ``shrunk``: the factors of its original width and height; None: original size."""

    frame: Frame
    shrunk: tuple[float, float] | None = None
    ms: float = 0.0

    def read(self, reply: Reply) -> Reply:
        """Return an answer with its coordinates in the pixels of the original frame."""
        said = reply.prediction
        if self.shrunk is None or said is None:
            return reply
        mapped = scaled(said, *self.shrunk)
        return reply if mapped is said else msgspec.structs.replace(reply, prediction=mapped)


class UploadEncoder:
    """Encodes the samples of one worker for upload in ``thread``, unless ``circuit`` refuses requests.

    ``bus``: its broker's limit of a message holds for samples, too.
    """

    def __init__(
        self, wish: UploadFormat, thread: ModelThread, circuit: CircuitBreaker | None = None, bus: Bus | None = None
    ) -> None:
        #: samples by encoding and by change: none, the encoding, or also the size
        self.ready: Counter[tuple[str, str]] = Counter()
        #: samples that cannot be encoded as the service specifies, by reason
        self.refused: Counter[str] = Counter()
        #: bytes of encoded samples as received and as sent; milliseconds of each encoding
        self.before = self.after = 0
        self.times = Distribution()
        self._wish = wish
        #: whether all frames are sent as received
        self._as_it_came = wish.encoding == AS_IT_CAME and wish.max_bytes is None
        self._thread = thread
        self._circuit = circuit
        self._bus = bus
        self._densities = SizeEstimator()
        self._mean = 0.0
        self._due = 0.0

    def size(self, frame: Frame) -> int:
        """Return the estimated upload size of a frame in bytes."""
        size = frame.data.nbytes
        if self._as_it_came or self._wish.met(frame.encoding, size):
            return size
        size = round(self._mean) or size
        return size if self._wish.fits(size) else self._wish.max_bytes or size

    async def write(self, frame: Frame, left_s: float) -> Upload:
        """Return a frame encoded for upload, within ``left_s`` seconds. Raises OffloadError with the reason."""
        max_packet = self._bus.max_packet if self._bus else 0  # 0: not known before the first connection
        fits = not max_packet or frame.data.nbytes + REQUEST_BYTES <= max_packet
        if fits and (self._as_it_came or self._wish.met(frame.encoding, frame.data.nbytes)):
            self.ready[frame.encoding, "none"] += 1
            return Upload(frame)
        if self._circuit and self._circuit.refuses(asyncio.get_running_loop().time()):
            raise OffloadError(OffloadReason.CIRCUIT_OPEN)
        try:
            async with asyncio.timeout(left_s):
                format_ = self._wish.within_packet(max_packet) if max_packet else self._wish
                made = await self._thread.call(write, frame, format_, self._densities)
        except TimeoutError:
            raise OffloadError(OffloadReason.DEADLINE, "it was not written in time") from None
        except OffloadError as error:
            self._refuse(error)
            raise
        size = made.frame.data.nbytes
        self.ready[made.frame.encoding, "encoding" if made.shrunk is None else "size"] += 1
        self.before += frame.data.nbytes
        self.after += size
        self.times.record(made.ms)
        self._mean = KEPT * self._mean + (1 - KEPT) * size if self._mean else float(size)
        return made

    def _refuse(self, error: OffloadError) -> None:
        """Count a sample that is not uploaded; log the first one, then at most one a minute."""
        self.refused[error.reason] += 1
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY_S
            log.warning("samples not encoded for upload", reason=error.reason, detail=error.detail)


def write(frame: Frame, wish: UploadFormat, densities: SizeEstimator) -> Upload:
    """Encode a frame again. Raises OffloadError: NO_PICTURE, TOO_LARGE, or ERROR for an unreadable one."""
    began = time.perf_counter()
    try:
        pixels = decode(frame, _decoding(frame, wish, densities))
    except DecodeError as error:
        raise OffloadError(OffloadReason.ERROR, str(error)) from error
    pixels = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    if not is_picture(pixels):
        what = f"a frame of {pixels.dtype} {list(pixels.shape)} is no picture (uint8, height x width or x 3)"
        if wish.encoding in {"jpeg", "png"}:
            raise OffloadError(OffloadReason.NO_PICTURE, f"{what}: leave encoding at as-it-came")
        raise OffloadError(OffloadReason.TOO_LARGE, f"{what}, and has more than {wish.limit_text}: raise it")
    geometry = frame_geometry(pixels)
    picture = PixelSize(geometry.x.frame, geometry.y.frame, 3 if pixels.ndim == 3 else 1)
    if wish.encoding != "raw":
        _check(picture)
    made: EncodeAttempt | None = first(picture, wish, densities)
    for _ in range(MOST_TRIES):
        if made is None:
            break
        written = resized(pixels, geometry, made.width, made.height)
        data = encode_image(written, made.encoding, made.quality)
        densities.learn(made, picture.channels, len(data))
        if wish.fits(len(data)):
            whole = (made.width, made.height) == (picture.width, picture.height)
            shrunk = None if whole else (picture.width / made.width, picture.height / made.height)
            ready = _framed(frame, made.encoding, written, data, shrunk)
            return Upload(ready, shrunk, (time.perf_counter() - began) * 1000)
        made = following(made, len(data), picture, wish)
    what = f"a picture of {picture.width} x {picture.height} pixels does not fit into {wish.limit_text}"
    raise OffloadError(OffloadReason.TOO_LARGE, f"{what} as {wish.encoding}: raise it, or leave encoding at as-it-came")


def _decoding(frame: Frame, wish: UploadFormat, densities: SizeEstimator) -> Decoding | None:
    """Return how a JPEG is decoded: at least as large as its first attempt, which no later one exceeds."""
    if frame.encoding != "jpeg":
        return None
    header = read_jpeg(frame.data.cast("B"))
    attempt = first(PixelSize(header.width, header.height, header.channels), wish, densities)
    return Decoding(Resize(width=attempt.width, height=attempt.height))


def _check(picture: PixelSize) -> None:
    """Raise OffloadError for more raw pixels than a worker would decode from a file."""
    try:
        ImageHeader(picture.width, picture.height, picture.channels, 1, ()).check()
    except DecodeError as error:
        raise OffloadError(OffloadReason.TOO_LARGE, f"{error}: leave encoding at raw") from error


def scaled(said: Prediction, x: float, y: float) -> Prediction:
    """Return a prediction with its coordinates scaled by the given factors."""
    return map_coordinates(said, lambda points: points * (x, y))


def _framed(frame: Frame, encoding: str, pixels: Pixels, data: bytes, shrunk: tuple[float, float] | None) -> Frame:
    edge = frame.edge
    if shrunk and edge:
        edge = scaled(edge, 1 / shrunk[0], 1 / shrunk[1])
    return msgspec.structs.replace(
        frame, encoding=encoding, dtype="uint8", shape=list(pixels.shape), edge=edge, data=memoryview(data)
    )


def resized(pixels: Pixels, geometry: Geometry, width: int, height: int) -> Pixels:
    """Resize with antialiasing; return ``pixels`` at the size of their frame.

    Bilinear as pre-processing does, or bicubic after a decoder that has filtered already: bilinear would blur twice.
    """
    x, y = geometry.x, geometry.y
    if (height, width) == (y.frame, x.frame):
        return pixels
    method = Image.Resampling.BICUBIC if geometry.moved else Image.Resampling.BILINEAR
    # a scale that does not divide a side gives pixels past the edge of the frame
    box = (0, 0, x.frame * x.scale, y.frame * y.scale)
    return np.asarray(Image.fromarray(pixels).resize((width, height), method, box=box, reducing_gap=2.0))
