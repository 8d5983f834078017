"""The counts of the last minute: a few samples of each node's counts, taken in even steps of a monotonic clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from halimede.names import Key

#: seconds between two samples, and seconds of the window
STEP_S, WINDOW_S = 5.0, 60.0
#: samples of one node's counts: both ends of the window
SAMPLES = int(WINDOW_S / STEP_S) + 1
#: consecutive samples, each of a new report, that prove that a node reports now
SAMPLES_OF_CLOCK = 3


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


class ReportWindow:
    """Keeps the last samples of each service on each node; a service or node that reports no more is dropped."""

    def __init__(self) -> None:
        self._samples: dict[tuple[Key, str], deque[CountSample]] = {}
        #: seconds by which a node's clock is ahead, by node
        self.clock_offsets: dict[str, float] = {}

    def record(self, samples: Iterable[CountSample], now: datetime) -> None:
        """Add the present samples; ``now`` is GM's clock, against which the nodes' clocks are compared."""
        recorded: dict[tuple[Key, str], deque[CountSample]] = {}
        offsets: dict[str, float] = {}
        for sample in samples:
            of_node = (sample.key, sample.node)
            history = self._samples.get(of_node) or deque(maxlen=SAMPLES)
            history.append(sample)
            recorded[of_node] = history
            offset_s = _offset_s(history, now)
            if offset_s is not None and abs(offset_s) < abs(offsets.get(sample.node, float("inf"))):
                offsets[sample.node] = offset_s
        self._samples, self.clock_offsets = recorded, offsets

    def totals(self) -> dict[Key, AnswerTotals]:
        """Return the answers of each service in the window."""
        totals: dict[Key, AnswerTotals] = {}
        for (key, _), history in self._samples.items():
            total = totals.setdefault(key, AnswerTotals())
            for before, after in pairwise(history):
                # a count that fell belongs to a worker that lost its own; one of longer than the window is not recent
                answered, degraded = after.answered - before.answered, after.degraded - before.degraded
                if answered > 0 and degraded >= 0 and _span_s(before, after) <= WINDOW_S:
                    total.answered += answered
                    total.degraded += degraded
        return totals


def _span_s(before: CountSample, after: CountSample) -> float:
    """Return the seconds between two samples by the node's own clock."""
    try:
        span = datetime.fromisoformat(after.counted_at) - datetime.fromisoformat(before.counted_at)
    except (ValueError, TypeError):
        return 0.0
    return span.total_seconds()


def _offset_s(history: deque[CountSample], now: datetime) -> float | None:
    """Return by how much a node's clock is ahead; None unless its last two samples are new reports.

    After an outage a node sends an old report again, once.
    """
    times = {sample.counted_at for sample in list(history)[-SAMPLES_OF_CLOCK:]}
    if len(times) < SAMPLES_OF_CLOCK:
        return None
    try:
        return (datetime.fromisoformat(history[-1].counted_at) - now).total_seconds()
    except (ValueError, TypeError):
        return None
