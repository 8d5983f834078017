"""The page of the demo: what travelled where, what it cost and bought, the hardest samples, and how long it took. Pure.

All numbers are those of report.json; curves and pictures are of the same answers.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from examples.digits import report
from examples.digits.report import Answer
from halimede.html_report import charts
from halimede.html_report.charts import ChartAxis, Stop
from halimede.html_report.page import keys, picture, render, table, tile

TITLE = "Two small models ask a big one, where it is worth it"
#: who answered
BY = {"edge": "var(--blue)", "cloud": "var(--violet)"}
JOINT = "var(--green)"
STYLE = """\
.samples { display: grid; grid-template-columns: repeat(auto-fill, minmax(7.8rem, 1fr)); gap: .8rem }
.sample { border: 1px solid var(--line); border-radius: 10px; padding: .5rem; font-size: .86rem }
.sample img { width: 100%; aspect-ratio: 1; image-rendering: pixelated; border-radius: 6px; display: block;
  margin-bottom: .4rem } .sample div { display: flex; justify-content: space-between; gap: .3rem }
.sample b { font-size: 1.05rem } .sample .soft { white-space: nowrap; overflow: hidden; text-overflow: ellipsis }
@media (max-width: 52rem) { .samples { grid-template-columns: repeat(3, minmax(0, 1fr)); gap: .5rem }
  .sample { padding: .4rem; font-size: .78rem } }
