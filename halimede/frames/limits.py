"""Bounds of a cloud worker, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of a cloud worker.

    ``queue`` and ``queue_bytes`` bound what waits, ``batch`` and ``pixels`` (bytes of decoded frames) what is taken
    at once, ``replies`` what waits for the broker's acknowledgement. ``horizon_s``: credits and batches are kept to
    what takes about this long, so that a slow model is known as slow before its queue is full of samples that will be
    too late. ``delay_s``: how long a sample may wait for others to be answered with.
    """

    queue: int = 64
    queue_bytes: int = 256 * 1024 * 1024
    batch: int = 32
    pixels: int = 256 * 1024 * 1024
    replies: int = 128
    horizon_s: float = 1.0
    delay_s: float = 0.0


@dataclass(slots=True)
class ServerStats:
    """Counts since the start. ``refused``: no room; ``expired``: nobody waited any more; ``failed``: no prediction.

    ``unfit``: those of the failed that were to blame themselves, unreadable or of the wrong shape.
    """

    served: int = 0
    batches: int = 0
    refused: int = 0
    expired: int = 0
    failed: int = 0
    unfit: int = 0
