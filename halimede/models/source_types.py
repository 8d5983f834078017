"""What every source of models gives, the bounds and rate that each keeps, and how another kind of source is added."""

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
    """Bounds of one download: seconds to connect, without a byte, and in all; bytes; bytes a second over a window.

    The rate is that of the origin: time in which this node writes does not count.
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

    ``key`` is everything that decides what the origin gives, and must not be written: a URL that opens by itself, or
    one with the store and the credentials that open it. ``credentials`` says whether there are any beside the URL.
    """

    key: str
    credentials: bool = False


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """What an origin is asked for: all that differs from ``known``, a mark, beginning at ``offset``.

    ``mark`` is that of the content whose beginning is here. With an offset and without a mark, whatever comes is
    verified by its digest.
    """

    known: str = ""
    offset: int = 0
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Stream:
    """An open source. ``blocks`` is None if the origin reports no change since ``known``.

    They begin at ``offset``: what was asked for, or 0 when the origin begins anew. ``size`` is that of the whole.
    """

    mark: str
    size: int | None
    blocks: AsyncIterator[bytes] | None
    offset: int = 0


class SourceOpener(Protocol):
    """Opens URLs of a scheme that is not the fetcher's own. Its URLs name their content: it never changes.

    ``offset`` bytes are here already; ``known`` is the mark of what the cache has. It raises FetchError, and bounds its
    waits by the limits.
    """

    def __call__(
        self, url: str, known: str, limits: TransferLimits, offset: int, /
    ) -> AbstractAsyncContextManager[Stream]:
        """Open a URL."""


#: seconds that a speed is the mean of, and between two of the points that it is made from
SPAN_S, STEP_S = 10.0, 0.5


class TransferRate:
    """Bytes a second over the last ten seconds, from the progress of a transfer. A resumed part does not count."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._points: deque[tuple[float, int]] = deque()

    def update(self, done: int) -> float:
        """Note how many bytes are here; return bytes a second, 0 until it can be said."""
        now = self._now()
        if self._points and done < self._points[-1][1]:
            self._points.clear()  # it began anew
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
    """Pass blocks on while they come at the least rate, measured over windows of the time spent waiting for them."""
    waited, came = 0.0, 0
    while True:
        began = now()
        try:
            async with asyncio.timeout(limits.rate_window_s) as window:
                block = await anext(blocks, None)
        except TimeoutError:
            if not window.expired():
                raise  # the source's own
            block = b""  # what keeps its connection awake may still send nothing
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
