"""The page of a run: what went up and why, what that cost and bought, and pictures with both answers. Pure."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from examples.real_pairs import report
from examples.real_pairs.pairs import Pair
from examples.real_pairs.report import Answer, Run
from halimede.answer_text import count_text
from halimede.evaluation.quality import OBJECT_SCORE
from halimede.frames.drawing import EDGE_COLOUR, FINAL_COLOUR, TRUTH_COLOUR, Layer, draw_jpeg, truth_layer
from halimede.frames.encodings import decode
from halimede.frames.payloads import open_payload
from halimede.html_report import charts
from halimede.html_report.charts import ChartAxis
from halimede.html_report.page import keys, picture, render, table, tile
from halimede.messages import Box, Prediction
from halimede.mining.scores import HARDEST

Truths = Sequence[Sequence[Box]] | Sequence[str]
COLOURS = {"edge": "var(--blue)", "joint": "var(--green)", "cloud": "var(--violet)"}
#: pictures of each outcome on the page, of which the first of the run are shown; most bytes of one
SHOWN, SIDE, MAX_BYTES = 6, 560, 28 * 1024
STYLE = """\
.outcome { margin: 1.1rem 0 .3rem } .shots { display: grid; gap: .9rem;
  grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)) }
.shots.small { grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: .6rem }
.shot { border: 1px solid var(--line); border-radius: 10px; overflow: hidden }
.shot img { display: block; width: 100%; background: #0b0e12 }
.small figcaption { padding: .4rem .5rem; font-size: .78rem }
.small .shot img { height: 4.4rem; object-fit: contain; padding: .4rem }
.shot figcaption { padding: .45rem .6rem .55rem; margin: 0 } .shot figcaption div { display: flex; gap: .5rem;
  justify-content: space-between } .shot b { font-weight: 600 }
.keys .key { border: 1px solid var(--line) }
.shot figcaption div span { white-space: nowrap } .read { font: .88rem ui-monospace, monospace }
@media (max-width: 52rem) { .shots:not(.small) > :nth-child(n + 4) { display: none } }
"""
HONEST = """Broker, GM, the edge node and the cloud node ran as processes on one machine. Afterwards the big model alone
answered the same frames, for the comparison. Intervals are of 95 %: frames are drawn again, as if this stream had shown
others. Bytes together are those that the edge's workers count as sent to the cloud, bytes of the cloud alone those of
all pictures."""


def page(pair: Pair, run: Run, fields: Mapping[str, Any], truths: Truths) -> str:
    """Return report.html. ``truths``: of each answer, boxes or a text."""
    body = [
        _section("What the uploads bought", _bought(pair, fields)),
        _section("What went up, and why", _shots(pair, run, fields, truths)),
        _section("What travelled", _travelled(fields)),
        _section("Whose models and pictures these are", _origins(pair, fields)),
        _section("All figures of this run", table(report.table(fields)) + f'<p class="soft">{HONEST}</p>'),
    ]
    return render(pair.title, _intro(pair, fields), _tiles(fields), "\n".join(body), style=STYLE)


def size(count: float) -> str:
    """Return a number of bytes, as people read it."""
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} kB"


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>\n{inside}</section>"


def _intro(pair: Pair, fields: Mapping[str, Any]) -> str:
    return (
        f"{pair.intro} Of {fields['answered']:,} frames {fields['upload_share']['value']:.0%} went up; the budget was "
        f"{fields['upload_budget']:.0%}."
    )


def _tiles(fields: Mapping[str, Any]) -> list[str]:
    edge, joint, cloud = (fields[name][fields["accuracy"]]["value"] for name in report.ANSWERS)
    name = fields["measures"][fields["accuracy"]]
    up, budget = fields["upload_share"]["value"], fields["upload_budget"]
    gain = (joint - edge) / max(cloud - edge, 1e-9)
    saved = 1 - fields["bytes_joint"] / max(fields["bytes_cloud"], 1)
    return [
        tile(f"{joint:.3f}", f"{name}, together", f"{edge:.3f} by the edge alone", met=joint > edge),
        tile(f"{gain:.0%}", "of what the cloud would gain", f"{cloud:.3f} by the cloud alone", met=joint > edge),
        tile(f"{up:.1%}", "of frames went up", f"the budget is {budget:.0%}", met=up <= budget + 0.02),
        tile(f"{saved:.0%}", "of the bytes to the cloud saved",
             f"{size(fields['bytes_joint'])} of {size(fields['bytes_cloud'])} sent", met=saved > 0),
        tile(f"{fields['lost']}", f"of {fields['frames']:,} frames lost", "none may be", met=fields["lost"] == 0),
        tile(f"{fields['frames_per_s']:g}", "frames a second", "as fast as the cameras sent them",
             met=fields["degraded"] == 0),
    ]  # fmt: skip


def accuracy_charts(pair: Pair, fields: Mapping[str, Any]) -> tuple[str, str]:
    """Return the accuracies with their intervals as bars, and the accuracy by the share of uploads as a curve."""
    accuracy, names = fields["accuracy"], {"edge": pair.small, "joint": "together", "cloud": pair.big}
    values = {names[key]: fields[key][accuracy] for key in report.ANSWERS}
    colours = {names[key]: colour for key, colour in COLOURS.items()}
    bars = charts.bars(
        {name: value["value"] for name, value in values.items()},
        colours,
        ends={name: (value["low"], value["high"]) for name, value in values.items()},
    )
    heights = [height for _, height in (*fields["curve"], *fields["chance"])]
    rim = max(max(heights) - min(heights), 0.02) * 0.14
    curve = charts.curve(
        fields["curve"], COLOURS["joint"], ChartAxis(0, 1, "{:.0%}", "share that goes up"),
        ChartAxis(min(heights) - rim, max(heights) + rim, "{:.2f}", fields["measures"][accuracy]),
        levels={names[key]: (fields[key][accuracy]["value"], COLOURS[key]) for key in ("edge", "cloud")},
        dot=(fields["upload_share"]["value"], fields["joint"][accuracy]["value"], "this run"),
        verticals={fields["upload_budget"]: "budget"},
        baseline=fields["chance"],
    )  # fmt: skip
    return bars, curve


def _bought(pair: Pair, fields: Mapping[str, Any]) -> str:
    bars, curve = accuracy_charts(pair, fields)
    rows = [
        (name, *(report.interval(fields[key][measure]) for measure in fields["measures"]))
        for key, name in (("edge", f"{pair.small} alone"), ("joint", "together"), ("cloud", f"{pair.big} alone"))
    ]
    return (
        f'<div class="two"><div>{bars}<p>{html.escape(pair.measured)} '
        "The line on a bar is the 95&nbsp;% interval.</p></div>"
        f"<div>{curve}<p>The green line is the accuracy that each budget would have had on these frames, if "
        "the hardest go up first. The grey line is that of as many random uploads.</p></div></div>"
        f"{table(rows, ('', *fields['measures'].values()))}"
    )


def _shots(pair: Pair, run: Run, fields: Mapping[str, Any], truths: Truths) -> str:
    outcomes, rule = report.outcomes(run), fields["calibration"]["rule"]
    about = (
        f"<p>The rule {html.escape(str(rule))} gives each answer of {html.escape(pair.small)} a number, its hardness. "
        "Frames at or above the cut go up while the budget has room, and a few easy ones as audits.</p>"
    )
    parts = [about, _legend(pair, truths)]
    for outcome in report.OUTCOMES:
        chosen = [i for i, own in enumerate(outcomes) if own == outcome]
        if not chosen:
            continue
        shots = "".join(_shot(pair, run.answers[i], truths[i]) for i in chosen[:SHOWN])
        css = "shots small" if isinstance(truths[chosen[0]], str) else "shots"
        heading = f"{outcome}: {count_text(len(chosen), 'frame', 'frames')}, {len(chosen) / len(outcomes):.1%}"
        some = "; the first of them" if len(chosen) > SHOWN else ""
        parts.append(f'<h3 class="outcome">{html.escape(heading)}{some}</h3><div class="{css}">{shots}</div>')
    return "".join(parts)


def _legend(pair: Pair, truths: Truths) -> str:
    if not truths or isinstance(truths[0], str):
        return ""
    colours = keys({pair.small: EDGE_COLOUR, pair.big: FINAL_COLOUR, "truth, dashed": TRUTH_COLOUR})
    return f"{colours}<p>Boxes with a score below {OBJECT_SCORE} are drawn, and do not count.</p>"


def _shot(pair: Pair, answer: Answer, truth: Sequence[Box] | str) -> str:
    """Return a frame with the edge's answer, and with the cloud's if the frame went up."""
    predictions = [(pair.small, answer.edge)]
    if answer.is_uploaded:
        predictions.append((pair.big, answer.result.prediction if answer.result.by == "cloud" else answer.cloud))
    if isinstance(truth, str):
        image = picture(answer.data, f"the word {truth}")
        cells = [(name, _read(prediction, truth)) for name, prediction in predictions]
        cells.append(("truth", f'<span class="read">{html.escape(truth)}</span>'))
    else:
        image = picture(
            _drawn(answer, [prediction for _, prediction in predictions], truth), "a frame with both answers"
        )
        cells = [(name, _boxes(prediction)) for name, prediction in predictions]
        cells.append(("truth", f"<b>{len(truth)}</b>"))
    rows = "".join(f"<div><span>{html.escape(name)}</span><span>{cell}</span></div>" for name, cell in cells)
    why = f"<small>{html.escape(_why(answer))}</small>"
    return f'<figure class="shot">{image}<figcaption>{rows}{why}</figcaption></figure>'


def _drawn(answer: Answer, predictions: Sequence[Prediction], truth: Sequence[Box]) -> bytes:
    """Return the picture with the true boxes and those of each answer, without landmarks."""
    layers = [
        Layer(Prediction(boxes=prediction.boxes), colour=colour)
        for prediction, colour in zip(predictions, (EDGE_COLOUR, FINAL_COLOUR), strict=False)
    ]
    pixels = decode(open_payload(answer.data, answer.camera))
    return draw_jpeg(pixels, [truth_layer(truth), *layers], side=SIDE, max_bytes=MAX_BYTES)


def _read(answer: Prediction, truth: str) -> str:
    css = "right" if answer.label == truth else "wrong"
    return f'<b class="read {css}">{html.escape(answer.label or "-")}</b>'


def _boxes(answer: Prediction) -> str:
    scores = sorted((box.score for box in answer.boxes or ()), reverse=True)
    return f"<b>{len(scores)}</b> <small>{', '.join(f'{score:.2f}' for score in scores[:4])}</small>"


def _why(answer: Answer) -> str:
    """Return why a frame went up, or stayed."""
    result = answer.result
    if result.audit:
        return "an audit: the edge's answer stays"
    if result.hardness is None or result.hardness >= HARDEST:
        return "nothing sure, so the hardest" if result.hard else "nothing sure"
    cut = f", cut {result.cut:.2f}" if result.cut is not None else ""
    reason = "; the budget was spent" if result.reason == "budget" else f"; {result.reason}" if result.reason else ""
    return f"hardness {result.hardness:.2f}{cut}{reason}".replace("-", "\u2212")


def _travelled(fields: Mapping[str, Any]) -> str:
    joint, cloud = fields["bytes_joint"], fields["bytes_cloud"]
    answered = max(fields["answered"], 1)
    rows = [
        ("together", size(joint), size(joint / answered), report.interval(fields["upload_share"])),
        ("the cloud alone", size(cloud), size(cloud / answered), "all"),
    ]
    cameras = [(name, f"{counts['shown']:,}", f"{counts['published']:,}") for name, counts in fields["cameras"].items()]
    note = (
        "<p class='soft'>FFmpeg reads the first frames of a stream to find out what the stream is: they are not "
        "published.</p>"
        if any(counts["shown"] != counts["published"] for counts in fields["cameras"].values())
        else ""
    )
    return (
        f'<div class="two"><div>{table(rows, ("", "bytes to the cloud", "a frame", "share that went up"))}</div>'
        f"<div>{table(cameras, ('camera', 'frames shown', 'published'))}</div></div>{note}"
    )


def _origins(pair: Pair, fields: Mapping[str, Any]) -> str:
    rows = [(package["package"], package["contents"], package["licence"]) for package in fields["packages"]]
    return f"<p>{html.escape(pair.truth)}</p>{table(rows)}"
