"""How long the steps of samples take in a worker, as distributions over all samples (a trace shows one frame).

The pipeline records values, and the worker's metrics export the histograms. Those of several workers can be added up.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from math import exp

from halimede.messages import Histogram
from halimede.stats.histogram import GROWTH, HIGHEST, LOWEST, bucket

#: values that are put into buckets at a time
VALUES_AT_ONCE = 256


@dataclass(slots=True, eq=False)
class Distribution:
    """The distribution of one measure: buckets of 5 %, and the exact sum (``total``) and ``count`` of all values.

    Each sample records several values, so buckets are determined for many values at a time.
    """

    total: float = 0.0
    count: int = 0
    _buckets: dict[int, int] = field(default_factory=dict)
    #: values that are not in a bucket yet
    _unsorted: list[float] = field(default_factory=list)

    def record(self, value: float) -> None:
        """Count one value, in milliseconds, or in samples if the measure is the size of a batch."""
        self.total += value
        self.count += 1
        self._unsorted.append(value)
        if len(self._unsorted) >= VALUES_AT_ONCE:
            self._fill_buckets()

    @property
    def histogram(self) -> Histogram:
        """The buckets in the form for messages: the key ``i`` counts the values above 1.05^(i-1) and up to 1.05^i.

        The lowest key counts 0 and all smaller values as well.
        """
        self._fill_buckets()
        return Histogram(buckets={str(index): count for index, count in self._buckets.items()})

    def _fill_buckets(self) -> None:
        """Put new values into their buckets. They are sorted before, so that each bucket costs only one logarithm."""
        unsorted, self._unsorted = self._unsorted, []
        values = sorted(value for value in unsorted if value > 0)
        if len(values) < len(unsorted):
            self._add(LOWEST, len(unsorted) - len(values))
        begin = 0
        while begin < len(values):
            index = bucket(values[begin])
            end = len(values) if index == HIGHEST else bisect_right(values, exp(index * GROWTH), begin)
            end = max(end, begin + 1)  # guard against rounding of the logarithm
            self._add(index, end - begin)
            begin = end

    def _add(self, index: int, count: int) -> None:
        """Count ``count`` more values in the bucket ``index``."""
        self._buckets[index] = self._buckets.get(index, 0) + count


@dataclass(slots=True, eq=False)
class EdgeTimes:
    """Distributions at an edge worker, in milliseconds except for ``batch``.

    Attributes:
        decode: of each frame: from its slot in the pipeline until it was the model's input, with the decoder's queue.
        wait: of each frame: from then until its model call began.
        model: of each model call: its duration.
        offload: of each frame that the next tier answered: from the request to the reply.
        batch: of each model call: its number of samples.

    """

    decode: Distribution = field(default_factory=Distribution)
    wait: Distribution = field(default_factory=Distribution)
    model: Distribution = field(default_factory=Distribution)
    offload: Distribution = field(default_factory=Distribution)
    batch: Distribution = field(default_factory=Distribution)


@dataclass(slots=True, eq=False)
class CloudTimes:
    """Distributions at a cloud worker, in milliseconds except for ``batch``.

    Attributes:
        queue: of each request: from its queueing until its decoding or, without decoding, its model call began.
        decode: of each request: decoding and pre-processing.
        compute: of each model call: its duration.
        total: of each request: from its arrival until the broker acknowledged the reply, or the reply was given up.
        batch: of each model call: its number of samples.

    """

    queue: Distribution = field(default_factory=Distribution)
    decode: Distribution = field(default_factory=Distribution)
    compute: Distribution = field(default_factory=Distribution)
    total: Distribution = field(default_factory=Distribution)
    batch: Distribution = field(default_factory=Distribution)
