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
class Stream:
    """An open source. ``blocks`` is None when the origin says that nothing has changed since ``known``."""

    mark: str
    size: int | None
    blocks: AsyncIterator[bytes] | None
