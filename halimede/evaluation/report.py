"""Shows an ``EvaluationReport`` as rows for a terminal, as a self-contained HTML page, and as a plot (PNG)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

import msgspec

from halimede.evaluation.curves import Point, accuracy_at
from halimede.evaluation.evaluate import EvaluationReport, Operating
from halimede.html_report.charts import ticks

#: dots per inch of the plot
DPI = 100
#: upload ratios in the table
RATIOS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
#: names of the curves that are bounds
ORACLE, REWARDS, RANDOM = "oracle", "by rewards", "random"
#: colours of curves, and SVG dashes, which change less often: both together can be told apart by the colour-blind
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7b3fa0")
STROKES = ("", "7 3", "2 3")
#: SVG dashes in matplotlib's form
DASHES = {stroke: (0, tuple(map(float, stroke.split()))) for stroke in STROKES if stroke}
#: colours of the bounds, by name
BOUND_COLOURS = {ORACLE: "#888888", REWARDS: "#888888", RANDOM: "#aaaaaa"}
#: colour of the point of the service as configured
OPERATING_COLOUR = "#c1121f"
#: cells of a table
Rows = list[list[str]]


def write_plot(report: EvaluationReport, path: Path) -> None:
    """Write the plot as a PNG. Raises ImportError without matplotlib, and OSError."""
    import matplotlib as mpl  # noqa: PLC0415  # slow to import, and only in an extra

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    plot, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
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
    plot.savefig(path, dpi=DPI)
    plt.close(plot)


def _plain(text: str) -> str:
    """Return a name in which matplotlib finds no formula."""
    return text.replace("$", r"\$")


#: pixels of the page's plot, and of its margins
WIDTH, HEIGHT = 860, 460
LEFT_MARGIN, RIGHT_MARGIN, TOP_MARGIN, BOTTOM_MARGIN = 64, 110, 12, 48


def page(report: EvaluationReport, pictures: str = "") -> str:
    """Return the page; ``pictures`` is a section of it, as HTML. All text from manifests and data is escaped."""
    curves = lines(report)
    data = {
        "curves": {line.name: line.points for line in curves},
        "costs": msgspec.to_builtins(report.costs),
        "left": LEFT_MARGIN,
        "width": WIDTH - LEFT_MARGIN - RIGHT_MARGIN,
    }
    template = Template(resources.files(__package__).joinpath("page.html").read_text("utf-8"))
    title = f"{report.service}: {report.metric} against upload ratio"
    return template.substitute(
        title=escape(title),
        heading=escape(title),
        about=escape(describe_data(report)),
        svg=_svg(report, curves),
        switches="".join(_switch(line) for line in curves),
        ratios=_table(*ratio_rows(report)),
        tiers=_table(*tier_rows(report)),
        operating=_table([], operating_rows(report)),
        notes=_notes(report),
        pictures=pictures,
        # nothing is unescaped inside a script, and only this character could end it
        data=json.dumps(data).replace("<", "\\u003c"),
    )


def _svg(report: EvaluationReport, curves: Sequence[MetricLine]) -> str:
    """Return the page's plot."""
    low, high = scale(report)

    def x(ratio: float) -> float:
        return round(LEFT_MARGIN + ratio * (WIDTH - LEFT_MARGIN - RIGHT_MARGIN), 1)

    def y(value: float) -> float:
        return round(TOP_MARGIN + (high - value) / (high - low) * (HEIGHT - TOP_MARGIN - BOTTOM_MARGIN), 1)

    foot = HEIGHT - BOTTOM_MARGIN
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(report.metric)} by upload ratio">']
    for tick in range(0, 11, 2):
        parts.append(f'<line class="grid" x1="{x(tick / 10)}" x2="{x(tick / 10)}" y1="{TOP_MARGIN}" y2="{foot}"/>')
        parts.append(f'<text x="{x(tick / 10)}" y="{foot + 18}" text-anchor="middle">{tick * 10} %</text>')
    for value in ticks(low, high):
        parts.append(f'<line class="grid" x1="{LEFT_MARGIN}" x2="{x(1)}" y1="{y(value)}" y2="{y(value)}"/>')
        parts.append(f'<text x="{LEFT_MARGIN - 6}" y="{y(value) + 4}" text-anchor="end">{value:.4g}</text>')
    parts.append(f'<text x="{x(0.5)}" y="{HEIGHT - 8}" text-anchor="middle">upload ratio</text>')
    for tier in report.tiers:
        tier_y = y(tier.measures["accuracy"])
        parts.append(f'<line class="end" x1="{LEFT_MARGIN}" x2="{x(1)}" y1="{tier_y}" y2="{tier_y}"/>')
        parts.append(f'<text class="tier" x="{x(1) + 6}" y="{tier_y + 4}">{escape(tier.name[:12])} only</text>')
    for line in curves:
        points = " ".join(f"{x(point['upload_ratio'])},{y(point['accuracy'])}" for point in line.points)
        name, stroke = escape(line.name), f'stroke="{line.colour}" stroke-width="{line.width}"'
        parts.append(
            f'<polyline class="curve" data-rule="{name}" points="{points}" {stroke} '
            f'stroke-dasharray="{line.stroke}"><title>{name}</title></polyline>'
        )
    point = report.operating_point
    title = f"as configured: {point.rule}, {point.upload_ratio:.1%} go up, {report.metric} {point.accuracy:.4f}"
    parts.append(
        f'<circle cx="{x(point.upload_ratio)}" cy="{y(point.accuracy)}" r="6" fill="{OPERATING_COLOUR}">'
        f"<title>{escape(title)}</title></circle>"
    )
    parts.append(f'<line id="at" y1="{TOP_MARGIN}" y2="{foot}"/></svg>')
    return "".join(parts)


