"""The joint of fusion: takes findings, puts them together, and gives every one of an instant the same answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from halimede.calibration.temperature import calibrate
from halimede.messages import Box, Fused, FusedFrom, Prediction
from halimede.multiedge.fusion.class_distribution import ClassDistribution, Vector, together
from halimede.multiedge.fusion.rules import RULES
from halimede.multiedge.fusion.settings import FusionSettings
from halimede.multiedge.fusion.time_window import Instant, Window
from halimede.multiedge.stage import Finding, Joint, JointTools, Outcome

#: what ``metrics`` counts: instants, how they ended, and findings that were no part of one when it did
COUNTED = ("instants", "complete", "incomplete", "undecided", "late", "repeated", "refused")
NS = 1_000_000_000
MS = 1_000_000
#: classes that a Fused message names
TOP = 5


class Fusion(Joint):
    """Answers each finding with the combined prediction of all sources of its instant.

    An instant is answered when all cameras that are heard of have come, or when it has waited long enough. A finding
    that comes later is answered at once, with all that is known of its instant by then. It keeps nothing: a worker
    that takes over goes on with the next findings. Raises InvalidFieldError for parameters of cameras that are not
    there.
    """

    def __init__(self, tools: JointTools, settings: FusionSettings) -> None:
        super().__init__(tools)
        if tools.cameras:
            settings.check_cameras(tools.cameras)
        self._settings = settings
        self._window = Window(
            spread_ns=round(settings.window_ms * MS),
            wait_s=settings.wait_ms / 1000,
            absent_s=settings.absent_ms / 1000,
            limit=settings.max_open,
            cameras=tools.cameras,
        )
        self._counted: Counter[str] = Counter()

    def take(self, findings: Sequence[Finding], now: float) -> Outcome:
        """Put findings to their instants, and answer what is complete or late."""
        answers: dict[bytes, Prediction | None] = {}
        for finding in findings:
            camera = _camera(finding)
            offset_ns = round(self._settings.offsets.get(camera, 0.0) * MS)
            place, instant = self._window.add(finding, camera, offset_ns, now)
            if place != "joined":
                self._counted[place] += 1
            if instant is None or place == "refused":
                answers[finding.key] = None
            elif not instant.open:
                decision = self._decide(instant)
                answers[finding.key] = decision.answer(camera, finding.prediction.boxes, late=place == "late")
        due = self.due(now)
        return Outcome(answers={**answers, **due.answers}, fused=due.fused)

    def due(self, now: float) -> Outcome:
        """Answer the instants that are complete, and those that wait no longer."""
        answers: dict[bytes, Prediction | None] = {}
        fused: list[Fused] = []
        for instant in self._window.ready(now):
            decision = self._decide(instant)
            self._count(decision.fused)
            fused.append(decision.fused)
            for camera, entry in instant.entries.items():
                answers |= dict.fromkeys(entry.keys, decision.answer(camera, entry.boxes))
                entry.boxes = None
        return Outcome(answers=answers, fused=fused)

    def next_due(self) -> float | None:
        """Return when the oldest instant waits no longer."""
        return self._window.next_due()

    def metrics(self) -> Mapping[str, float]:
        """Return how many instants there were, how they ended, and how many are open."""
        counted = {"open": len(self._window)} | {name: self._counted[name] for name in COUNTED}
        return {f"fusion_{name}": float(number) for name, number in counted.items()}

    def _decide(self, instant: Instant) -> FusedDecision:
        return decide(instant, self._window.missing(instant), self._settings)

    def _count(self, fused: Fused) -> None:
        self._counted["instants"] += 1
        self._counted["incomplete" if fused.missing else "complete"] += 1
        if fused.label is None:
            self._counted["undecided"] += 1


def _camera(finding: Finding) -> str:
    """Return which source it is of: a worker that reads its own has one, and need not name it."""
    return finding.camera or finding.worker


@dataclass(frozen=True, slots=True)
class FusedDecision:
    """The answer for an instant: ``by_class`` has the probability of each class; empty if no source named one."""

    fused: Fused
    opinions: Mapping[str, ClassDistribution]
    by_class: Mapping[str, float] = field(default_factory=dict)

    def answer(self, camera: str, boxes: list[Box] | None, *, late: bool = False) -> Prediction | None:
        """Return the answer to one camera's finding, with its own boxes; None where it stands as it is.

        Probabilities are in the order of its own model's classes.
        """
        if self.fused.label is None:
            return None
        value: dict[str, Any] = {
            "rule": self.fused.rule,
            "instant": self.fused.instant,
            "sources": {source.camera: source.label for source in self.fused.sources},
            "missing": self.fused.missing,
        }
        opinion = self.opinions.get(camera)
        names = opinion.names if opinion and opinion.complete else None
        return Prediction(
            label=self.fused.label,
            score=self.fused.score,
            probabilities=None if names is None else [self.by_class[name] for name in names],
            boxes=boxes,
            value=value | ({"late": True} if late else {}),
        )


def decide(instant: Instant, missing: list[str], settings: FusionSettings) -> FusedDecision:
    """Fuse what is known of an instant. Sources that name no class are shown, and say nothing."""
    fused = Fused(
        instant=instant.middle_ns / NS,
        rule=settings.rule,
        sources=[_source(instant, camera) for camera in sorted(instant.entries)],
        missing=missing,
    )
    opinions = {camera: entry.opinion for camera, entry in sorted(instant.entries.items()) if entry.opinion}
    if not opinions:
        return FusedDecision(fused, opinions)
    names, rows = together(list(opinions.values()))
    weights = _each(settings.weights, opinions)
    rows = calibrate(rows, _each(settings.temperatures, opinions))
    best, distribution = RULES[settings.rule](rows, weights if weights.any() else np.ones_like(weights))
    fused.label, fused.score = names[best], float(distribution[best])
    by_class = dict(zip(names, distribution.tolist(), strict=True))
    fused.value = dict(sorted(by_class.items(), key=lambda item: -item[1])[:TOP])
    return FusedDecision(fused, opinions, by_class)


def _each(values: Mapping[str, float], cameras: Iterable[str]) -> Vector:
    return np.array([values.get(camera, 1.0) for camera in cameras])


def _source(instant: Instant, camera: str) -> FusedFrom:
    entry = instant.entries[camera]
    return FusedFrom(
        camera=camera,
        worker=entry.worker,
        label=entry.label,
        score=entry.score,
        offset_ms=(entry.time_ns - instant.middle_ns) / MS,
    )
