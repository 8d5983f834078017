"""Latency histograms that can be added up: logarithmic buckets of 5 % (DDSketch, arXiv 1908.10693)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from halimede.messages import Histogram

GROWTH = math.log(1.05)
LOWEST, HIGHEST = -200, 300


def bucket(milliseconds: float) -> int:
    """Return a value's bucket (milliseconds; negative, NaN and out-of-range values have the outermost buckets)."""
    if not milliseconds > 0:
        return LOWEST
    if milliseconds == math.inf:
        return HIGHEST
    index = math.ceil(math.log(milliseconds) / GROWTH)
    if index < LOWEST:
        return LOWEST
    return index if index < HIGHEST else HIGHEST  # noqa: FURB136 (called several times a sample: min costs more)


def record(histogram: Histogram, milliseconds: float) -> None:
    """Count one value, in milliseconds."""
    key = str(bucket(milliseconds))
    histogram.buckets[key] = histogram.buckets.get(key, 0) + 1


def merge(histograms: Iterable[Histogram | None]) -> Histogram:
    """Return the sum of histograms."""
    total: dict[str, int] = {}
    for histogram in histograms:
        if histogram is not None:
            for key, count in histogram.buckets.items():
                total[key] = total.get(key, 0) + count
    return Histogram(buckets=total)


def quantile(histogram: Histogram | None, q: float) -> float | None:
    """Return the value in milliseconds below which a share ``q`` (0..1) of the counts lies; None when empty."""
    counts = sorted((int(key), count) for key, count in (histogram.buckets if histogram else {}).items())
    rank = q * sum(count for _, count in counts)
    for index, count in counts:
        rank -= count
        if rank <= 0:
            return math.exp((index - 0.5) * GROWTH)
    return None
