"""The page of the demo: accuracy by round, against one place and each node alone; bytes, and drop-outs. Pure."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from examples.federated import report
from examples.federated.report import FinishedJob
from examples.federated.split import NODES, digits_of
from halimede.html_report import charts
from halimede.html_report.charts import ChartAxis
from halimede.html_report.page import render, table, tile

TITLE = "Five nodes learn ten digits, and no digit leaves its node"
STYLE = ".charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1.2rem }"
HONEST = """All processes ran on one machine over one Mosquitto. A node holds a fifth of its samples out of the
training; the curves show the accuracy on those, as the aggregator published it. The final accuracies are those of the
exported ONNX models on the half of the digits that no node has. Bytes are those of all payloads on the job's topics.
Compression applies to updates and to changes of the weights: a trainer fetches whole weights in its first round."""


def page(found: Mapping[str, Any], jobs: Mapping[str, FinishedJob]) -> str:
    """Return report.html."""
    body = [
        _section("Accuracy by round", f'<div class="charts">{_curves(found, jobs)}</div>'),
        _section("Each node alone", _alone(found)),
        _section("All figures of this run", table(report.table(found)) + f'<p class="soft">{HONEST}</p>'),
    ]
    intro = (
        f"Each of five nodes has two of the ten digits. In {found['rounds']} rounds each trains the same model on its "
        "own digits and publishes how the weights changed; an aggregator makes one model of that, which knows all ten."
    )
    return render(TITLE, intro, _tiles(found), "\n".join(body), style=STYLE)


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>\n{inside}</section>"


def _tiles(found: Mapping[str, Any]) -> list[str]:
    central, federated, alone = (found[f"{n}_accuracy"] for n in ("centralised", "federated", "best_single"))
    dropped, compressed = found["dropout_accuracy"], found["compressed_accuracy"]
    fewer = report.times_fewer(found)
    return [
        tile(f"{federated:.3f}", "accuracy, federated", f"{central:.3f} with all digits in one place",
             met=federated >= central - report.LOSS),
        tile(f"{alone:.3f}", "accuracy of the best node alone", f"goal: {report.GAIN} below federated",
             met=federated >= alone + report.GAIN),
        tile(f"{dropped:.3f}", "two of five drop out of each round", f"{found['dropped_updates']} updates missing",
             met=dropped >= central - report.LOSS_DROPPED),
        tile(f"{fewer:.1f} x", "fewer bytes of a round, compressed", f"accuracy {compressed:.3f}",
             met=fewer >= report.FEWER_BYTES and compressed >= federated - report.LOSS_COMPRESSED),
        tile(f"{found['bytes_per_round'] / 1000:,.0f} kB", "a round on the bus", "weights, updates, all messages"),
    ]  # fmt: skip


def _curves(found: Mapping[str, Any], jobs: Mapping[str, FinishedJob]) -> str:
    up = ChartAxis(0, 1, "{:.1f}", "accuracy")
    levels = {
        "all digits in one place": (found["centralised_accuracy"], "var(--green)"),
        "best node alone": (found["best_single_accuracy"], "var(--orange)"),
    }
    drawn = []
    for name, job in jobs.items():
        across = ChartAxis(1, job.rounds + 1, "{:g}", "round")
        chart = charts.curve(job.course, "var(--blue)", across, up, levels=levels)
        drawn.append(f"<div><h3>{html.escape(name)}</h3>{chart}</div>")
    return "".join(drawn)


def _alone(found: Mapping[str, Any]) -> str:
    names: Sequence[str] = [f"{node}: {' and '.join(map(str, digits_of(i)))}" for i, node in enumerate(NODES)]
    values = dict(zip(names, found["single_accuracies"], strict=True))
    return charts.bars(
        values, dict.fromkeys(values, "var(--orange)"), target=(found["federated_accuracy"], "federated")
    )
