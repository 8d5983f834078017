"""What every source of models gives, and the bounds that each keeps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one download: seconds to connect, without a byte, and in all; bytes."""

    connect_s: float = 10.0
    inactivity_s: float = 30.0
    total_s: float = 3600.0
    max_bytes: int = 8 * 1024**3


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks for a URL: what the cache knows of one is not told to another.

    ``key`` is everything that decides what the origin gives, and must not be written: a URL that opens by itself, or
    one with the store and the credentials that open it. ``credentials`` says whether there are any beside the URL.
    """

    key: str
    credentials: bool = False


@dataclass(frozen=True, slots=True)
class Stream:
    """An open source. ``blocks`` is None when the origin says that nothing has changed since ``known``."""

    mark: str
    size: int | None
    blocks: AsyncIterator[bytes] | None
