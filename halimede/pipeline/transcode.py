"""Encodes samples for upload in a separate thread: ``UploadEncoder``; ``transcode_policy`` decides how.

A frame that is sent as received costs only two comparisons and a count. A frame that is too large for the broker, or
not in the service's upload format, is decoded and encoded again, under the limits of all decoding. With a rule for
regions, a picture of some parts of the frame is sent (``halimede.regions``). ``Upload.read`` scales the boxes of the
answer to the original frame.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import msgspec
import numpy as np
from msgspec import Struct
from PIL import Image

from halimede.api.deferral import AS_IT_CAME
from halimede.api.processing import Resize
from halimede.bus import Bus
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
    first_attempt,
    next_attempt,
)
from halimede.image_headers import READERS, ImageHeader
from halimede.inference.coordinates import map_boxes, map_coordinates
from halimede.inference.decoding import Decoding
from halimede.inference.geometry import Geometry, frame_geometry
from halimede.log import RateLimitedLogger
from halimede.messages import Frame, Prediction, Reply
from halimede.mining.calibration_file import RegionRule
from halimede.offload.errors import OffloadError, OffloadReason
from halimede.offload.limits import CircuitBreaker
from halimede.pipeline.executor import ModelThread
from halimede.regions import FrameRegion, SentRegions, find_regions, lay_out
from halimede.tracing.latency import Distribution

#: weight of the older sizes in the running mean of encoded sizes
OLD_WEIGHT = 0.9
#: a picture of regions with more than this fraction of the frame's bytes is not worth it: the frame is sent
WORTHWHILE = 0.95
#: the error of an answer that cannot be joined with the small model's
NO_BOXES = "the answer to regions of a frame has no boxes: set upload to frame"


class Upload(Struct, frozen=True, gc=False):
    """A frame that is ready for upload.

    Attributes:
        frame: what is sent, with the edge's answer in its own pixels.
        shrunk: the original width and height divided by those of the upload; None: the upload has the original size.
            With ``regions`` the original is the picture that shows the regions.
        ms: milliseconds that the encoding took; 0: the frame is sent as received.
        regions: the picture shows only these regions of the frame; None: it shows the whole frame.

    """

    frame: Frame
    shrunk: tuple[float, float] | None = None
    ms: float = 0.0
    regions: SentRegions | None = None

    def read(self, reply: Reply) -> Reply:
        """Return the answer to the upload with its coordinates in pixels of the original frame.

        Raises OffloadError if an answer to regions has no boxes, because it says nothing about the frame then.
        """
        answer = reply.prediction
        if answer is None:
            return reply
        mapped = answer if self.shrunk is None else scale_coordinates(answer, *self.shrunk)
        if self.regions:
            if mapped.boxes is None:
                raise OffloadError(OffloadReason.ERROR, NO_BOXES)
            mapped = self.regions.joint(mapped)
        return reply if mapped is answer else msgspec.structs.replace(reply, prediction=mapped)


class UploadEncoder:
    """Encodes the samples of one worker for upload in ``thread``, unless ``circuit`` refuses requests.

    ``format_``: how the service wants uploads encoded. ``circuit``: None: nothing refuses requests. ``bus``: its
    broker's limit of a message also holds for uploads; None: there is no limit.

    Attributes:
        regions: the rule by which only regions of a frame are sent; None: whole frames are.
        ready: number of samples by encoding of the upload and by change: ``none``, ``encoding``, ``size`` (smaller), or
            ``regions``.
        refused: number of samples that cannot be encoded as the service specifies, by reason.
        before: bytes of the encoded samples as received.
        after: bytes of the encoded samples as sent.
        times: milliseconds of each encoding.

    """

    def __init__(
        self,
        format_: UploadFormat,
        thread: ModelThread,
        circuit: CircuitBreaker | None = None,
        bus: Bus | None = None,
        regions: RegionRule | None = None,
    ) -> None:
        self.regions = regions
        self.ready: Counter[tuple[str, str]] = Counter()
        self.refused: Counter[str] = Counter()
        self.before = self.after = 0
        self.times = Distribution()
        self._format = format_
        #: whether all frames are sent as received
        self._as_it_came = format_.encoding == AS_IT_CAME and format_.max_bytes is None
        self._thread = thread
        self._circuit = circuit
        self._bus = bus
        self._densities = SizeEstimator()
        self._mean = 0.0
        self._limited_log = RateLimitedLogger()

    def size(self, frame: Frame) -> int:
        """Return the estimated upload size of a frame in bytes."""
        size = frame.data.nbytes
        if self.regions:
            return min(size, round(self._mean) or size)
        if self._as_it_came or self._format.accepts(frame.encoding, size):
            return size
        size = round(self._mean) or size
        return size if self._format.accepts_size(size) else self._format.max_bytes or size

    async def write(self, frame: Frame, left_s: float, *, whole: bool = False) -> Upload:
        """Return a frame encoded for upload, within ``left_s`` seconds. Raises OffloadError with the reason.

        ``whole``: encode the whole frame although there is a rule for regions.
        """
        max_packet = self._bus.max_packet if self._bus else 0  # 0: not known before the first connection
        fits = not max_packet or frame.data.nbytes + REQUEST_BYTES <= max_packet
        is_ready = fits and (self._as_it_came or self._format.accepts(frame.encoding, frame.data.nbytes))
        rule = None if whole else self.regions
        if rule is None and is_ready:
            return self._keep(frame, whole=whole)
        if self._circuit and self._circuit.is_refusing(asyncio.get_running_loop().time()):
            raise OffloadError(OffloadReason.CIRCUIT_OPEN)
        try:
            async with asyncio.timeout(left_s):
                format_ = self._format.within_packet(max_packet) if max_packet else self._format
                upload = await self._thread.call(write_regions, frame, format_, self._densities, rule) if rule else None
                if upload is None and is_ready:
                    return self._keep(frame, whole=whole)
                if upload is None:
                    upload = await self._thread.call(write, frame, format_, self._densities)
        except TimeoutError:
            raise OffloadError(OffloadReason.DEADLINE, "it was not written in time") from None
        except OffloadError as error:
            self._refuse(error)
            raise
        size = upload.frame.data.nbytes
        changed = "regions" if upload.regions else "encoding" if upload.shrunk is None else "size"
        self.ready[upload.frame.encoding, changed] += 1
        self.before += frame.data.nbytes
        self.after += size
        self.times.record(upload.ms)
        self._learn(size, whole=whole)
        return upload

    def _keep(self, frame: Frame, *, whole: bool) -> Upload:
        """Return the upload of a frame as received, and count it."""
        self.ready[frame.encoding, "none"] += 1
        if self.regions:
            self._learn(frame.data.nbytes, whole=whole)
        return Upload(frame)

    def _learn(self, size: int, *, whole: bool) -> None:
        """Record the bytes of an upload for later estimates, unless it is a whole frame and others are regions."""
        if whole and self.regions:
            return
        self._mean = OLD_WEIGHT * self._mean + (1 - OLD_WEIGHT) * size if self._mean else float(size)

    def _refuse(self, error: OffloadError) -> None:
        """Count and log a sample that is not uploaded."""
        self.refused[error.reason] += 1
        self._limited_log.warning("sample not encoded for upload", reason=error.reason, detail=error.detail)


def write(frame: Frame, format_: UploadFormat, densities: SizeEstimator) -> Upload:
    """Return a frame that is decoded and encoded in a format. Blocks.

    ``densities``: estimates sizes, and learns from this one. Raises OffloadError with the reason NO_PICTURE, TOO_LARGE,
    or ERROR if the frame cannot be read.
    """
    began = time.perf_counter()
    pixels = _pixels(frame, _choose_decoding(frame, format_, densities))
    if not is_picture(pixels):
        what = f"a frame of {pixels.dtype} {list(pixels.shape)} is no picture (uint8, height x width or x 3)"
        if format_.encoding in {"jpeg", "png"}:
            raise OffloadError(OffloadReason.NO_PICTURE, f"{what}: leave encoding at as-it-came")
        raise OffloadError(OffloadReason.TOO_LARGE, f"{what}, and has more than {format_.limit_text}: raise it")
    return _encode(frame, pixels, format_, densities, began)


def write_regions(frame: Frame, format_: UploadFormat, densities: SizeEstimator, rule: RegionRule) -> Upload | None:
    """Return an upload of regions of a frame, or of the whole frame at the rule's scale. Blocks.

    None: the frame should be uploaded without the rule, because it is no picture, has no boxes, the rule selects the
    whole frame, or the upload would have hardly fewer bytes. ``densities``: estimates sizes, and learns from this one.
    Raises OffloadError with the reason TOO_LARGE, or ERROR if the frame cannot be read.
    """
    began = time.perf_counter()
    size = frame_size(frame)
    if size is None or frame.edge is None or frame.edge.boxes is None:
        return None
    # select regions in the pixels of the frame at the rule's scale
    width, height = (max(1, round(side * rule.scale)) for side in size)
    factors = (size[0] / width, size[1] / height)
    regions = find_regions(map_boxes(frame.edge.boxes, lambda points: points / factors), width, height, rule)
    if regions is None and rule.scale == 1:
        return None
    # paint them into one picture, with the edge's boxes in its pixels
    pixels = _pixels(frame, Decoding(Resize(width=width, height=height)) if frame.encoding == "jpeg" else None)
    if not is_picture(pixels):
        return None
    pixels = resize(pixels, frame_geometry(pixels), width, height)
    layout = lay_out(regions or [FrameRegion(0, 0, width, height)], width, height, rule.canvas)
    sent = SentRegions(layout, factors, frame.edge)
    picture = layout.paint(pixels)
    shown = msgspec.structs.replace(frame, edge=sent.edge_in_layout())
    # encode it as the frame was received, or as the service specifies
    small = msgspec.structs.replace(format_, best_quality=SMALL_QUALITY)
    upload: Upload | None = None
    if format_.encoding == AS_IT_CAME:
        as_it_came = msgspec.structs.replace(small, encoding=frame.encoding, max_bytes=None)
        upload = _encode(shown, picture, as_it_came, densities, began)
    if upload is None or not format_.accepts_size(upload.frame.data.nbytes):
        upload = _encode(shown, picture, small, densities, began)
    received = frame.data.nbytes
    if format_.accepts(frame.encoding, received) and upload.frame.data.nbytes > WORTHWHILE * received:
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
    return pixels.squeeze(2) if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels


def _encode(frame: Frame, pixels: Pixels, format_: UploadFormat, densities: SizeEstimator, began: float) -> Upload:
    """Return the upload of a picture in a format. Raises OffloadError (TOO_LARGE) if it does not fit.

    ``pixels``: of ``frame`` or of its regions. ``began``: when the encoding began, for its duration.
    """
    geometry = frame_geometry(pixels)
    picture = PixelSize(geometry.x.frame, geometry.y.frame, 3 if pixels.ndim == 3 else 1)
    if format_.encoding != "raw":
        _check(picture)
    attempt: EncodeAttempt | None = first_attempt(picture, format_, densities)
    for _ in range(MOST_TRIES):
        if attempt is None:
            break
        written = resize(pixels, geometry, attempt.width, attempt.height)
        data = encode_image(written, attempt.encoding, attempt.quality)
        densities.learn(attempt, picture.channels, len(data))
        if format_.accepts_size(len(data)):
            whole = (attempt.width, attempt.height) == (picture.width, picture.height)
            shrunk = None if whole else (picture.width / attempt.width, picture.height / attempt.height)
            ready = _new_frame(frame, attempt.encoding, written, data, shrunk)
            return Upload(ready, shrunk, (time.perf_counter() - began) * 1000)
        attempt = next_attempt(attempt, len(data), picture, format_)
    what = f"a picture of {picture.width} x {picture.height} pixels does not fit into {format_.limit_text}"
    raise OffloadError(
        OffloadReason.TOO_LARGE, f"{what} as {format_.encoding}: raise it, or leave encoding at as-it-came"
    )


def _choose_decoding(frame: Frame, format_: UploadFormat, densities: SizeEstimator) -> Decoding | None:
    """Return how a JPEG is decoded: at least as large as the first attempt to encode it; None for other encodings."""
    if frame.encoding != "jpeg":
        return None
    header = _header(frame)
    attempt = first_attempt(PixelSize(header.width, header.height, header.channels), format_, densities)
    return Decoding(Resize(width=attempt.width, height=attempt.height))


def _check(picture: PixelSize) -> None:
    """Raise OffloadError for more raw pixels than a worker would decode from a file."""
    try:
        ImageHeader(picture.width, picture.height, picture.channels).check()
    except DecodeError as error:
        raise OffloadError(OffloadReason.TOO_LARGE, f"{error}: leave encoding at raw") from error


def scale_coordinates(prediction: Prediction, x: float, y: float) -> Prediction:
    """Return a prediction with its coordinates multiplied by the factors ``x`` and ``y``."""
    return map_coordinates(prediction, lambda points: points * (x, y))


def _new_frame(frame: Frame, encoding: str, pixels: Pixels, data: bytes, shrunk: tuple[float, float] | None) -> Frame:
    """Return a frame with another encoding and other data; the boxes of its edge's answer are scaled to them."""
    edge = frame.edge
    if shrunk and edge:
        edge = scale_coordinates(edge, 1 / shrunk[0], 1 / shrunk[1])
    return msgspec.structs.replace(
        frame, encoding=encoding, dtype="uint8", shape=list(pixels.shape), edge=edge, data=memoryview(data)
    )


def resize(pixels: Pixels, geometry: Geometry, width: int, height: int) -> Pixels:
    """Return pixels resized to ``width`` x ``height`` with antialiasing; unchanged if that is the size of the frame.

    ``geometry``: the mapping of the frame to ``pixels``, which may have been decoded smaller (``frame_geometry``). The
    filter is bilinear, as in pre-processing. After a decoder that has filtered it is bicubic, because bilinear would
    blur twice.
    """
    x, y = geometry.x, geometry.y
    if (height, width) == (y.frame, x.frame):
        return pixels
    method = Image.Resampling.BICUBIC if geometry.moved else Image.Resampling.BILINEAR
    # a scale that does not divide a side gives pixels past the edge of the frame
    box = (0, 0, x.frame * x.scale, y.frame * y.scale)
    return np.asarray(Image.fromarray(pixels).resize((width, height), method, box=box, reducing_gap=2.0))
