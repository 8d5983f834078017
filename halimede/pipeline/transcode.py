"""Encodes samples for upload in a separate thread; ``transcode_policy`` decides how.

A frame that is sent as received costs only two comparisons and a count. A frame that is too large for the broker is
encoded again. With a rule for regions, a picture of a hard frame's regions is sent (``halimede.regions``). Such frames
are decoded under the limits of all decoding, a JPEG no larger than the first attempt needs.
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
    SMALL_QUALITY,
    EncodeAttempt,
    PixelSize,
    SizeEstimator,
    UploadFormat,
    first,
    following,
)
from halimede.image_headers import READERS, ImageHeader
from halimede.inference.coordinates import map_boxes, map_coordinates
from halimede.inference.decoding import Decoding
from halimede.inference.geometry import Geometry, frame_geometry
from halimede.messages import Frame, Prediction, Reply
from halimede.mining.calibration_file import RegionRule
from halimede.offload.errors import OffloadError, OffloadReason
from halimede.offload.limits import CircuitBreaker
from halimede.regions import FrameRegion, SentRegions, find_regions, lay_out
from halimede.tracing.latency import Distribution

if TYPE_CHECKING:
    from halimede.bus import Bus
    from halimede.pipeline.executor import ModelThread

log = structlog.get_logger()

#: least seconds between two log lines about samples that cannot be encoded
EVERY_S = 60.0
#: weight of the older sizes in the running mean of encoded sizes
KEPT = 0.9
#: a picture of regions with more of the frame's bytes is not worth it: the frame is sent
WORTHWHILE = 0.95
NO_BOXES = "the answer to regions of a frame has no boxes: set upload to frame"


class Upload(Struct, frozen=True, gc=False):
    """A frame ready for upload. ``shrunk``: the factors of its original width and height; None: original size.

    ``regions``: the picture shows only these regions of the frame; ``shrunk`` is relative to their layout.
    """

    frame: Frame
    shrunk: tuple[float, float] | None = None
    ms: float = 0.0
    regions: SentRegions | None = None

    def read(self, reply: Reply) -> Reply:
        """Return an answer with its coordinates in the pixels of the original frame.

        Raises OffloadError for an answer to regions that has no boxes: it is no answer to the frame.
        """
        said = reply.prediction
        if said is None:
            return reply
        mapped = said if self.shrunk is None else scaled(said, *self.shrunk)
        if self.regions:
            if mapped.boxes is None:
                raise OffloadError(OffloadReason.ERROR, NO_BOXES)
            mapped = self.regions.joint(mapped)
        return reply if mapped is said else msgspec.structs.replace(reply, prediction=mapped)


class UploadEncoder:
    """Encodes the samples of one worker for upload in ``thread``, unless ``circuit`` refuses requests.

    ``bus``: its broker's limit of a message holds for samples, too. ``regions``: regions of a frame are sent, by this
    rule.
    """

    def __init__(
        self,
        wish: UploadFormat,
        thread: ModelThread,
        circuit: CircuitBreaker | None = None,
        bus: Bus | None = None,
        regions: RegionRule | None = None,
    ) -> None:
        self.regions = regions
        #: samples by encoding and by change: none, the encoding, also the size, or regions
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
        if self.regions:
            return min(size, round(self._mean) or size)
        if self._as_it_came or self._wish.met(frame.encoding, size):
            return size
        size = round(self._mean) or size
        return size if self._wish.fits(size) else self._wish.max_bytes or size

    async def write(self, frame: Frame, left_s: float, *, whole: bool = False) -> Upload:
        """Return a frame encoded for upload, within ``left_s`` seconds. Raises OffloadError with the reason.

        ``whole``: all of it, although there is a rule for regions.
        """
        max_packet = self._bus.max_packet if self._bus else 0  # 0: not known before the first connection
        fits = not max_packet or frame.data.nbytes + REQUEST_BYTES <= max_packet
        is_ready = fits and (self._as_it_came or self._wish.met(frame.encoding, frame.data.nbytes))
        rule = None if whole else self.regions
        if rule is None and is_ready:
            return self._keep(frame, whole=whole)
        if self._circuit and self._circuit.refuses(asyncio.get_running_loop().time()):
            raise OffloadError(OffloadReason.CIRCUIT_OPEN)
        try:
            async with asyncio.timeout(left_s):
                format_ = self._wish.within_packet(max_packet) if max_packet else self._wish
                made = await self._thread.call(write_regions, frame, format_, self._densities, rule) if rule else None
                if made is None and is_ready:
                    return self._keep(frame, whole=whole)
                if made is None:
                    made = await self._thread.call(write, frame, format_, self._densities)
        except TimeoutError:
            raise OffloadError(OffloadReason.DEADLINE, "it was not written in time") from None
        except OffloadError as error:
            self._refuse(error)
            raise
        size = made.frame.data.nbytes
        changed = "regions" if made.regions else "encoding" if made.shrunk is None else "size"
        self.ready[made.frame.encoding, changed] += 1
        self.before += frame.data.nbytes
        self.after += size
        self.times.record(made.ms)
        self._learn(size, whole=whole)
        return made

    def _keep(self, frame: Frame, *, whole: bool) -> Upload:
        """Return a frame as received."""
        self.ready[frame.encoding, "none"] += 1
        if self.regions:
            self._learn(frame.data.nbytes, whole=whole)
        return Upload(frame)

    def _learn(self, size: int, *, whole: bool) -> None:
        """Record the size of an upload, for later estimates; that of a whole frame says nothing about regions."""
        if whole and self.regions:
            return
        self._mean = KEPT * self._mean + (1 - KEPT) * size if self._mean else float(size)

    def _refuse(self, error: OffloadError) -> None:
        """Count a sample that is not uploaded; log the first one, then at most one a minute."""
        self.refused[error.reason] += 1
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY_S
            log.warning("samples not encoded for upload", reason=error.reason, detail=error.detail)


def write(frame: Frame, wish: UploadFormat, densities: SizeEstimator) -> Upload:
    """Encode a frame again. Raises OffloadError: NO_PICTURE, TOO_LARGE, or ERROR for an unreadable one."""
    began = time.perf_counter()
    pixels = _pixels(frame, _decoding(frame, wish, densities))
    if not is_picture(pixels):
        what = f"a frame of {pixels.dtype} {list(pixels.shape)} is no picture (uint8, height x width or x 3)"
        if wish.encoding in {"jpeg", "png"}:
            raise OffloadError(OffloadReason.NO_PICTURE, f"{what}: leave encoding at as-it-came")
        raise OffloadError(OffloadReason.TOO_LARGE, f"{what}, and has more than {wish.limit_text}: raise it")
    return _encode(frame, pixels, wish, densities, began)


def write_regions(frame: Frame, wish: UploadFormat, densities: SizeEstimator, rule: RegionRule) -> Upload | None:
    """Return an upload of regions of a frame, or of the frame at the rule's scale; None: it is uploaded as any frame.

    That is a frame that is no picture or has no boxes, or whose upload would have hardly fewer bytes than its file.
    Raises OffloadError as ``write``.
    """
    began = time.perf_counter()
    size = frame_size(frame)
    if size is None or frame.edge is None or frame.edge.boxes is None:
        return None
    width, height = (max(1, round(side * rule.scale)) for side in size)
    factors = (size[0] / width, size[1] / height)
    regions = find_regions(map_boxes(frame.edge.boxes, lambda points: points / factors), width, height, rule)
    if regions is None and rule.scale == 1:
        return None
    pixels = _pixels(frame, Decoding(Resize(width=width, height=height)) if frame.encoding == "jpeg" else None)
    if not is_picture(pixels):
        return None
    pixels = resized(pixels, frame_geometry(pixels), width, height)
    layout = lay_out(regions or [FrameRegion(0, 0, width, height)], width, height, rule.canvas)
    sent = SentRegions(layout, factors, frame.edge)
    picture = layout.paint(pixels)
    shown = msgspec.structs.replace(frame, edge=sent.edge_in_layout())
    format_ = msgspec.structs.replace(wish, best_quality=SMALL_QUALITY)
    upload: Upload | None = None
    if wish.encoding == AS_IT_CAME:
        as_it_came = msgspec.structs.replace(format_, encoding=frame.encoding, max_bytes=None)
        upload = _encode(shown, picture, as_it_came, densities, began)
    if upload is None or not wish.fits(upload.frame.data.nbytes):
        upload = _encode(shown, picture, format_, densities, began)
    received = frame.data.nbytes
    if wish.met(frame.encoding, received) and upload.frame.data.nbytes > WORTHWHILE * received:
        return None
    return msgspec.structs.replace(upload, regions=sent)


def frame_size(frame: Frame) -> tuple[int, int] | None:
    """Return the width and height of a picture without decoding it; None if it is no picture.

    Raises OffloadError for an unreadable file.
    """
    if frame.encoding == "raw":
        is_flat = frame.dtype == "uint8" and len(frame.shape) in {2, 3}
        return (frame.shape[1], frame.shape[0]) if is_flat else None
    header = _header(frame)
    return header.width, header.height


def _header(frame: Frame) -> ImageHeader:
    """Read the header of a picture file. Raises OffloadError for an unreadable one."""
    try:
        return READERS[frame.encoding](frame.data.cast("B"))
    except DecodeError as error:
        raise OffloadError(OffloadReason.ERROR, str(error)) from error


def _pixels(frame: Frame, decoding: Decoding | None) -> Pixels:
    """Return the pixels of a frame, grey ones without a third axis. Raises OffloadError for an unreadable frame."""
    try:
        pixels = decode(frame, decoding)
    except DecodeError as error:
        raise OffloadError(OffloadReason.ERROR, str(error)) from error
    return pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels


def _encode(frame: Frame, pixels: Pixels, wish: UploadFormat, densities: SizeEstimator, began: float) -> Upload:
    """Return a picture as an upload within the format. Raises OffloadError."""
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
    header = _header(frame)
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