"""
HONEST = """All parts ran on one machine, as processes of their own over one MQTT broker. Both models learnt from other
digits than these. A frame that was published and has no result is lost. Bytes of frames and of uploads are those of
the pictures, bytes of results those of their JSON."""


def page(found: Mapping[str, Any], answers: Sequence[Answer]) -> str:
    """Return report.html."""
    body = [
        _section("What travelled where", _travelled(found)),
        _section("Cost against budget", _cost(found)),
        _section("What the uploads bought", _bought(found, answers)),
        _section(f"The {len(found['hardest'])} hardest samples", _hardest(found, answers)),
        _section("How long an answer took", _waits(found, answers)),
        _section("All figures of this run", table(report.table(found)) + f'<p class="soft">{HONEST}</p>'),
    ]
    return render(TITLE, _intro(found), _tiles(found), "\n".join(body), style=STYLE)


def size(count: float) -> str:
    """Return a number of bytes, as people read it."""
    return (
        f"{count:,.0f} B" if count < 10_000 else f"{count / 1000:,.1f} kB" if count < 1e6 else f"{count / 1e6:,.1f} MB"
    )


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>\n{inside}</section>"


def _intro(found: Mapping[str, Any]) -> str:
    by = found["answered_by"]
    return (
        f"Two cameras published {found['samples']:,} handwritten digits over MQTT. On each of two edge nodes a small "
        f"model answered at once what it was sure of, {by['edge']:,} of them. What it was not sure of it sent on to a "
        f"big model on a cloud node, which answered {by['cloud']:,}."
    )


def _tiles(found: Mapping[str, Any]) -> list[str]:
    joint, edge, cloud = (found[f"{name}_accuracy"] for name in ("joint", "edge_only", "cloud_only"))
    lost, ratio, budget = found["lost"], found["upload_ratio"], found["upload_budget"]
    saved = 1 - found["uploaded_bytes"] / max(found["all_bytes"], 1)
    offload = found["offload_latency_ms"]
    return [
        tile(f"{lost}", f"of {found['samples']:,} samples lost", "none may be", met=lost == 0),
        tile(f"{joint:.4f}", "accuracy, both together", f"{edge:.4f} by the edge alone", met=joint > edge),
        tile(f"{(joint - edge) / max(cloud - edge, 1e-9):.0%}", "of what the cloud would gain",
             f"{cloud:.4f} by the cloud alone", met=joint > edge),
        tile(f"{ratio:.1%}", "of samples sent to the cloud", f"at most {budget:.0%}: {found['upload_budget_of']}",
             met=ratio <= budget),
        tile(f"{saved:.0%}", "of the bytes to the cloud saved",
             f"{size(found['uploaded_bytes'])} of {size(found['all_bytes'])} sent", met=saved > 0),
        tile(f"{offload['p50']:.2f} ms", "to the cloud and back, p50", f"{offload['p99']:.2f} ms p99",
             met=found["degraded"] == 0),
    ]  # fmt: skip


def _travelled(found: Mapping[str, Any]) -> str:
    links, by = found["links"], found["answered_by"]

    def passed(what: str, name: str, end: str) -> list[str]:
        chosen = [link for link in links if link["what"] == what and link[end] == name]
        return [f"{sum(link['messages'] for link in chosen):,} samples", size(sum(link["bytes"] for link in chosen))]

    cameras = sorted({link["from"] for link in links if link["what"] == "frames"})
    nodes = sorted({link["to"] for link in links if link["what"] == "frames"})
    hard = [(link["from"], "cloud", link["messages"]) for link in links if link["what"] == "hard samples"]
    sent = {node: sum(count for source, _, count in hard if source == node) for node in nodes}
    bands = [(link["from"], link["to"], link["messages"]) for link in links if link["what"] == "frames"]
    received = {node: sum(count for _, to, count in bands if to == node) for node in nodes}
    columns = [
        [Stop(name, passed("frames", name, "from"), "var(--soft)") for name in cameras],
        [Stop(name, passed("frames", name, "to"), BY["edge"]) for name in nodes],
        [
            Stop(
                "edge's answer",
                [f"{by['edge']:,} samples", f"{by['edge'] / max(found['answered'], 1):.1%}"],
                BY["edge"],
            ),
            Stop("cloud", passed("hard samples", "cloud", "to"), BY["cloud"]),
        ],
    ]
    bands += [(node, "edge's answer", received[node] - sent[node]) for node in nodes] + hard
    rows = [
        (
            f"{e['from']} → {e['to']}",
            e["what"],
            f"{e['messages']:,}",
            size(e["bytes"]),
            f"{e['bytes'] / e['messages']:.0f} B",
        )
        for e in links
    ]
    listed = table(rows, ("link", "what", "messages", "bytes", "each"))
    drawn = charts.flow(columns, bands, "How many samples went from cameras to edge nodes, and from there to the cloud")
    return (
        "<p>A band is as thick as there are samples in it. Each camera's frames are shared among the edge nodes, so "
        f'that each is answered once.</p><div class="two"><div>{drawn}</div>{listed}</div>'
    )


def _cost(found: Mapping[str, Any]) -> str:
    over, budget, ratio = found["over_time"], found["upload_budget"], found["upload_ratio"]
    step = over["step_s"]
    points = [((i + 1) * step, share) for i, share in enumerate(over["upload_ratio"])]
    most = max([budget, *over["upload_ratio"]]) * 1.25
    spent = charts.curve(
        points, BY["cloud"], ChartAxis(0, max(points[-1][0], step), "{:g} s", "seconds of the run"),
        ChartAxis(0, most, "{:.0%}", "share sent to the cloud so far"),
        levels={f"budget {budget:.0%}": (budget, "var(--ink)")},
    )  # fmt: skip
    rates = {name: [count / step for count in over[name]] for name in BY}
    answered = charts.stacked_bars(rates, BY, step=step, unit="answers a second, by who answered")
    verdict = "within" if ratio <= budget else "over"
    audits = (
        f" {found['audited']} easy samples were audits; {found['audit_agreed']} agreed." if found["audited"] else ""
    )
    return (
        f"<p>Samples sent to the cloud are what this costs: <b>{ratio:.1%}</b> of all, {verdict} the budget of "
        f"{budget:.0%} ({html.escape(found['upload_budget_of'])}), or {size(found['uploaded_bytes'])} where "
        f"{size(found['all_bytes'])} would have travelled had the cloud answered everything.{audits}</p>"
        f'<div class="two"><div>{spent}</div><div>{answered}{keys(BY)}</div></div>'
    )


def _bought(found: Mapping[str, Any], answers: Sequence[Answer]) -> str:
    worth = found["uploads"]
    values = {
        "edge alone": found["edge_only_accuracy"], "together": found["joint_accuracy"],
        "cloud alone": found["cloud_only_accuracy"],
    }  # fmt: skip
    bars = charts.bars(values, dict(zip(values, (BY["edge"], JOINT, BY["cloud"]), strict=True)))
    points = report.curve(answers)
    heights = [*values.values(), *(value for _, value in points)]
    rim = max(max(heights) - min(heights), 0.01) * 0.12
    line = charts.curve(
        points, JOINT, ChartAxis(0, 1, "{:.0%}", "share sent to the cloud"),
        ChartAxis(min(heights) - rim, max(heights) + rim, "{:.2f}", "accuracy together"),
        levels={name: (values[name], BY[name.split()[0]]) for name in ("edge alone", "cloud alone")},
        dot=(found["upload_ratio"], found["joint_accuracy"], "this run"),
    )  # fmt: skip
    explained = (
        f"<p>Of {sum(worth.values())} answers of the cloud, <b>{worth['mended']}</b> mended a mistake of the edge and "
        f"{worth['spoiled']} spoiled what was right. In {worth['both_right']} cases both were right, in "
        f"{worth['both_wrong']} both wrong.</p>"
        "<p>The line is the accuracy that other thresholds would have given on the same samples. The dot is what this "
        "run measured.</p>"
    )
    return f'<div class="two"><div>{bars}{explained}</div><div>{line}</div></div>'


def _hardest(found: Mapping[str, Any], answers: Sequence[Answer]) -> str:
    pictures = {a.result.id: a.png for a in answers}
    parts = []
    for one in found["hardest"]:
        shown = picture(pictures[one["id"]], f"a handwritten {one['truth']}", kind="png")
        cloud = _said("cloud", one["cloud"], one["truth"]) if one["cloud"] else _degraded(one["reason"])
        edge = _said("edge", one["edge"], one["truth"])
        parts.append(
            f'<div class="sample" id="sample-{one["id"]}">{shown}{edge}{cloud}'
            f'<div class="soft"><span>truth {html.escape(one["truth"])}</span>'
            f"<span>{html.escape(one['camera'])}</span></div></div>"
        )
    return (
        "<p>Those of which the small model's two best classes were closest, with its answer and the big model's, and "
        f'how sure each was.</p><div class="samples">{"".join(parts)}</div>'
    )


def _said(by: str, answer: Mapping[str, Any], truth: str) -> str:
    css = "right" if answer["label"] == truth else "wrong"
    label = html.escape(answer["label"] or "?")
    return f'<div><span>{by}</span><span><b class="{css}">{label}</b> <small>{answer["score"]:.2f}</small></span></div>'


def _degraded(reason: str) -> str:
    return f"<div><span>cloud</span><small>none: {html.escape(reason or 'no reply')}</small></div>"


def _waits(found: Mapping[str, Any], answers: Sequence[Answer]) -> str:
    points = [(a.at_s, a.wait_ms, "cloud" if a.result.by == "cloud" else "edge") for a in answers]
    seconds = max([at for at, _, _ in points] or [1.0]) + 0.1
    rows = [
        (name, *(f"{found['times_ms'][key][share]:.2f} ms" for share in ("p50", "p99")))
        for key, name in report.TIMES.items()
    ]
    drawn = charts.waits(points, [], seconds, BY)
    return (
        "<p>Each dot is a sample: when its result came, and how long after its frame was published. The scale "
        f'is a square root.</p><div class="wide">{drawn}</div>{keys(BY)}'
        f"{table(rows, ('time', 'p50', 'p99'))}"
    )
