"""Decides how a sample is encoded for its upload to the next tier: the smallest change that meets the upload format.

A sample that already meets the format is sent as received. A picture with too many bytes becomes a JPEG of decreasing
quality, and then a smaller and smaller one; if the service sets another encoding, only the picture gets smaller. The
first attempt follows from the sizes of earlier pictures: an attempt that was far too large for them is skipped.

The bytes of a file are modelled as ``density * share[quality] * pixels ** PIXEL_POWER``. For other qualities and sizes
of one picture this is accurate to about a fifth, so each attempt is measured and the next one follows from it. Pure:
``halimede.pipeline.transcode`` encodes.
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from halimede.api.deferral import AS_IT_CAME, UploadEncoding

#: an encoding in which pixels can be written
WrittenEncoding = Literal["raw", "jpeg", "png"]

#: JPEG qualities of pictures with all their pixels, the best first, and the quality of smaller pictures
QUALITIES, SMALL_QUALITY = (90, 75, 50), 75
#: bytes of each quality, relative to the best; 0: an encoding without qualities
SHARES = {90: 1.0, 75: 0.6, 50: 0.4, 0: 1.0}
#: a picture of half the pixels has more than half the bytes, because it has more detail per pixel
PIXEL_POWER = 0.85
#: an attempt is skipped only if earlier pictures predict more than the allowed bytes times this
DOUBT_FACTOR = 1.5
#: bytes at which the next attempt aims, as a share of the allowed bytes
TARGET_SHARE = 0.95
#: most pixels of a smaller picture, as a share of the attempt before
MAX_STEP_SHARE = 0.9
#: least side of a picture in pixels, and most attempts
LEAST_SIDE, MOST_TRIES = 8, 10
#: bytes for topic, properties and the other fields of a request, such as the edge's prediction
REQUEST_BYTES = 64 * 1024
#: weight of earlier pictures, 0 to 1, in the running mean of the density
EARLIER_WEIGHT = 0.7


class UploadFormat(Struct, frozen=True, kw_only=True, gc=False):
    """The upload format of a service: what a sample has to meet.

    Attributes:
        encoding: the required encoding; ``as-it-came``: any.
        max_bytes: most bytes of a sample; None: no limit.
        max_packet: the broker's limit of a message in bytes, if ``max_bytes`` follows from it; else 0.
        best_quality: highest quality of a JPEG: at least the lowest of QUALITIES.

    """

    encoding: UploadEncoding = AS_IT_CAME
    max_bytes: int | None = None
    max_packet: int = 0
    best_quality: int = QUALITIES[0]

    @property
    def limit_text(self) -> str:
        """The limit of bytes as text for people: the service's ``maxBytes``, or the broker's limit."""
        if self.max_packet:
            return f"the broker's limit of {self.max_packet} bytes a message"
        return f"maxBytes {self.max_bytes}"

    def within_packet(self, max_packet: int) -> UploadFormat:
        """Return this format with samples that fit into a packet of ``max_packet`` bytes."""
        limit = max(max_packet - REQUEST_BYTES, 0)
        if self.max_bytes is not None and self.max_bytes <= limit:
            return self
        return replace(self, max_bytes=limit, max_packet=max_packet)

    def accepts(self, encoding: str, size: int) -> bool:
        """Whether a frame of this encoding, with ``size`` bytes, is uploaded unchanged."""
        return self.encoding in {AS_IT_CAME, encoding} and self.accepts_size(size)

    def accepts_size(self, size: int) -> bool:
        """Whether a sample of ``size`` bytes may be uploaded."""
        return self.max_bytes is None or size <= self.max_bytes


class PixelSize(Struct, frozen=True, gc=False):
    """A decoded picture: its sides in pixels, and its channels (bytes per pixel), 1 or 3."""

    width: int
    height: int
    channels: int


class EncodeAttempt(Struct, frozen=True, gc=False):
    """One way to encode a picture: encoding, JPEG quality (0 for other encodings), and sides in pixels."""

    encoding: WrittenEncoding
    quality: int
    width: int
    height: int

    @property
    def pixels(self) -> int:
        """The number of encoded pixels."""
        return self.width * self.height


class SizeEstimator:
    """Predicts the bytes of an encoded picture from recent pictures of the same encoding and number of channels.

    Keep one for each worker; use it from one thread.
    """

    def __init__(self) -> None:
        self._densities: dict[tuple[WrittenEncoding, int], float] = {}

    def expected_bytes(self, attempt: EncodeAttempt, channels: int) -> float | None:
        """Return the expected bytes; None without earlier pictures of this encoding and number of channels."""
        if attempt.encoding == "raw":
            return float(attempt.pixels * channels)
        density = self._densities.get((attempt.encoding, channels))
        return None if density is None else density * SHARES[attempt.quality] * attempt.pixels**PIXEL_POWER

    def learn(self, attempt: EncodeAttempt, channels: int, size: int) -> None:
        """Record that an attempt made ``size`` bytes."""
        density = size / (SHARES[attempt.quality] * attempt.pixels**PIXEL_POWER)
        earlier = self._densities.get((attempt.encoding, channels), density)
        self._densities[attempt.encoding, channels] = EARLIER_WEIGHT * earlier + (1 - EARLIER_WEIGHT) * density


def first_attempt(picture: PixelSize, format_: UploadFormat, densities: SizeEstimator) -> EncodeAttempt:
    """Return the first attempt for a picture: the best that earlier pictures do not predict to be too large."""
    whole_attempts = _whole_attempts(picture, format_)
    if format_.max_bytes is None:
        return whole_attempts[0]
    for attempt in whole_attempts:
        expected = densities.expected_bytes(attempt, picture.channels)
        doubt = 1.0 if attempt.encoding == "raw" else DOUBT_FACTOR
        if expected is None or expected <= doubt * format_.max_bytes:
            return attempt
    small = _small_attempt(whole_attempts[0], picture)
    expected = densities.expected_bytes(small, picture.channels)
    assert expected is not None  # noqa: S101  # otherwise its whole picture would have been tried
    return _smaller_attempt(small, picture, expected, format_.max_bytes) or whole_attempts[-1]


def next_attempt(attempt: EncodeAttempt, size: int, picture: PixelSize, format_: UploadFormat) -> EncodeAttempt | None:
    """Return the next attempt after one that made ``size`` bytes, too many; None: the picture cannot be smaller."""
    assert format_.max_bytes is not None  # noqa: S101  # without a limit no encoding is too large
    whole_attempts = _whole_attempts(picture, format_)
    if attempt in whole_attempts[:-1]:
        return whole_attempts[whole_attempts.index(attempt) + 1]
    small = _small_attempt(attempt, picture) if attempt in whole_attempts else attempt
    expected = size * SHARES[small.quality] / SHARES[attempt.quality] / TARGET_SHARE
    return _smaller_attempt(small, picture, expected, format_.max_bytes)


def _whole_attempts(picture: PixelSize, format_: UploadFormat) -> list[EncodeAttempt]:
    """Return the attempts with all pixels of a picture, the best quality first."""
    encoding: WrittenEncoding = "jpeg" if format_.encoding == "as-it-came" else format_.encoding
    qualities = [quality for quality in QUALITIES if quality <= format_.best_quality] if encoding == "jpeg" else [0]
    return [EncodeAttempt(encoding, quality, picture.width, picture.height) for quality in qualities]


def _small_attempt(attempt: EncodeAttempt, picture: PixelSize) -> EncodeAttempt:
    """Return the attempt from which smaller ones are made: all pixels, at the quality of smaller pictures."""
    quality = SMALL_QUALITY if attempt.encoding == "jpeg" else 0
    return EncodeAttempt(attempt.encoding, quality, picture.width, picture.height)


def _smaller_attempt(attempt: EncodeAttempt, picture: PixelSize, expected: float, most: int) -> EncodeAttempt | None:
    """Return an attempt with fewer pixels and about ``most`` bytes, if ``attempt`` has ``expected`` bytes.

    None if a side would have less than ``LEAST_SIDE`` pixels.
    """
    if attempt.encoding == "raw":
        share = most / (attempt.pixels * picture.channels)  # exact
    else:
        share = min(MAX_STEP_SHARE, (most / expected) ** (1 / PIXEL_POWER))
    side = max(math.sqrt(share), LEAST_SIDE / min(attempt.width, attempt.height))
    width, height = int(attempt.width * side), int(attempt.height * side)
    if width >= attempt.width or height >= attempt.height:
        return None
    return EncodeAttempt(attempt.encoding, attempt.quality, width, height)
