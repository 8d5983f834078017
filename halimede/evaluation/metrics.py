"""What people read of a report: the same rows for a terminal and for the page, and how each curve is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from halimede.evaluation.curves import Point, at
from halimede.evaluation.evaluate import EvaluationReport

#: upload ratios that the table shows
RATIOS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
ORACLE, RANDOM = "oracle", "random"
#: told apart also by those who see few colours: in pairs with the strokes, which change slower
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7b3fa0")
STROKES = ("", "7 3", "2 3")
BOUND_COLOURS = {ORACLE: "#888888", RANDOM: "#aaaaaa"}
OPERATING_COLOUR = "#c1121f"

Rows = list[list[str]]


@dataclass(frozen=True, slots=True)
class MetricLine:
    """A curve as it is drawn; ``stroke`` is its dashes as SVG writes them, ``width`` its breadth in pixels."""

    name: str
    points: Sequence[Point]
    colour: str
    stroke: str
    width: float = 1.5


def lines(report: EvaluationReport) -> list[MetricLine]:
    """Return all curves, the bounds last; that of the service's own rule is bold. The rule Random is a bound."""
    own = report.operating_point.rule.lower()
    drawn = [
        MetricLine(
            name,
            points,
            COLOURS[i % len(COLOURS)],
            STROKES[i // len(COLOURS) % len(STROKES)],
            3 if name.lower() == own else 1.5,
        )
        for i, (name, points) in enumerate(rules(report).items())
    ]
    bounds = ((ORACLE, report.oracle, "7 3"), (RANDOM, report.random, "2 3"))
    return drawn + [MetricLine(name, points, BOUND_COLOURS[name], stroke) for name, points, stroke in bounds]


def rules(report: EvaluationReport) -> dict[str, Sequence[Point]]:
    """Return the curves of rules that look at something."""
    return {name: points for name, points in report.curves.items() if name.lower() != RANDOM}


def ratio_rows(report: EvaluationReport) -> tuple[list[str], Rows]:
    """Return the heading, and each rule's accuracy at some upload ratios, the best at the middle one first."""
    heading = ["RULE", *(f"{ratio:.0%}" for ratio in RATIOS)]
    best = sorted(rules(report).items(), key=lambda item: -at(item[1], RATIOS[len(RATIOS) // 2]))
    curves = [(ORACLE, report.oracle), *best, (RANDOM, report.random)]
    return heading, [[name, *(f"{at(points, ratio):.4f}" for ratio in RATIOS)] for name, points in curves]


def tier_rows(report: EvaluationReport) -> tuple[list[str], Rows]:
    """Return the heading, and what each tier is worth alone."""
    names = list(report.tiers[0].measures)
    heading = ["TIER", "MODEL", *(measure_name(report, name) for name in names), "MODEL TIME", "REACHED"]
    return heading, [
        [
            tier.name,
            tier.model,
            *(f"{tier.measures[name]:.4f}" for name in names),
            f"{tier.model_ms:.3g} ms",
            f"{tier.reached:.1%}",
        ]
        for tier in report.tiers
    ]


def operating_rows(report: EvaluationReport) -> Rows:
    """Return what the service is worth as it is configured, a name and a value each."""
    point, link = report.operating_point, report.link
    parameters = ", ".join(f"{key} {value}" for key, value in point.parameters.items())
    held = f", {point.target_upload_ratio:.1%} held" if point.target_upload_ratio is not None else ""
    saved = 1 - point.bytes_to_cloud / report.bytes_cloud_only if report.bytes_cloud_only else 0.0
    cloud_ms = report.latency_cloud_only_ms
    rows = [
        ["rule", f"{point.rule} ({parameters})" if parameters else point.rule],
        ["go up", f"{point.upload_ratio:.1%}{held}"],
        *([["reach the cloud", f"{point.cloud_ratio:.1%}"]] if len(report.tiers) > 2 else []),
        *([measure_name(report, name).lower(), f"{value:.4f}"] for name, value in point.measures.items()),
        ["bytes to the cloud", f"{point.bytes_to_cloud:.0f} a sample, {saved:.0%} less than by the cloud alone"],
        ["time to the answer", f"{point.latency_ms:.3g} ms in the mean, {cloud_ms:.3g} ms by the cloud alone"],
        ["link", f"{link.ms:g} ms and {link.kbps:g} kbit/s, {'assumed' if link.assumed else 'as given'}"],
    ]
    if report.fusion != "cloud":
        rows.insert(1, ["fusion", report.fusion])
    return rows


def measure_name(report: EvaluationReport, name: str) -> str:
    """Return what a measure is called in headings."""
    return {"accuracy": report.metric.upper(), "map_50_95": "MAP@0.5:0.95", "recall": "OBJECT RECALL"}[name]


def about(report: EvaluationReport) -> str:
    """Return one sentence on what was evaluated."""
    truth = "their labels" if report.reference == "labels" else "the cloud's answers, since they have no labels"
    return f"{report.samples} samples, measured by {report.metric} against {truth}."


def scale(report: EvaluationReport) -> tuple[float, float]:
    """Return the lowest and the highest accuracy that a plot shows."""
    values = [point["accuracy"] for line in lines(report) for point in line.points]
    values += [report.operating_point.accuracy, *(tier.measures["accuracy"] for tier in report.tiers)]
    low, high = min(values), max(values)
    room = max(high - low, 0.01) * 0.06
    return low - room, high + room
