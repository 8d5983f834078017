"""What the fetcher and the sources of models exchange: the request, the limits, and the stream of blocks.

``SourceOpener`` is the interface of a source that a caller adds. The origin is the place that a URL names. A validator
is a text that changes with the origin's content, such as an ETag.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from halimede.models.errors import FetchError, FetchReason


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """Limits of one download or upload.

    Attributes:
        connect_s: seconds until the connection is made.
        inactivity_s: seconds without a byte.
        total_s: seconds in all.
        max_bytes: of the content.
        min_rate: least bytes a second over ``rate_window_s`` seconds, without the time in which this node writes.
        rate_window_s: seconds of waiting for the origin after which the rate is judged.

    """

    connect_s: float = 10.0
    inactivity_s: float = 30.0
    total_s: float = 3600.0
    max_bytes: int = 8 * 1024**3
    min_rate: float = 1024.0
    rate_window_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Requester:
    """Who requests a URL: one requester does not see what the cache has for another.

    Attributes:
        key: all that decides what the origin gives: the URL, and for S3 the store and the credentials. It may contain
            a secret, so it must not be stored.
        credentials: there are credentials outside of the URL.

    """

    key: str
    credentials: bool = False


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """A request to an origin for its content, or for the part that is missing here.

    Attributes:
        if_none_match: send nothing if the content still has this validator; empty: send it in any case.
        offset: the first byte to send, because those before are present.
        if_range: the validator of the present bytes: if the content has another one, it is sent from its beginning.
            Empty, with an offset: continue in any case, because a digest will verify the result.

    """

    if_none_match: str = ""
    offset: int = 0
    if_range: str = ""


@dataclass(frozen=True, slots=True)
class Stream:
    """An open source.

    Attributes:
        validator: of the content; empty: the origin gives none.
        size: bytes of the whole content; None: the origin does not report them.
        blocks: the content in pieces of any size; None: the origin's validator is still the request's
            ``if_none_match``. Reading them may raise FetchError.
        offset: where the blocks start: at the requested byte, or at 0 if the origin sends the whole content.

    """

    validator: str
    size: int | None
    blocks: AsyncIterator[bytes] | None
    offset: int = 0


class SourceOpener(Protocol):
    """Opens URLs of a scheme that the fetcher itself does not know. Each URL must name content that never changes."""

    def __call__(
        self, url: str, if_none_match: str, limits: TransferLimits, offset: int, /
    ) -> AbstractAsyncContextManager[Stream]:
        """Return a context manager that opens a URL and closes it. It raises FetchError, and holds the limits.

        ``if_none_match``: the validator of the cached content; empty: none. ``offset``: bytes that are present.
        """


#: seconds over which a rate is averaged, and seconds between two recorded points
RATE_SPAN_S, RATE_STEP_S = 10.0, 0.5


class TransferRate:
    """The bytes a second of a transfer over its last RATE_SPAN_S seconds. ``clock`` returns seconds.

    Bytes that were present when the transfer began do not count.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._points: deque[tuple[float, int]] = deque()

    def update(self, present: int) -> float:
        """Record that ``present`` bytes of the content are here now; return bytes a second, 0 until it is known."""
        now_s = self._clock()
        if self._points and present < self._points[-1][1]:
            self._points.clear()  # the transfer started again
        if not self._points:
            self._points.append((now_s, present))
            return 0.0
        first_s, first_present = self._points[0]
        rate = (present - first_present) / (now_s - first_s) if now_s > first_s else 0.0
        if now_s - self._points[-1][0] >= RATE_STEP_S:
            self._points.append((now_s, present))
            while now_s - self._points[1][0] > RATE_SPAN_S:
                self._points.popleft()
        return rate


async def with_minimum_rate(
    blocks: AsyncIterator[bytes], limits: TransferLimits, shown: str, clock: Callable[[], float]
) -> AsyncIterator[bytes]:
    """Yield the given blocks while they arrive at ``limits.min_rate``. Raises FetchError (TOO_SLOW) when they do not.

    The rate is judged whenever this node has waited ``limits.rate_window_s`` seconds for blocks. ``shown``: the URL as
    errors show it. ``clock`` returns seconds.
    """
    waited_s, received = 0.0, 0
    while True:
        began = clock()
        try:
            async with asyncio.timeout(limits.rate_window_s) as window:
                block = await anext(blocks, None)
        except TimeoutError:
            if not window.expired():
                raise  # the deadline of the source itself
            block = b""  # a keep-alive may hold the connection open without any data
        if block is None:
            return
        waited_s += clock() - began
        received += len(block)
        if waited_s >= limits.rate_window_s:
            if received < waited_s * limits.min_rate or not block:
                text = f"{shown} sends {received / waited_s:.0f} bytes a second, less than {limits.min_rate:g}"
                raise FetchError(FetchReason.TOO_SLOW, text, temporary=True)
            waited_s, received = 0.0, 0
        yield block
