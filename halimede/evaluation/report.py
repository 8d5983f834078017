"""A report as rows for a terminal, as a self-contained HTML page, and as a plot (PNG)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

import msgspec

from halimede.evaluation.curves import Point, at
from halimede.evaluation.evaluate import EvaluationReport, Operating
from halimede.html_report.charts import ticks

DPI = 100
#: upload ratios in the table
RATIOS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
ORACLE, REWARDS, RANDOM = "oracle", "by rewards", "random"
#: distinguishable also with colour blindness, in combination with the strokes, which change less often
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7b3fa0")
STROKES = ("", "7 3", "2 3")
#: SVG dashes in matplotlib's form
DASHES = {stroke: (0, tuple(map(float, stroke.split()))) for stroke in STROKES if stroke}
BOUND_COLOURS = {ORACLE: "#888888", REWARDS: "#888888", RANDOM: "#aaaaaa"}
OPERATING_COLOUR = "#c1121f"
Rows = list[list[str]]


def write_plot(report: EvaluationReport, path: Path) -> None:
    """Write a PNG. Raises ImportError without matplotlib."""
    import matplotlib as mpl  # noqa: PLC0415  # slow to import, and only in an extra

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
    for line in lines(report):
        ratios, values = ([point[key] for point in line.points] for key in ("upload_ratio", "accuracy"))
        style = DASHES.get(line.stroke, "solid")
        axes.plot(ratios, values, color=line.colour, linestyle=style, linewidth=line.width, label=_plain(line.name))
    for tier in report.tiers:
        value = tier.measures["accuracy"]
        axes.axhline(value, color="#bbbbbb", linestyle=":", linewidth=1, zorder=0)
        axes.annotate(_plain(f"{tier.name} only"), (1, value), (4, 0), textcoords="offset points", va="center", size=8)
    point = report.operating_point
    label = _plain(f"as configured: {point.rule}")
    axes.plot(point.upload_ratio, point.accuracy, "o", color=OPERATING_COLOUR, label=label, clip_on=False)
    axes.set(xlabel="upload ratio", ylabel=report.metric, xlim=(0, 1), ylim=scale(report))
    axes.set_title(_plain(report.service), size=11)
    axes.legend(loc="lower right", frameon=False, ncols=2, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def _plain(text: str) -> str:
    """Prevent matplotlib from parsing formulas in names."""
    return text.replace("$", r"\$")


WIDTH, HEIGHT = 860, 460
LEFT, RIGHT, TOP, BOTTOM = 64, 110, 12, 48


def page(report: EvaluationReport, pictures: str = "") -> str:
    """Return the page, with a section of pictures (HTML). All text from manifests and data is escaped."""
    drawn = lines(report)
    data = {
        "curves": {line.name: line.points for line in drawn},
        "costs": msgspec.to_builtins(report.costs),
        "left": LEFT,
        "width": WIDTH - LEFT - RIGHT,
    }
    template = Template(resources.files(__package__).joinpath("page.html").read_text("utf-8"))
    title = f"{report.service}: {report.metric} against upload ratio"
    return template.substitute(
        title=escape(title),
        heading=escape(title),
        about=escape(about(report)),
        svg=_svg(report, drawn),
        switches="".join(_switch(line) for line in drawn),
        ratios=_table(*ratio_rows(report)),
        tiers=_table(*tier_rows(report)),
        operating=_table([], operating_rows(report)),
        notes=_notes(report),
        pictures=pictures,
        # nothing is unescaped inside a script, and only this character could end it
        data=json.dumps(data).replace("<", "\\u003c"),
    )


def _svg(report: EvaluationReport, drawn: Sequence[MetricLine]) -> str:
    low, high = scale(report)

    def x(ratio: float) -> float:
        return round(LEFT + ratio * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    foot = HEIGHT - BOTTOM
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(report.metric)} by upload ratio">']
    for tick in range(0, 11, 2):
        parts.append(f'<line class="grid" x1="{x(tick / 10)}" x2="{x(tick / 10)}" y1="{TOP}" y2="{foot}"/>')
        parts.append(f'<text x="{x(tick / 10)}" y="{foot + 18}" text-anchor="middle">{tick * 10} %</text>')
    for value in ticks(low, high):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{x(1)}" y1="{y(value)}" y2="{y(value)}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{value:.4g}</text>')
    parts.append(f'<text x="{x(0.5)}" y="{HEIGHT - 8}" text-anchor="middle">upload ratio</text>')
    for tier in report.tiers:
        at = y(tier.measures["accuracy"])
        parts.append(f'<line class="end" x1="{LEFT}" x2="{x(1)}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text class="tier" x="{x(1) + 6}" y="{at + 4}">{escape(tier.name[:12])} only</text>')
    for line in drawn:
        points = " ".join(f"{x(point['upload_ratio'])},{y(point['accuracy'])}" for point in line.points)
        name, look = escape(line.name), f'stroke="{line.colour}" stroke-width="{line.width}"'
        parts.append(
            f'<polyline class="curve" data-rule="{name}" points="{points}" {look} '
            f'stroke-dasharray="{line.stroke}"><title>{name}</title></polyline>'
        )
    point = report.operating_point
    said = f"as configured: {point.rule}, {point.upload_ratio:.1%} go up, {report.metric} {point.accuracy:.4f}"
    parts.append(
        f'<circle cx="{x(point.upload_ratio)}" cy="{y(point.accuracy)}" r="6" fill="{OPERATING_COLOUR}">'
        f"<title>{escape(said)}</title></circle>"
    )
    parts.append(f'<line id="at" y1="{TOP}" y2="{foot}"/></svg>')
    return "".join(parts)


def _switch(line: MetricLine) -> str:
    style = "solid" if not line.stroke else "dashed" if line.stroke == STROKES[1] else "dotted"
    key = f'<span class="key" style="border-color:{line.colour};border-top-style:{style}"></span>'
    name = escape(line.name)
    return f'<label><input type="checkbox" value="{name}" checked> {key} {name}</label>'


def _table(heading: Sequence[str], rows: Rows) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def _notes(report: EvaluationReport) -> str:
    """Return two lists: what to know of the figures, and the rules without a curve."""
    lists = {
        "Notes": report.notes,
        "Rules without a curve": [f"{name}: {why}" for name, why in sorted(report.left_out.items())],
    }
    return "".join(
        f"<h2>{heading}</h2><ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"
        for heading, items in lists.items()
        if items
    )


@dataclass(frozen=True, slots=True)
class MetricLine:
    """A curve to draw; ``stroke``: its SVG dashes, ``width``: its width in pixels."""

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
    bounds = ((oracle_name(report), report.oracle, "7 3"), (RANDOM, report.random, "2 3"))
    return drawn + [MetricLine(name, points, BOUND_COLOURS[name], stroke) for name, points, stroke in bounds]


def oracle_name(report: EvaluationReport) -> str:
    """Return the name of the oracle's line. The best order for mAP is not known: a rule may exceed that by rewards."""
    return REWARDS if report.task == "detection" else ORACLE


