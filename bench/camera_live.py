"""Live cameras without a network, and what came of their frames: for the processes that read frames themselves.

A camera has a new picture at each tick of its rate. Who asks gets the newest one; pictures in between were skipped.
The age of an answer counts from the tick of its picture.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: milliseconds within which answers are summed up
QUANTILES = {"age_p50_ms": 0.5, "age_p99_ms": 0.99}


@dataclass
class LiveRound:
    """One round: each camera's rate, and seconds."""

    cameras: list[str]
    fps: float
    seconds: float

    @property
    def ticks(self) -> int:
        """Pictures of one camera."""
        return round(self.fps * self.seconds)


@dataclass
class Tally:
    """What came of the frames of a round."""

    #: pictures that cameras had
    offered: int = 0
    answered: Counter[str] = field(default_factory=Counter)
    ages_ms: list[float] = field(default_factory=list)
    #: answers before the end of the round; all answers, also to frames of before it
    in_time: int = 0
    processed: int = 0
    #: pictures without an answer, by what dropped them
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, camera: str, age_s: float, *, in_time: bool) -> None:
        """Count an answer."""
        self.answered[camera] += 1
        self.ages_ms.append(age_s * 1000)
        self.in_time += in_time
        self.processed += 1

    def include(self, tally: Tally) -> None:
        """Add what another thread counted."""
        self.offered += tally.offered
        self.answered += tally.answered
        self.ages_ms += tally.ages_ms
        self.in_time += tally.in_time
        self.processed += tally.processed
        self.dropped += tally.dropped

    def summary(self, live: LiveRound) -> dict[str, Any]:
        """Return it as figures. ``unexplained``: pictures that neither have an answer nor were dropped by a name."""
        answers = self.answered.total()
        figures: dict[str, Any] = {
            "offered": self.offered,
            "answered": answers,
            "processed": self.processed,
            "rate": self.in_time / live.seconds,
            "dropped": dict(self.dropped),
            "unexplained": self.offered - answers - self.dropped.total(),
            "by_camera": dict(self.answered),
        }
        return figures | {name: quantile(self.ages_ms, share) for name, share in QUANTILES.items()}


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class LiveCamera:
    """One camera; its first picture is there at ``start`` on the monotonic clock."""

    def __init__(self, name: str, live: LiveRound, start: float) -> None:
        self.name = name
        self.skipped = 0
        self._live = live
        self._start = start
        self._next = 0

    def due(self, number: int | None = None) -> float:
        """When a picture is there: the next one, unless its number is given."""
        return self._start + (self._next if number is None else number) / self._live.fps

    @property
    def over(self) -> bool:
        """Whether it has no further picture."""
        return self._next >= self._live.ticks

    def newest(self) -> int | None:
        """Take the newest picture that was not taken before; return its number, None if there is none."""
        present = min(int((time.monotonic() - self._start) * self._live.fps), self._live.ticks - 1)
        if present < self._next:
            return None
        self.skipped += present - self._next
        self._next = present + 1
        return present


def fairness(by_camera: Mapping[str, float], cameras: Iterable[str]) -> float:
    """Return the answers of the camera with the fewest, as a share of those of the camera with the most."""
    counts = [by_camera.get(camera, 0) for camera in cameras]
    return min(counts) / max(counts) if any(counts) else 0.0


def joined(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of several processes that ran at once: sums, and the largest ages."""
    figures: dict[str, Any] = {}
    for name, value in summaries[0].items():
        if isinstance(value, dict):
            figures[name] = dict(sum((Counter(summary[name]) for summary in summaries), Counter()))
        else:
            figures[name] = (max if name in QUANTILES else sum)(summary[name] for summary in summaries)
    return figures


def medians(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure over rounds, and of each name's in a figure of several."""
    figures: dict[str, Any] = {}
    for name, value in rounds[0].items():
        if isinstance(value, dict):
            names = dict.fromkeys(key for row in rounds for key in row[name])
            figures[name] = {key: _median(row[name].get(key, 0) for row in rounds) for key in names}
        else:
            figures[name] = _median(row[name] for row in rounds)
    return figures


def _median(values: Iterable[Any]) -> Any:
    values = list(values)
    return values[0] if isinstance(values[0], str) else round(statistics.median(values), 3)
