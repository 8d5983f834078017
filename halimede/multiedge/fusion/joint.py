"""The joint of fusion, and its parameters: it groups findings into instants, and gives each instant one answer.

An instant is a short time in which each camera took one picture of the scene.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from halimede.calibration.temperature import calibrate
from halimede.errors import InvalidFieldError
from halimede.messages import Box, Fused, FusedFrom, Prediction
from halimede.multiedge.fusion.class_distribution import RULES, ClassDistribution, Vector, align_classes
from halimede.multiedge.fusion.time_window import Instant, Window
from halimede.multiedge.stage import Finding, Joint, JointTools, Outcome, Parameters

#: counters in ``metrics``: answered instants; those with all cameras, with missing ones, and without a class; findings
#: after their instant's answer, repeated findings, and findings that were refused
COUNTED = ("instants", "complete", "incomplete", "undecided", "late", "repeated", "refused")
#: nanoseconds in a second and in a millisecond
NS, MS = 1_000_000_000, 1_000_000
#: most classes in a Fused message
TOP = 5
#: milliseconds in a day
DAY_MS = 86_400_000.0
#: parameters by camera: ``<name>.<camera>`` is that of one camera; here is the name for all in JSON, and the bounds
BY_CAMERA: Mapping[str, tuple[str, float, float]] = {
    "weight": ("weights", 0.0, 100.0),
    "temperature": ("temperatures", 0.05, 20.0),
    "offset": ("offsets", -DAY_MS, DAY_MS),
}
#: all other parameters
PARAMETERS = ("rule", "windowMs", "waitMs", "absentMs", "maxOpen", "share")
#: path of the parameters in the resource
AT = "spec.application.parameters"


class Fusion(Joint):
    """A ``Joint`` that answers each finding with the combined prediction of all cameras for its instant.

    An instant is answered when all active cameras have sent their finding, when it has waited long enough, or when too
    many instants wait. A finding that arrives later is answered at once, with all findings of its instant so far.
    Nothing is stored: a worker that takes over continues with the next findings. Raises InvalidFieldError for
    parameters of unknown cameras, if the service's cameras are known.
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
        self._counts: Counter[str] = Counter()

    def take(self, findings: Sequence[Finding], now: float) -> Outcome:
        """Add findings to their instants; answer late findings, and the instants that ``due`` answers.

        A finding without space keeps its own prediction.
        """
        answers: dict[bytes, Prediction | None] = {}
        for finding in findings:
            camera = _camera(finding)
            offset_ns = round(self._settings.offsets.get(camera, 0.0) * MS)
            result, instant = self._window.add(finding, camera, offset_ns, now)
            if result != "joined":
                self._counts[result] += 1
            if instant is None or result == "refused":
                answers[finding.key] = None
            elif not instant.open:
                decision = self._decide(instant)
                answers[finding.key] = decision.answer(camera, finding.prediction.boxes, late=result == "late")
        due = self.due(now)
        return Outcome(answers={**answers, **due.answers}, fused=due.fused)

    def due(self, now: float) -> Outcome:
        """Answer the instants that are complete or have waited long enough, or the oldest if too many wait."""
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
        """Return the monotonic seconds at which the oldest open instant has waited long enough; None without one."""
        return self._window.next_due()

    def metrics(self) -> Mapping[str, float]:
        """Return the number of open instants, and the counters of COUNTED."""
        counts = {"open": len(self._window)} | {name: self._counts[name] for name in COUNTED}
        return {f"fusion_{name}": float(number) for name, number in counts.items()}

    def _decide(self, instant: Instant) -> FusedDecision:
        """Return the common answer for an instant, by the settings in use."""
        return decide(instant, self._window.missing_cameras(instant), self._settings)

    def _count(self, fused: Fused) -> None:
        """Count a decided instant."""
        self._counts["instants"] += 1
        self._counts["incomplete" if fused.missing else "complete"] += 1
        if fused.label is None:
            self._counts["undecided"] += 1


def _camera(finding: Finding) -> str:
    """Return the camera of a finding, or its worker's name: a worker that reads a source itself may name no camera."""
    return finding.camera or finding.worker


