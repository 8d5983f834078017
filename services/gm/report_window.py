"""Answers of services in the last minute (``ReportWindow``), from counts that nodes report, and their clocks' offsets.

The counts of each service on each node are read in even steps of 5 s of a monotonic clock; differences are answers.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from halimede.names import Key

#: seconds between two readings of the counts, and seconds of the window
STEP_S, WINDOW_S = 5.0, 60.0
#: readings of one node's counts in the window, with both ends
SAMPLES = int(WINDOW_S / STEP_S) + 1
#: seconds by which the time between two reports may differ between the clocks of GM and node: each is known to a step
TOLERANCE_S = 2 * STEP_S


class CountSample(NamedTuple):
    """One reading of the counts of a service on a node.

    Attributes:
        key: of the service.
        node: name of the node.
        answered: answers since the worker's counters began.
        degraded: those of them that the edge gave alone though the sample was hard.
        counted_at: the node's time of counting, in RFC 3339; empty: unknown.

    """

    key: Key
    node: str
    answered: int
    degraded: int
    counted_at: str


@dataclass(slots=True)
class AnswerTotals:
    """The number of answers of a service in the window; ``degraded``: of hard samples that the edge answered alone."""

    answered: int = 0
    degraded: int = 0


@dataclass(slots=True)
class CountHistory:
    """The answers of a service on a node in each step, and by how much the node's clock is ahead of GM's.

    Attributes:
        steps: answered and degraded in turns, of each step (an array is small, and there may be thousands of nodes).
        counts: the last answered and degraded; None before the first reading.
        counted_at: the node's time of counting them, in RFC 3339; empty: unknown.
        counted_s: the node's time of counting them, in seconds since 1970; NaN: unknown.
        received_s: when they came first, by GM's clock, in seconds since 1970.
        offset_s: seconds by which the node's clock is ahead; negative: behind. None: unknown, because different times
            passed on both clocks between the last two reports: after an outage a node sends an old report again.

    """

    steps: array[float] = field(default_factory=lambda: array("d"))
    counts: tuple[int, int] | None = None
    counted_at: str = ""
    counted_s: float = math.nan
    received_s: float = 0.0
    offset_s: float | None = None

    def add(self, sample: CountSample, now_s: float) -> None:
        """Add a reading, at GM's time in seconds since 1970. Without a new report it equals the reading before."""
        before_s = self.counted_s
        if sample.counted_at != self.counted_at:
            self.counted_s = _seconds(sample.counted_at)
            agrees = abs((self.counted_s - before_s) - (now_s - self.received_s)) <= TOLERANCE_S
            self.offset_s = self.counted_s - now_s if agrees else None
            self.counted_at, self.received_s = sample.counted_at, now_s
        elif now_s - self.received_s > WINDOW_S:
            self.offset_s = None
        if self.counts:
            # A count that fell is of a worker that lost its own. Answers of more time than the window are not recent;
            # an unknown time is NaN, of which ``not >`` is true: they count.
            answered, degraded = sample.answered - self.counts[0], sample.degraded - self.counts[1]
            is_recent = answered > 0 and degraded >= 0 and not self.counted_s - before_s > WINDOW_S
            self.steps.extend((answered, degraded) if is_recent else (0, 0))
            del self.steps[: -2 * (SAMPLES - 1)]
        self.counts = sample.answered, sample.degraded


class ReportWindow:
    """Keeps the history of each service on each node; a history without a reading in the last step is dropped."""

    def __init__(self) -> None:
        self._histories: dict[tuple[Key, str], CountHistory] = {}
        #: the sums of the present histories; None until they are needed
        self._totals: dict[Key, AnswerTotals] | None = None
        #: seconds by which each node's clock is ahead (negative: behind); nodes with an unknown offset are left out
        self.clock_offsets: dict[str, float] = {}

    def record(self, samples: Iterable[CountSample], now: datetime) -> None:
        """Add the readings of one step, at ``now`` by GM's clock, with which the nodes' clocks are compared.

        If several services on a node show different offsets, the smallest one counts.
        """
        recorded: dict[tuple[Key, str], CountHistory] = {}
        offsets: dict[str, float] = {}
        for sample in samples:
            service_on_node = sample.key, sample.node
            history = recorded[service_on_node] = self._histories.get(service_on_node) or CountHistory()
            history.add(sample, now.timestamp())
            offset_s = history.offset_s
            if offset_s is not None and abs(offset_s) < abs(offsets.get(sample.node, math.inf)):
                offsets[sample.node] = offset_s
        self._histories, self._totals, self.clock_offsets = recorded, None, offsets

    def totals(self) -> Mapping[Key, AnswerTotals]:
        """Return the answers of each service in the last minute, on all nodes together."""
        if self._totals is None:
            self._totals = self._sums()
        return self._totals

    def _sums(self) -> dict[Key, AnswerTotals]:
        """Add up the steps of all nodes, by service."""
        totals: dict[Key, AnswerTotals] = {}
        for (key, _), history in self._histories.items():
            total = totals.setdefault(key, AnswerTotals())
            total.answered += int(sum(history.steps[::2]))
            total.degraded += int(sum(history.steps[1::2]))
        return totals


def _seconds(counted_at: str) -> float:
    """Return a time in RFC 3339 as seconds since 1970; NaN if the text is no such time."""
    try:
        return datetime.fromisoformat(counted_at).timestamp()
    except (ValueError, OverflowError):
        return math.nan
