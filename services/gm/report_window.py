"""The counts of the last minute: a few samples of each node's counts, taken in even steps of a monotonic clock."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from halimede.names import Key

#: seconds between two samples, and seconds of the window
STEP_S, WINDOW_S = 5.0, 60.0
#: samples of one node's counts: both ends of the window
SAMPLES = int(WINDOW_S / STEP_S) + 1
#: seconds by which the times between two reports may differ by the clocks of GM and node: each is known to a step
TOLERANCE_S = 2 * STEP_S


class CountSample(NamedTuple):
    """The counts of a service on a node, and the node's time of counting them."""

    key: Key
    node: str
    answered: int
    degraded: int
    counted_at: str


@dataclass(slots=True)
class AnswerTotals:
    """Answers of a service in the window."""

    answered: int = 0
    degraded: int = 0


@dataclass(slots=True)
class CountHistory:
    """The last counts of a service on a node, the answers of each step, and by how much the node's clock is ahead.

    ``counts``: answered and degraded, None before the first sample. ``counted_s``: the seconds of the node's clock at
    their counting; NaN if it names no time. ``received_s``: when the last report came, by GM's clock. ``offset_s`` is
    None unless as much time passed on both clocks between the last two reports: after an outage a node sends an old
    report again.
    """

    #: answered and degraded in turns, of each step: there may be thousands of nodes, and an array is small
    steps: array[float] = field(default_factory=lambda: array("d"))
    counts: tuple[int, int] | None = None
    counted_at: str = ""
    counted_s: float = math.nan
    received_s: float = 0.0
    offset_s: float | None = None

    def add(self, sample: CountSample, now_s: float) -> None:
        """Add the counts of this step; they are those of the step before if no report came since."""
        before_s = self.counted_s
        if sample.counted_at != self.counted_at:
            self.counted_s = _seconds(sample.counted_at)
            agrees = abs((self.counted_s - before_s) - (now_s - self.received_s)) <= TOLERANCE_S
            self.offset_s = self.counted_s - now_s if agrees else None
            self.counted_at, self.received_s = sample.counted_at, now_s
        elif now_s - self.received_s > WINDOW_S:
            self.offset_s = None
        if self.counts:
            # a count that fell belongs to a worker that lost its own; one of longer than the window is not recent
            answered, degraded = sample.answered - self.counts[0], sample.degraded - self.counts[1]
            is_recent = answered > 0 and degraded >= 0 and not self.counted_s - before_s > WINDOW_S
            self.steps.extend((answered, degraded) if is_recent else (0, 0))
            del self.steps[: -2 * (SAMPLES - 1)]
        self.counts = sample.answered, sample.degraded


class ReportWindow:
    """Keeps the last samples of each service on each node; a service or node that reports no more is dropped."""

    def __init__(self) -> None:
        self._histories: dict[tuple[Key, str], CountHistory] = {}
        #: of the present samples; None until they are read
        self._totals: dict[Key, AnswerTotals] | None = None
        #: seconds by which a node's clock is ahead, by node
        self.clock_offsets: dict[str, float] = {}

    def record(self, samples: Iterable[CountSample], now: datetime) -> None:
        """Add the present samples; ``now`` is GM's clock, against which the nodes' clocks are compared."""
        recorded: dict[tuple[Key, str], CountHistory] = {}
        offsets: dict[str, float] = {}
        for sample in samples:
            history = recorded[sample.key, sample.node] = (
                self._histories.get((sample.key, sample.node)) or CountHistory()
            )
            history.add(sample, now.timestamp())
            offset_s = history.offset_s
            if offset_s is not None and abs(offset_s) < abs(offsets.get(sample.node, math.inf)):
                offsets[sample.node] = offset_s
        self._histories, self._totals, self.clock_offsets = recorded, None, offsets

    def totals(self) -> Mapping[Key, AnswerTotals]:
        """Return the answers of each service in the window."""
        if self._totals is None:
            self._totals = self._sums()
        return self._totals

    def _sums(self) -> dict[Key, AnswerTotals]:
        totals: dict[Key, AnswerTotals] = {}
        for (key, _), history in self._histories.items():
            total = totals.setdefault(key, AnswerTotals())
            total.answered += int(sum(history.steps[::2]))
            total.degraded += int(sum(history.steps[1::2]))
        return totals


def _seconds(counted_at: str) -> float:
    """Return the seconds of a time since 1970; NaN if the text names none."""
    try:
        return datetime.fromisoformat(counted_at).timestamp()
    except (ValueError, OverflowError):
        return math.nan
