"""How long the steps of the sample path take, as distributions that add up. Written on the event loop, read by metrics.

A trace shows one frame, these show all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from math import exp

from halimede.messages import Histogram
from halimede.stats.histogram import GROWTH, HIGHEST, LOWEST, bucket

#: values that are put into buckets at once
AT_ONCE = 256


@dataclass(slots=True, eq=False)
class Distribution:
    """Values of one kind: buckets of 5 %, their exact sum and count.

    Several are written for each sample, so their buckets are found for many at once.
    """

    total: float = 0.0
    count: int = 0
    _buckets: dict[int, int] = field(default_factory=dict)
    #: values without a bucket so far
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
        """The buckets as they travel: see ``halimede.stats.histogram``."""
        self._sort()
        return Histogram(buckets={str(index): count for index, count in self._buckets.items()})

    def _sort(self) -> None:
        """Find buckets: values in order share one up to its upper end, so few logarithms are taken."""
        late, self._late = self._late, []
        values = sorted(value for value in late if value > 0)
        if len(values) < len(late):
            self._add(LOWEST, len(late) - len(values))
        at = 0
        while at < len(values):
            index = bucket(values[at])
            end = len(values) if index == HIGHEST else bisect_right(values, exp(index * GROWTH), at)
            end = max(end, at + 1)  # the last bit of a logarithm
            self._add(index, end - at)
            at = end

    def _add(self, index: int, count: int) -> None:
        self._buckets[index] = self._buckets.get(index, 0) + count


@dataclass(slots=True, eq=False)
class EdgeTimes:
    """An edge worker's, in milliseconds; ``model`` and ``batch`` (samples) count model calls, the others frames.

    ``decode``: there was room until it was the model's input, waiting for the decoder included; ``wait``: until its
    model call began; ``model``: that call; ``offload``: asked until answered well.
    """

    decode: Distribution = field(default_factory=Distribution)
    wait: Distribution = field(default_factory=Distribution)
    model: Distribution = field(default_factory=Distribution)
    offload: Distribution = field(default_factory=Distribution)
    batch: Distribution = field(default_factory=Distribution)


@dataclass(slots=True, eq=False)
class CloudTimes:
    """A cloud worker's, in milliseconds; ``compute`` and ``batch`` (samples) count model calls, the others frames.

    ``queue``: arrived until its batch began; ``decode``; ``compute``: one model call; ``total``: arrived until the
    broker had taken the reply.
    """

    queue: Distribution = field(default_factory=Distribution)
    decode: Distribution = field(default_factory=Distribution)
    compute: Distribution = field(default_factory=Distribution)
    total: Distribution = field(default_factory=Distribution)
    batch: Distribution = field(default_factory=Distribution)
