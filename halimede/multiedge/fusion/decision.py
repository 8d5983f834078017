"""What the sources of one instant say together: for everybody (Fused), and as the answer to each finding. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from halimede.calibration.temperature import calibrate
from halimede.messages import Box, Fused, FusedFrom, Prediction
from halimede.multiedge.fusion.class_distribution import ClassDistribution, Vector, together
from halimede.multiedge.fusion.rules import RULES
from halimede.multiedge.fusion.settings import FusionSettings
from halimede.multiedge.fusion.time_window import Instant

NS = 1_000_000_000
MS = 1_000_000
#: classes that a Fused message names
TOP = 5


@dataclass(frozen=True, slots=True)
class FusedDecision:
    """What is said of an instant: ``by_class`` has the probability of every class, nothing where nobody named one."""

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
