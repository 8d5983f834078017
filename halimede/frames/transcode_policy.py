"""Decides how a sample is encoded for upload: the smallest change that meets the service's format.

A sample that already meets it is sent as received. A picture with too many bytes becomes a JPEG of decreasing quality,
and then a smaller and smaller one; if the service sets an encoding, it stays, and only the picture gets smaller.
Earlier pictures determine the first step: one that was far too large for them is not tried again.

The size of a file is modelled as ``density * share[quality] * pixels ** POWER``: for other qualities and sizes of one
picture this is accurate to about a fifth, so each try is measured and the next one follows from it. Pure:
``halimede.pipeline.transcode`` runs it.
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from halimede.api.deferral import AS_IT_CAME, UploadEncoding

Written = Literal["raw", "jpeg", "png"]

#: JPEG qualities of whole pictures, the best first; that of smaller pictures; bytes relative to the best
QUALITIES, SMALL_QUALITY = (90, 75, 50), 75
SHARES = {90: 1.0, 75: 0.6, 50: 0.4, 0: 1.0}
#: half the pixels have more than half the bytes: the rest has more detail per pixel
POWER = 0.85
#: a step is skipped only if earlier pictures predict a size too large by this factor
DOUBT = 1.5
#: target of the next try, as a share of the allowed bytes
AIM = 0.95
#: most pixels of a smaller picture, as a share of the try before
SMALLER = 0.9
#: least side of a picture in pixels, and most tries
LEAST_SIDE, MOST_TRIES = 8, 10
#: bytes for topic, properties and the other fields of a request, such as the edge's prediction
REQUEST_BYTES = 64 * 1024
#: weight of the earlier density in the running mean
KEPT = 0.7


class UploadFormat(Struct, frozen=True, kw_only=True, gc=False):
    """The upload format of a service: encoding, and maximum bytes of a sample.

    ``max_packet``: the broker's limit of a message, if ``max_bytes`` follows from it; else 0. ``best_quality``: of a
    JPEG, at most.
    """

    encoding: UploadEncoding = AS_IT_CAME
    max_bytes: int | None = None
    max_packet: int = 0
    best_quality: int = QUALITIES[0]

    @property
    def limit_text(self) -> str:
        """The limit for people: that of the service, or of the broker."""
        if self.max_packet:
            return f"the broker's limit of {self.max_packet} bytes a message"
        return f"maxBytes {self.max_bytes}"

    def within_packet(self, max_packet: int) -> UploadFormat:
        """Return this format with samples that fit into a packet of ``max_packet`` bytes."""
        limit = max(max_packet - REQUEST_BYTES, 0)
        if self.max_bytes is not None and self.max_bytes <= limit:
            return self
        return replace(self, max_bytes=limit, max_packet=max_packet)

    def met(self, encoding: str, size: int) -> bool:
        """Whether a frame of this encoding and size is uploaded unchanged."""
        return self.encoding in {AS_IT_CAME, encoding} and self.fits(size)

    def fits(self, size: int) -> bool:
        """Whether a sample of this size may be uploaded."""
        return self.max_bytes is None or size <= self.max_bytes


class PixelSize(Struct, frozen=True, gc=False):
    """Pixels of a picture, and bytes per pixel."""

    width: int
    height: int
    channels: int

    @property
    def pixels(self) -> int:
        """The number of pixels."""
        return self.width * self.height


class EncodeAttempt(Struct, frozen=True, gc=False):
    """One encoding of a picture. ``quality`` is 0 if the encoding has none."""

    encoding: Written
    quality: int
    width: int
    height: int

    @property
    def pixels(self) -> int:
        """The number of encoded pixels."""
        return self.width * self.height


class SizeEstimator:
    """Bytes per pixel of recent pictures, by encoding and channels."""

    def __init__(self) -> None:
        self._known: dict[tuple[Written, int], float] = {}

    def expected(self, made: EncodeAttempt, channels: int) -> float | None:
        """Return the expected bytes; None without earlier pictures of the kind."""
        if made.encoding == "raw":
            return float(made.pixels * channels)
        density = self._known.get((made.encoding, channels))
        return None if density is None else density * SHARES[made.quality] * made.pixels**POWER

    def learn(self, made: EncodeAttempt, channels: int, size: int) -> None:
        """Record the size of an encoded picture."""
        found = size / (SHARES[made.quality] * made.pixels**POWER)
        known = self._known.get((made.encoding, channels), found)
        self._known[made.encoding, channels] = KEPT * known + (1 - KEPT) * found


def first(picture: PixelSize, wish: UploadFormat, densities: SizeEstimator) -> EncodeAttempt:
    """Return the first encoding to try for a picture."""
    whole = _whole(picture, wish)
    if wish.max_bytes is None:
        return whole[0]
    for made in whole:
        expected = densities.expected(made, picture.channels)
        doubt = 1.0 if made.encoding == "raw" else DOUBT
        if expected is None or expected <= doubt * wish.max_bytes:
            return made
    small = _small(whole[0], picture)
    expected = densities.expected(small, picture.channels)
    assert expected is not None  # noqa: S101  # otherwise its whole picture would have been tried
    return _smaller(small, picture, expected, wish.max_bytes) or whole[-1]


def following(made: EncodeAttempt, size: int, picture: PixelSize, wish: UploadFormat) -> EncodeAttempt | None:
    """Return the next encoding to try after one that was too large; None: no more."""
    assert wish.max_bytes is not None  # noqa: S101  # without a limit no encoding is too large
    whole = _whole(picture, wish)
    if made in whole[:-1]:
        return whole[whole.index(made) + 1]
    small = _small(made, picture) if made in whole else made
    expected = size * SHARES[small.quality] / SHARES[made.quality] / AIM
    return _smaller(small, picture, expected, wish.max_bytes)


def _whole(picture: PixelSize, wish: UploadFormat) -> list[EncodeAttempt]:
    """Return the encodings of all its pixels, the best first."""
    encoding: Written = "jpeg" if wish.encoding == "as-it-came" else wish.encoding
    qualities = [quality for quality in QUALITIES if quality <= wish.best_quality] if encoding == "jpeg" else [0]
    return [EncodeAttempt(encoding, quality, picture.width, picture.height) for quality in qualities]


def _small(made: EncodeAttempt, picture: PixelSize) -> EncodeAttempt:
    """Return the encoding for smaller pictures, at full size."""
    quality = SMALL_QUALITY if made.encoding == "jpeg" else 0
    return EncodeAttempt(made.encoding, quality, picture.width, picture.height)


def _smaller(made: EncodeAttempt, picture: PixelSize, expected: float, most: int) -> EncodeAttempt | None:
    """Return a smaller picture with about ``most`` bytes, if ``made`` has ``expected`` bytes."""
    if made.encoding == "raw":
        share = most / (made.pixels * picture.channels)  # exact
    else:
        share = min(SMALLER, (most / expected) ** (1 / POWER))
    side = max(math.sqrt(share), LEAST_SIDE / min(made.width, made.height))
    width, height = int(made.width * side), int(made.height * side)
    return (
        EncodeAttempt(made.encoding, made.quality, width, height)
        if width < made.width and height < made.height
        else None
    )