@dataclass(frozen=True, slots=True)
class FusedDecision:
    """The common answer for an instant.

    Attributes:
        fused: the message for consumers; its label is None if no camera named a class.
        opinions: each camera's own distribution, of those that named a class.
        by_class: the fused probability of each class; empty if no camera named one.

    """

    fused: Fused
    opinions: Mapping[str, ClassDistribution]
    by_class: Mapping[str, float] = field(default_factory=dict)

    def answer(self, camera: str, boxes: list[Box] | None, *, late: bool = False) -> Prediction | None:
        """Return the answer to one camera's finding; None: it keeps its own prediction, as no camera named a class.

        ``boxes``: those of the finding, which the answer gets. ``late``: the finding came after the answer. The answer
        has probabilities, in the order of the classes of the camera's model, if those are known.
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
    """Fuse the findings of an instant. ``missing``: cameras without one. Cameras that name no class do not count."""
    fused = Fused(
        instant=instant.middle_ns / NS,
        rule=settings.rule,
        sources=[_source(instant, camera) for camera in sorted(instant.entries)],
        missing=missing,
    )
    opinions = {camera: entry.opinion for camera, entry in sorted(instant.entries.items()) if entry.opinion}
    if not opinions:
        return FusedDecision(fused, opinions)
    names, rows = align_classes(list(opinions.values()))
    weights = _by_camera(settings.weights, opinions)
    rows = calibrate(rows, _by_camera(settings.temperatures, opinions))
    best, distribution = RULES[settings.rule](rows, weights if weights.any() else np.ones_like(weights))
    fused.label, fused.score = names[best], float(distribution[best])
    by_class = dict(zip(names, distribution.tolist(), strict=True))
    fused.value = dict(sorted(by_class.items(), key=lambda item: -item[1])[:TOP])
    return FusedDecision(fused, opinions, by_class)


def _by_camera(values: Mapping[str, float], cameras: Iterable[str]) -> Vector:
    """Return the values of these cameras, ``(cameras,) float64``; 1 for a camera without one."""
    return np.array([values.get(camera, 1.0) for camera in cameras])


def _source(instant: Instant, camera: str) -> FusedFrom:
    """Return one camera's finding in the form for messages."""
    entry = instant.entries[camera]
    return FusedFrom(
        camera=camera,
        worker=entry.worker,
        label=entry.label,
        score=entry.score,
        offset_ms=(entry.time_ns - instant.middle_ns) / MS,
    )


@dataclass(frozen=True, slots=True)
class FusionSettings:
    """The parameters of fusion.

    Attributes:
        rule: how findings become one answer: a key of RULES.
        window_ms: the longest time between the first and the last capture time of one instant.
        wait_ms: how long an instant waits for missing cameras.
        absent_ms: instants do not wait for a camera that has sent nothing for so long.
        max_open: the most instants that wait; above that the oldest is answered.
        share: whether peers may run the model on a frame.
        weights: the influence of each camera; 1 for cameras that are not in it.
        temperatures: of each camera: above 1 makes it less certain; 1 for cameras that are not in it.
        offsets: milliseconds by which each camera's clock is ahead of the others; 0 for cameras that are not in it.

    """

    rule: str = "product"
    window_ms: float = 50.0
    wait_ms: float = 500.0
    absent_ms: float = 5000.0
    max_open: int = 256
    share: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)
    temperatures: Mapping[str, float] = field(default_factory=dict)
    offsets: Mapping[str, float] = field(default_factory=dict)

    def check_cameras(self, cameras: Collection[str]) -> None:
        """Raise InvalidFieldError for a parameter of a camera that the service does not have."""
        for kind, (plural, _, _) in BY_CAMERA.items():
            for name in getattr(self, plural):
                if name not in cameras:
                    fix = f"use the name of one of the service's cameras: {', '.join(sorted(cameras))}"
                    raise InvalidFieldError(f"{AT}.{kind}.{name}", name, fix)


def parse(parameters: Parameters) -> FusionSettings:
    """Return the parameters of an application. Raises InvalidFieldError for invalid and for unknown ones."""
    for name in parameters:
        kind, dot, camera = name.partition(".")
        plurals = {plural for plural, _, _ in BY_CAMERA.values()}
        if name not in PARAMETERS and name not in plurals and not (kind in BY_CAMERA and dot and camera):
            names = ", ".join([*PARAMETERS, *(f"{kind}.<camera>" for kind in BY_CAMERA), *sorted(plurals)])
            raise InvalidFieldError(f"{AT}.{name}", parameters[name], f"fusion knows {names}")
    usual = FusionSettings()
    return FusionSettings(
        rule=parameters.text("rule", usual.rule, choices=tuple(RULES)),
        window_ms=parameters.number("windowMs", usual.window_ms, least=0, most=60_000),
        wait_ms=parameters.number("waitMs", usual.wait_ms, least=0, most=60_000),
        absent_ms=parameters.number("absentMs", usual.absent_ms, least=0, most=DAY_MS),
        max_open=int(parameters.number("maxOpen", usual.max_open, least=1, most=4096)),
        share=parameters.flag("share", default=usual.share),
        **{plural: _of_cameras(parameters, kind) for kind, (plural, _, _) in BY_CAMERA.items()},
    )


def _of_cameras(parameters: Parameters, kind: str) -> dict[str, float]:
    """Return one parameter (a key of BY_CAMERA) of all cameras that have it.

    The JSON for all cameras is read first; parameters of single cameras override it. Raises InvalidFieldError.
    """
    plural, least, most = BY_CAMERA[kind]
    texts = {f"{kind}.{name}": str(value) for name, value in _object(parameters, plural).items()}
    texts |= {name: parameters[name] for name in parameters if name.startswith(f"{kind}.")}
    by_camera = Parameters(texts)
    return {name.partition(".")[2]: by_camera.number(name, 0.0, least=least, most=most) for name in by_camera}


def _object(parameters: Parameters, name: str) -> Mapping[str, object]:
    """Return the JSON object in a parameter; empty if it is missing. Raises InvalidFieldError for other text."""
    if name not in parameters:
        return {}
    try:
        read = json.loads(parameters[name])
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise InvalidFieldError(f"{AT}.{name}", parameters[name], 'write JSON: {"<camera>": <number>}')
    return read
