"""The stream of a source of models, the limits of a download, and the interface of additional sources."""

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
    """Limits of one download: seconds to connect, without a byte, and in all; bytes; bytes a second over a window.

    The rate is the origin's: the time in which this node writes does not count.
    """

    connect_s: float = 10.0
    inactivity_s: float = 30.0
    total_s: float = 3600.0
    max_bytes: int = 8 * 1024**3
    min_rate: float = 1024.0
    rate_window_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Requester:
    """The requester of a URL: the cache does not share one requester's entries with another.

    ``key`` contains everything that decides what the origin gives, and must not be stored: a URL with a secret, or a
    URL with the store and its credentials. ``credentials``: whether there are any outside of the URL.
    """

    key: str
    credentials: bool = False


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """A request to an origin: the content unless ``if_none_match`` is its validator, starting at ``offset``.

    ``if_range`` is that of the content whose first bytes are present. With an offset and without one, a digest verifies
    the result.
    """

    if_none_match: str = ""
    offset: int = 0
    if_range: str = ""


@dataclass(frozen=True, slots=True)
class Stream:
    """An open source. ``blocks`` is None if the origin reports no change since ``if_none_match``.

    They start at ``offset``: the requested one, or 0 if the origin starts again. ``size`` is that of the whole content.
    """

    validator: str
    size: int | None
    blocks: AsyncIterator[bytes] | None
    offset: int = 0


class SourceOpener(Protocol):
    """Opens URLs of a scheme that the fetcher itself does not know. Such a URL names content that never changes.

    ``offset`` bytes are present already; ``if_none_match`` is the validator of the cached content. It raises
    FetchError, and obeys the limits.
    """

    def __call__(
        self, url: str, if_none_match: str, limits: TransferLimits, offset: int, /
    ) -> AbstractAsyncContextManager[Stream]:
        """Open a URL."""


#: seconds over which a rate is averaged, and seconds between two of its points
SPAN_S, STEP_S = 10.0, 0.5


class TransferRate:
    """Bytes a second over the last ten seconds of a transfer. A resumed part does not count."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._points: deque[tuple[float, int]] = deque()

    def update(self, done: int) -> float:
        """Record the bytes present; return bytes a second, 0 until it is known."""
        now = self._now()
        if self._points and done < self._points[-1][1]:
            self._points.clear()  # the transfer started again
        if not self._points:
            self._points.append((now, done))
            return 0.0
        first_at, first = self._points[0]
        rate = (done - first) / (now - first_at) if now > first_at else 0.0
        if now - self._points[-1][0] >= STEP_S:
            self._points.append((now, done))
            while now - self._points[1][0] > SPAN_S:
                self._points.popleft()
        return rate


async def not_slower(
    blocks: AsyncIterator[bytes], limits: TransferLimits, shown: str, now: Callable[[], float]
) -> AsyncIterator[bytes]:
    """Yield blocks while they arrive at the minimum rate, over windows of the time spent waiting for them."""
    waited, came = 0.0, 0
    while True:
        began = now()
        try:
            async with asyncio.timeout(limits.rate_window_s) as window:
                block = await anext(blocks, None)
        except TimeoutError:
            if not window.expired():
                raise  # the deadline of the source itself
            block = b""  # a keep-alive may hold the connection open without any data
        if block is None:
            return
        waited += now() - began
        came += len(block)
        if waited >= limits.rate_window_s:
            if came < waited * limits.min_rate or not block:
                text = f"{shown} sends {came / waited:.0f} bytes a second, less than {limits.min_rate:g}"
                raise FetchError(FetchReason.TOO_SLOW, text, temporary=True)
            waited, came = 0.0, 0
        yield block