def _switch(line: MetricLine) -> str:
    """Return the check box that shows and hides a curve, with its key."""
    style = "solid" if not line.stroke else "dashed" if line.stroke == STROKES[1] else "dotted"
    key = f'<span class="key" style="border-color:{line.colour};border-top-style:{style}"></span>'
    name = escape(line.name)
    return f'<label><input type="checkbox" value="{name}" checked> {key} {name}</label>'


def _table(heading: Sequence[str], rows: Rows) -> str:
    """Return an HTML table, without a head if ``heading`` is empty. Cells are escaped."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def _notes(report: EvaluationReport) -> str:
    """Return two lists as HTML: notes on the metrics, and the rules without a curve with the reasons."""
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
    """A curve to draw: its SVG colour, dashes (``stroke``; empty: a solid line) and width in pixels."""

    name: str
    points: Sequence[Point]
    colour: str
    stroke: str
    width: float = 1.5


def lines(report: EvaluationReport) -> list[MetricLine]:
    """Return all curves, the bounds last. The curve of the service's own rule is bold; that of Random is a bound."""
    own = report.operating_point.rule.lower()
    curves = [
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
    return curves + [MetricLine(name, points, BOUND_COLOURS[name], stroke) for name, points, stroke in bounds]


def oracle_name(report: EvaluationReport) -> str:
    """Return the name of the upper bound: of a detector it is only "by rewards", which a rule may exceed.

    The best order for mean average precision is not known.
    """
    return REWARDS if report.task == "detection" else ORACLE


def rules(report: EvaluationReport) -> dict[str, Sequence[Point]]:
    """Return the curves of all rules but Random."""
    return {name: points for name, points in report.curves.items() if name.lower() != RANDOM}


def ratio_rows(report: EvaluationReport) -> tuple[list[str], Rows]:
    """Return the heading, and a row for each curve with its accuracy at ``RATIOS``.

    The upper bound is first and random uploads are last; between them are the rules, the best first.
    """
    heading = ["RULE", *(f"{ratio:.0%}" for ratio in RATIOS)]
    # by the accuracy at one ratio, in the middle of the table
    best = sorted(rules(report).items(), key=lambda item: -accuracy_at(item[1], RATIOS[len(RATIOS) // 2]))
    curves = [(oracle_name(report), report.oracle), *best, (RANDOM, report.random)]
    return heading, [[name, *(f"{accuracy_at(points, ratio):.4f}" for ratio in RATIOS)] for name, points in curves]


def tier_rows(report: EvaluationReport) -> tuple[list[str], Rows]:
    """Return the heading, and a row for each tier with the measures of its model alone."""
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
    """Return rows of name and value about the service as configured."""
    point, link = report.operating_point, report.link
    parameters = ", ".join(f"{key} {value}" for key, value in point.parameters.items())
    budget = f", {point.target_upload_ratio:.1%} held" if point.target_upload_ratio is not None else ""
    if point.audit_share:
        budget += f"{' with' if budget else ', and'} audits of {point.audit_share:.1%} of the easy ones"
    saved = 1 - point.bytes_to_cloud / report.bytes_cloud_only if report.bytes_cloud_only else 0.0
    cloud_ms = report.latency_cloud_only_ms
    rows = [
        ["rule", f"{point.rule} ({parameters})" if parameters else point.rule],
        ["go up", f"{point.upload_ratio:.1%}{budget}"],
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
    """Return the mean costs as text; the service has ``costs``."""
    alone = f"{point.cost_edge_only:.4g} by the edge alone, {point.cost_cloud_only:.4g} by the cloud alone"
    return f"{point.cost:.4g} a sample, {alone}"


def measure_name(report: EvaluationReport, name: str) -> str:
    """Return the heading of a measure that has this name in a report."""
    headings = {
        "accuracy": report.metric.upper(),
        "map_50_95": "MAP@0.5:0.95",
        "recall": "OBJECT RECALL",
        "character_error_rate": "CHARACTER ERROR RATE",
    }
    return headings[name]


def describe_data(report: EvaluationReport) -> str:
    """Return one sentence about the evaluated data."""
    truth = "their labels" if report.reference == "labels" else "the cloud's answers, since they have no labels"
    return f"{report.samples} samples, measured by {report.metric} against {truth}."


def scale(report: EvaluationReport) -> tuple[float, float]:
    """Return the lowest and the highest accuracy on the axis of a plot, with a margin."""
    values = [point["accuracy"] for line in lines(report) for point in line.points]
    values += [report.operating_point.accuracy, *(tier.measures["accuracy"] for tier in report.tiers)]
    low, high = min(values), max(values)
    margin = max(high - low, 0.01) * 0.06
    return low - margin, high + margin
