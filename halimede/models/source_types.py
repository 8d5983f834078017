"""What every source of models gives, the bounds that each keeps, and how a source of another kind is plugged in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


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
    """Who asks for a URL: what the cache knows of one is not told to another.

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
    """An open source. ``blocks`` is None when the origin says that nothing has changed since ``known``.

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
