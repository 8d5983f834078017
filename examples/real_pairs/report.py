"""What a run measured, as the fields of report.json and as the lines of a table. Nothing here talks to the system."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from examples.real_pairs.measures import Measure
from halimede.calibration.measurement import share
from halimede.messages import Prediction, Result
from halimede.stats.agreement import Estimate

#: who answers
ANSWERS = ("edge", "joint", "cloud")
#: what became of a frame, in the order of the page
MENDED, SAME, SPOILED = "went up, and got better", "went up, and got no better", "went up, and got worse"
RIGHT, MISSED = "stayed, and was right", "stayed, with mistakes"
OUTCOMES = (MENDED, SAME, SPOILED, RIGHT, MISSED)


@dataclass(frozen=True)
class Answer:
    """One published frame: its picture (a JPEG), the system's result, and what the big model alone answers."""

    picture: str
    camera: str
    data: bytes
    result: Result
    cloud: Prediction

    @property
    def edge(self) -> Prediction:
        """What the small model answered, whoever answered in the end."""
        return self.result.edge or self.result.prediction

    @property
    def is_uploaded(self) -> bool:
        """Whether the cloud got the frame, and replied."""
        return self.result.by == "cloud" or self.result.audit

    @property
    def hardness(self) -> float:
        """The order of uploads: what the rule could not measure is the hardest of all, or the easiest."""
        if self.result.hardness is not None:
            return self.result.hardness
        return math.inf if self.result.hard else -math.inf


@dataclass(frozen=True)
class Run:
    """All that a report is made of.

    ``shown``: frames that each camera showed; ``published``: those that came to the broker; ``unknown``: frames that
    came and are none of those. ``answers``: those with a result, in the order of their frames. ``calibration``: what
    ``halimede calibrate`` printed. ``sources``: packages, what is used of them, and their licences.
    """

    name: str
    answers: Sequence[Answer]
    measure: Measure
    shown: Mapping[str, int]
    published: Mapping[str, int]
    repeated: int
    unknown: int
    seconds: float
    budget: float
    calibration: Mapping[str, Any]
    sources: Sequence[tuple[str, str, str]]
    status: Mapping[str, Any]


def figures(run: Run) -> dict[str, Any]:
    """Return the fields of report.json."""
    answers = run.answers
    edge, joint, cloud = ([a.edge for a in answers], [a.result.prediction for a in answers], [a.cloud for a in answers])
    hardness = np.array([a.hardness for a in answers])
    published = sum(run.published.values())
    metrics = {m["key"]: m["value"] for m in run.status.get("status", {}).get("metrics", [])}
    uploaded = np.array([a.is_uploaded for a in answers], bool)
    return {
        "demo": run.name,
        "frames": published,
        "answered": len(answers),
        "lost": published - len(answers),
        "repeated": run.repeated,
        "unknown": run.unknown,
        "degraded": sum(a.result.degraded for a in answers),
        "skipped": sum(run.shown.values()) - published,
        "cameras": {
            camera: {"shown": shown, "published": run.published.get(camera, 0)} for camera, shown in run.shown.items()
        },
        "measures": run.measure.names,
        "accuracy": run.measure.accuracy,
        **{
            name: {key: _rounded(value) for key, value in run.measure.estimates(given).items()}
            for name, given in zip(ANSWERS, (edge, joint, cloud), strict=True)
        },
        "upload_share": _rounded(Estimate(*share(uploaded, np.arange(len(answers))))),
        "upload_budget": run.budget,
        "bytes_joint": int(metrics.get("uploadedBytes", 0)),
        "bytes_cloud": sum(len(a.data) for a in answers),
        "seconds": round(run.seconds, 1),
        "frames_per_s": round(len(answers) / max(run.seconds, 1e-9), 2),
        "outcomes": dict(Counter(outcomes(run))),
        "curve": _points(run.measure.curve(hardness, edge, cloud)),
        "chance": _points(run.measure.chance(edge, cloud)),
        "calibration": {key: run.calibration.get(key) for key in ("rule", "parameters", "fitted", "aboveChance")},
        "packages": [
            {"package": package, "contents": contents, "licence": licence} for package, contents, licence in run.sources
        ],
        "status": run.status,
    }


def outcomes(run: Run) -> list[str]:
    """Return what became of each answered frame, by the mistakes of the edge's answer and of the final one."""
    edge = run.measure.mistakes([a.edge for a in run.answers])
    final = run.measure.mistakes([a.result.prediction for a in run.answers])
    return [_outcome(a, before, after) for a, before, after in zip(run.answers, edge, final, strict=True)]


def _outcome(answer: Answer, before: float, after: float) -> str:
    if not answer.is_uploaded:
        return MISSED if after else RIGHT
    return MENDED if after < before else SPOILED if after > before else SAME


def missed(fields: Mapping[str, Any]) -> list[str]:
    """Return what of a run is not as it should be."""
    accuracy = fields["accuracy"]
    joint, edge = fields["joint"][accuracy]["value"], fields["edge"][accuracy]["value"]
    checks = (
        (fields["frames"] == 0, "no frame was published"),
        (fields["lost"] > 0, f"{fields['lost']} frames were not answered"),
        (fields["unknown"] > 0, f"{fields['unknown']} published frames are none of those that were shown"),
        (any(not camera["published"] for camera in fields["cameras"].values()), "a camera published nothing"),
        (joint <= edge, f"together {joint:.3f} is not above {edge:.3f} by the edge alone"),
    )
    return [text for is_missed, text in checks if is_missed]


def table(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that people read first."""
    measures = [
        (f"{fields['measures'][key]}: {name}", interval(fields[name][key]))
        for key in fields["measures"]
        for name in ANSWERS
    ]
    cameras = ", ".join(
        f"{name} {counts['published']} of {counts['shown']}" for name, counts in fields["cameras"].items()
    )
    calibration = fields["calibration"]
    parameters = ", ".join(f"{key} {_short(value)}" for key, value in (calibration["parameters"] or {}).items())
    return [
        ("frames / answered", f"{fields['frames']} / {fields['answered']}"),
        ("lost, repeated, degraded", f"{fields['lost']}, {fields['repeated']}, {fields['degraded']}"),
        ("published, of those shown", cameras),
        *measures,
        ("share that went up / budget", f"{interval(fields['upload_share'])} / {fields['upload_budget']:g}"),
        ("bytes to the cloud, together / cloud alone", f"{fields['bytes_joint']:,} / {fields['bytes_cloud']:,}"),
        ("frames a second, as the cameras sent them", f"{fields['frames_per_s']:g}"),
        (
            "rule of the calibration",
            f"{calibration['rule']} ({parameters})" if parameters else str(calibration["rule"]),
        ),
        *((package["package"], f"{package['contents']}: {package['licence']}") for package in fields["packages"]),
    ]


def interval(value: Mapping[str, float]) -> str:
    """Return a value with its interval."""
    return f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})"


def _short(value: str) -> str:
    try:
        return f"{float(value):.3g}"
    except ValueError:
        return value


def _rounded(value: Estimate) -> dict[str, float]:
    return {key: round(number, 4) for key, number in msgspec.to_builtins(value).items()}


def _points(points: Sequence[tuple[float, float]]) -> list[list[float]]:
    return [[round(ratio, 4), round(accuracy, 4)] for ratio, accuracy in points]
