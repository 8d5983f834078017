"""Latencies of the steps of the sample path, as mergeable distributions. The event loop writes, metrics read.

A trace shows one frame; these show all frames.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from math import exp

from halimede.messages import Histogram
from halimede.stats.histogram import GROWTH, HIGHEST, LOWEST, bucket

#: values that are added to buckets at a time
AT_ONCE = 256


@dataclass(slots=True, eq=False)
class Distribution:
    """Values of one kind: buckets of 5 %, their exact sum and count.

    Several are recorded for each sample, so their buckets are determined for many values at a time.
    """

    total: float = 0.0
    count: int = 0
    _buckets: dict[int, int] = field(default_factory=dict)
    #: values without a bucket yet
    _late: list[float] = field(default_factory=list)

    def record(self, value: float) -> None:
        """Count one value (milliseconds, or samples in a batch)."""
        self.total += value
        self.count += 1
        late = self._late
        late.append(value)
        if len(late) >= AT_ONCE:
            self._sort()

    @property
    def histogram(self) -> Histogram:
        """The buckets in the form for messages: see ``halimede.stats.histogram``."""
        self._sort()
        return Histogram(buckets={str(index): count for index, count in self._buckets.items()})

    def _sort(self) -> None:
        """Determine buckets: sorted values share one up to its upper end, so few logarithms are computed."""
        late, self._late = self._late, []
        values = sorted(value for value in late if value > 0)
        if len(values) < len(late):
            self._add(LOWEST, len(late) - len(values))
        at = 0
        while at < len(values):
            index = bucket(values[at])
            end = len(values) if index == HIGHEST else bisect_right(values, exp(index * GROWTH), at)
            end = max(end, at + 1)  # guard against rounding of the logarithm
            self._add(index, end - at)
            at = end

    def _add(self, index: int, count: int) -> None:
        self._buckets[index] = self._buckets.get(index, 0) + count


@dataclass(slots=True, eq=False)
class EdgeTimes:
    """Milliseconds at an edge worker; ``model`` and ``batch`` (samples) count model calls, others frames.

    ``decode``: from a free slot until it was the model's input, waiting for the decoder included; ``wait``: until its
    model call began; ``model``: that call; ``offload``: from the request to a good answer.
    """

    decode: Distribution = field(default_factory=Distribution)
    wait: Distribution = field(default_factory=Distribution)
    model: Distribution = field(default_factory=Distribution)
    offload: Distribution = field(default_factory=Distribution)
    batch: Distribution = field(default_factory=Distribution)


@dataclass(slots=True, eq=False)
class CloudTimes:
    """Milliseconds at a cloud worker; ``compute``, ``batch`` (samples) count model calls, others frames.

    ``queue``: from arrival until its batch began; ``decode``; ``compute``: one model call; ``total``: from arrival
    until the broker accepted the reply.
    """

    queue: Distribution = field(default_factory=Distribution)
    decode: Distribution = field(default_factory=Distribution)
    compute: Distribution = field(default_factory=Distribution)
    total: Distribution = field(default_factory=Distribution)
    batch: Distribution = field(default_factory=Distribution)