def rules(report: EvaluationReport) -> dict[str, Sequence[Point]]:
    """Return the curves of all rules but Random."""
    return {name: points for name, points in report.curves.items() if name.lower() != RANDOM}


def ratio_rows(report: EvaluationReport) -> tuple[list[str], Rows]:
    """Return the heading, and each rule's accuracy at some upload ratios, sorted by the middle one."""
    heading = ["RULE", *(f"{ratio:.0%}" for ratio in RATIOS)]
    best = sorted(rules(report).items(), key=lambda item: -at(item[1], RATIOS[len(RATIOS) // 2]))
    curves = [(oracle_name(report), report.oracle), *best, (RANDOM, report.random)]
    return heading, [[name, *(f"{at(points, ratio):.4f}" for ratio in RATIOS)] for name, points in curves]


def tier_rows(report: EvaluationReport) -> tuple[list[str], Rows]:
    """Return the heading, and the measures of each tier alone."""
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
    """Return the measures of the configured service, as rows of name and value."""
    point, link = report.operating_point, report.link
    parameters = ", ".join(f"{key} {value}" for key, value in point.parameters.items())
    held = f", {point.target_upload_ratio:.1%} held" if point.target_upload_ratio is not None else ""
    if point.audit_share:
        held += f"{' with' if held else ', and'} audits of {point.audit_share:.1%} of the easy ones"
    saved = 1 - point.bytes_to_cloud / report.bytes_cloud_only if report.bytes_cloud_only else 0.0
    cloud_ms = report.latency_cloud_only_ms
    rows = [
        ["rule", f"{point.rule} ({parameters})" if parameters else point.rule],
        ["go up", f"{point.upload_ratio:.1%}{held}"],
        *([["reach the cloud", f"{point.cloud_ratio:.1%}"]] if len(report.tiers) > 2 else []),
        *([measure_name(report, name).lower(), f"{value:.4f}"] for name, value in point.measures.items()),
        *([["cost", _cost(point)]] if point.cost is not None else []),
        ["bytes to the cloud", f"{point.bytes_to_cloud:.0f} a sample, {saved:.0%} less than by the cloud alone"],
        ["time to the answer", f"{point.latency_ms:.3g} ms in the mean, {cloud_ms:.3g} ms by the cloud alone"],
        ["link", f"{link.ms:g} ms and {link.kbps:g} kbit/s, {'assumed' if link.assumed else 'as given'}"],
    ]
    if report.fusion != "cloud":
        rows.insert(1, ["fusion", report.fusion])
    return rows


def _cost(point: Operating) -> str:
    alone = f"{point.cost_edge_only:.4g} by the edge alone, {point.cost_cloud_only:.4g} by the cloud alone"
    return f"{point.cost:.4g} a sample, {alone}"


def measure_name(report: EvaluationReport, name: str) -> str:
    """Return the heading of a measure."""
    headings = {
        "accuracy": report.metric.upper(),
        "map_50_95": "MAP@0.5:0.95",
        "recall": "OBJECT RECALL",
        "character_error_rate": "CHARACTER ERROR RATE",
    }
    return headings[name]


def about(report: EvaluationReport) -> str:
    """Return one sentence about the evaluated data."""
    truth = "their labels" if report.reference == "labels" else "the cloud's answers, since they have no labels"
    return f"{report.samples} samples, measured by {report.metric} against {truth}."


def scale(report: EvaluationReport) -> tuple[float, float]:
    """Return the lowest and the highest accuracy of a plot."""
    values = [point["accuracy"] for line in lines(report) for point in line.points]
    values += [report.operating_point.accuracy, *(tier.measures["accuracy"] for tier in report.tiers)]
    low, high = min(values), max(values)
    room = max(high - low, 0.01) * 0.06
    return low - room, high + room
