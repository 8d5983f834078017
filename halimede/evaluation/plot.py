"""A report as a picture, by matplotlib: the demo extra alone has it."""

from __future__ import annotations

from pathlib import Path

from halimede.evaluation import metrics
from halimede.evaluation.evaluate import EvaluationReport

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
