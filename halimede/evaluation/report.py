"""A report as files: an HTML page that needs nothing else and shows values under the pointer, and a plot as PNG."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

import msgspec

from halimede.evaluation import metrics
from halimede.evaluation.evaluate import EvaluationReport
from halimede.evaluation.metrics import MetricLine, Rows

#: dashes of SVG as matplotlib writes them
DASHES = {stroke: (0, tuple(map(float, stroke.split()))) for stroke in metrics.STROKES if stroke}
DPI = 100


def write_plot(report: EvaluationReport, path: Path) -> None:
    """Write a PNG. Raises ImportError where matplotlib is missing."""
    import matplotlib as mpl  # noqa: PLC0415  # slow to import, and of an extra

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
    for line in metrics.lines(report):
        ratios, values = ([point[key] for point in line.points] for key in ("upload_ratio", "accuracy"))
        style = DASHES.get(line.stroke, "solid")
        axes.plot(ratios, values, color=line.colour, linestyle=style, linewidth=line.width, label=_plain(line.name))
    for tier in report.tiers:
        value = tier.measures["accuracy"]
        axes.axhline(value, color="#bbbbbb", linestyle=":", linewidth=1, zorder=0)
        axes.annotate(_plain(f"{tier.name} only"), (1, value), (4, 0), textcoords="offset points", va="center", size=8)
    point = report.operating_point
    label = _plain(f"as configured: {point.rule}")
    axes.plot(point.upload_ratio, point.accuracy, "o", color=metrics.OPERATING_COLOUR, label=label, clip_on=False)
    axes.set(xlabel="upload ratio", ylabel=report.metric, xlim=(0, 1), ylim=metrics.scale(report))
    axes.set_title(_plain(report.service), size=11)
    axes.legend(loc="lower right", frameon=False, ncols=2, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def _plain(text: str) -> str:
    """Keep matplotlib from reading formulas in names."""
    return text.replace("$", r"\$")


WIDTH, HEIGHT = 860, 460
LEFT, RIGHT, TOP, BOTTOM = 64, 110, 12, 48


def page(report: EvaluationReport) -> str:
    """Return the page. Whatever comes from manifests and data is escaped."""
    drawn = metrics.lines(report)
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
        about=escape(metrics.about(report)),
        svg=_svg(report, drawn),
        switches="".join(_switch(line) for line in drawn),
        ratios=_table(*metrics.ratio_rows(report)),
        tiers=_table(*metrics.tier_rows(report)),
        operating=_table([], metrics.operating_rows(report)),
        notes=_notes(report),
        # inside a script nothing is unescaped, and only this sign could end it
        data=json.dumps(data).replace("<", "\\u003c"),
    )


def _svg(report: EvaluationReport, drawn: Sequence[MetricLine]) -> str:
    low, high = metrics.scale(report)

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
        parts.append(f'<text x="{x(1) + 6}" y="{at + 4}">{escape(tier.name[:12])} only</text>')
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
        f'<circle cx="{x(point.upload_ratio)}" cy="{y(point.accuracy)}" r="6" fill="{metrics.OPERATING_COLOUR}">'
        f"<title>{escape(said)}</title></circle>"
    )
    parts.append(f'<line id="at" y1="{TOP}" y2="{foot}"/></svg>')
    return "".join(parts)


def ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers between two."""
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    return [round(n * step, 10) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _switch(line: MetricLine) -> str:
    style = "solid" if not line.stroke else "dashed" if line.stroke == metrics.STROKES[1] else "dotted"
    key = f'<span class="key" style="border-color:{line.colour};border-top-style:{style}"></span>'
    name = escape(line.name)
    return f'<label><input type="checkbox" value="{name}" checked> {key} {name}</label>'


def _table(heading: Sequence[str], rows: Rows) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def _notes(report: EvaluationReport) -> str:
    if not report.left_out:
        return ""
    listed = "".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in sorted(report.left_out.items()))
    return f"<h2>Rules without a curve</h2><ul>{listed}</ul>"
