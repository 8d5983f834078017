"""The counts of the last minute: a few samples of each node's counts, taken in even steps of a monotonic clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
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


class CountPoint(NamedTuple):
    """The counts at one step, and the seconds of the node's clock at their counting; NaN if it names no time."""

    answered: int
    degraded: int
    counted_s: float


@dataclass(slots=True)
class CountHistory:
    """The last counts of a service on a node, and by how much the node's clock is ahead.

    ``received_s``: when the last report came, by GM's clock. ``offset_s`` is None unless as much time passed on both
    clocks between the last two reports: after an outage a node sends an old report again.
    """

    points: deque[CountPoint] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    counted_at: str = ""
    received_s: float = 0.0
    offset_s: float | None = None

    def add(self, sample: CountSample, now_s: float) -> None:
        """Add the counts of this step; they are those of the step before if no report came since."""
        counted_s = before_s = self.points[-1].counted_s if self.points else math.nan
        if sample.counted_at != self.counted_at:
            counted_s = _seconds(sample.counted_at)
            agrees = abs((counted_s - before_s) - (now_s - self.received_s)) <= TOLERANCE_S
            self.offset_s = counted_s - now_s if agrees else None
            self.counted_at, self.received_s = sample.counted_at, now_s
        elif now_s - self.received_s > WINDOW_S:
            self.offset_s = None
        self.points.append(CountPoint(sample.answered, sample.degraded, counted_s))


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
            for before, after in pairwise(history.points):
                # a count that fell belongs to a worker that lost its own; one of longer than the window is not recent
                answered, degraded = after.answered - before.answered, after.degraded - before.degraded
                is_old = after.counted_s - before.counted_s > WINDOW_S
                if answered > 0 and degraded >= 0 and not is_old:
                    total.answered += answered
                    total.degraded += degraded
        return totals


def _seconds(counted_at: str) -> float:
    """Return the seconds of a time since 1970; NaN if the text names none."""
    try:
        return datetime.fromisoformat(counted_at).timestamp()
    except (ValueError, OverflowError):
        return math.nan
