"""The page of the demo: accuracy and uploads over time, with the drift, the versions, and what was refused. Pure."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from examples.learning_loop import report
from examples.learning_loop.report import FinishedRun
from examples.learning_loop.stream import Mark, SentFrame
from halimede.html_report import charts
from halimede.html_report.charts import ChartAxis
from halimede.html_report.page import render, table, tile

TITLE = "A stream drifts, and the service learns it"
STYLE = ".charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1.2rem }"
#: seconds over which a point of a curve is the mean
WINDOW_S = 4.0
#: what the steps of a loop are to people; others are left out of the charts
SHOWN = {"Canary": "canary", "RolledOut": "rolled out", "Withdrawn": "refused"}
HONEST = """All processes ran on one machine over one Mosquitto. Truth is known for each frame, because the cameras send
digits with known labels; the loop does not see it: it learns from the answers of the big model. The limits of this loop
are wide, so that a round takes a minute: docs/performance.md has the measurement of the loop with its defaults."""


def page(found: Mapping[str, Any], run: FinishedRun) -> str:
    """Return report.html."""
    steps = [(f"{mark.at_s:.0f} s", mark.text, mark.version) for mark in run.marks]
    rounds = [
        (str(record.get("round")), str(record.get("trigger")), str(record.get("version") or "-"),
         str(record.get("outcome")), str(record.get("reason")), str(record.get("message")))
        for record in run.history
    ]  # fmt: skip
    body = [
        _section("Accuracy and uploads over time", f'<div class="charts">{_curves(run)}</div>'),
        _section("Rounds", table(rounds, ("round", "trigger", "version", "outcome", "reason", "message"))),
        _section("What happened when", table(steps)),
        _section("All figures of this run", table(report.table(found)) + f'<p class="soft">{HONEST}</p>'),
    ]
    intro = (
        "24 cameras send digits to a small model at the edge and a big one in the cloud. Then the cameras see mirror "
        "images. The loop trains on the node, proves the new version, and rolls it out; a bad candidate is refused."
    )
    return render(TITLE, intro, _tiles(found), "\n".join(body), style=STYLE)


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>\n{inside}</section>"


def _tiles(found: Mapping[str, Any]) -> list[str]:
    broken = " ".join(report.missed(found))
    before, low, after = (found[f"accuracy_{name}"] for name in ("before_drift", "drifted", "after"))
    calm, high, then = (found[f"upload_ratio_{name}"] for name in ("before", "drifted", "after"))
    training = found["edge_p99_ms_training"]
    return [
        tile(f"{after:.3f}", "accuracy after the roll-out", f"{before:.3f} before the drift, {low:.3f} drifted",
             met="accuracy" not in broken),
        tile(f"{then:.0%}", "uploads after the roll-out", f"{calm:.0%} before the drift, {high:.0%} drifted",
             met="uploads" not in broken),
        tile(f"{found['rolled_out']} / {found['refused']}", "candidates rolled out / refused",
             ", ".join(found["refused_reasons"]) or "none refused", met="candidate" not in broken),
        tile(f"{found['lost']}", "frames lost", f"of {found['frames']:,}", met=not found["lost"]),
        tile(f"{training:.1f} ms", "p99 at the edge while training",
             f"{found['edge_p99_ms_drifted']:.1f} ms before that, {found['edge_p99_ms_before']:.1f} ms before drift",
             met="p99" not in broken),
    ]  # fmt: skip


def _curves(run: FinishedRun) -> str:
    drawn = []
    for name, measure, colour in (
        ("Accuracy of the service", report.accuracy, "var(--green)"),
        ("Share of uploads", report.uploads, "var(--orange)"),
    ):
        across, up = ChartAxis(0, run.end_s, "{:g} s", "time"), ChartAxis(0, 1, "{:.1f}", name.lower())
        chart = charts.curve(course(run, measure), colour, across, up, levels={}, verticals=_marks(run.marks))
        drawn.append(f"<div><h3>{html.escape(name)}</h3>{chart}</div>")
    return "".join(drawn)


def course(run: FinishedRun, measure: Callable[[Sequence[SentFrame]], float]) -> list[tuple[float, float]]:
    """Return time and mean of a measure over the frames of the seconds before it."""
    return [
        (float(second), measure(frames))
        for second in range(int(WINDOW_S), int(run.end_s) + 1)
        if (frames := run.between(second - WINDOW_S, second))
    ]


def _marks(marks: Sequence[Mark]) -> dict[float, str]:
    shown = [mark for mark in marks if mark.state in SHOWN or not mark.state]
    return {mark.at_s: f"{SHOWN[mark.state]} {mark.version[-5:]}" if mark.state else mark.text for mark in shown}
