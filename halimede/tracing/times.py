"""How long the steps of the sample path take, as distributions that add up. Written on the event loop, read by metrics.

A trace shows one frame, these show all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from halimede.histogram import bucket
from halimede.messages import Histogram


@dataclass(slots=True, eq=False)
class Distribution:
    """Values of one kind: buckets of 5 %, their exact sum and count."""

    total: float = 0.0
    count: int = 0
    _buckets: dict[int, int] = field(default_factory=dict)

    def record(self, value: float) -> None:
        """Count one value (milliseconds, or samples in a batch)."""
        index = bucket(value)
        self._buckets[index] = self._buckets.get(index, 0) + 1
        self.total += value
        self.count += 1

    @property
    def histogram(self) -> Histogram:
        """The buckets as they travel: see ``halimede.histogram``."""
        return Histogram(buckets={str(index): count for index, count in self._buckets.items()})


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
