"""Latency histograms that can be added up: logarithmic buckets of 5 % (DDSketch, arXiv 1908.10693).

Bucket ``i`` counts the values above 1.05^(i-1) and up to 1.05^i milliseconds; the outermost buckets count all smaller
and all larger values as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from halimede.messages import Histogram

#: logarithm of the factor from one bucket's upper limit to the next
GROWTH = math.log(1.05)
#: the outermost buckets: 0.06 microseconds, 38 minutes
LOWEST, HIGHEST = -200, 300


def bucket(milliseconds: float) -> int:
    """Return the bucket that counts a value: from LOWEST (also for 0, negative numbers and NaN) to HIGHEST."""
    if not milliseconds > 0:
        return LOWEST
    if milliseconds == math.inf:
        return HIGHEST
    index = math.ceil(math.log(milliseconds) / GROWTH)
    if index < LOWEST:
        return LOWEST
    return index if index < HIGHEST else HIGHEST  # noqa: FURB136 (called several times a sample: min costs more)


def record(histogram: Histogram, milliseconds: float) -> None:
    """Add one to the bucket of a value."""
    key = str(bucket(milliseconds))
    histogram.buckets[key] = histogram.buckets.get(key, 0) + 1


def merge(histograms: Iterable[Histogram | None]) -> Histogram:
    """Return a new histogram with the sum of the counts; None among ``histograms`` stands for an empty one."""
    total: dict[str, int] = {}
    for histogram in histograms:
        if histogram is not None:
            for key, count in histogram.buckets.items():
                total[key] = total.get(key, 0) + count
    return Histogram(buckets=total)


def quantile(histogram: Histogram | None, q: float) -> float | None:
    """Return the value in milliseconds below which a share ``q`` (0..1) of the counts lies; None without counts."""
    counts = sorted((int(key), count) for key, count in (histogram.buckets if histogram else {}).items())
    rank = q * sum(count for _, count in counts)
    for index, count in counts:
        rank -= count
        if rank <= 0:
            return math.exp((index - 0.5) * GROWTH)
    return None
