"""Small charts as SVG texts, in the page's own colours, so that they fit a light and a dark page. Pure.

Coordinates are pixels from the top left corner. A colour is any CSS colour, such as ``var(--edge)``. Given texts are
escaped.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: pixels of a chart with the page's width, and of a chart with half of it
WIDTH, HALF = 1040, 500


@dataclass(frozen=True)
class Row:
    """One row of a timeline: an identity, with its name (``label``) and colour, and when cameras saw it."""

    label: str
    colour: str
    #: a JPEG in base 64
    picture: str
    #: from and until (seconds), and the name of the camera
    spans: Sequence[tuple[float, float, str]]


@dataclass(frozen=True)
class ChartAxis:
    """One axis of a curve: its range, the ``str.format`` form of its values, and what the values are."""

    low: float
    high: float
    form: str = "{:g}"
    label: str = ""


@dataclass(frozen=True)
class Stop:
    """A point of a flow that samples pass: its name, the lines of text below the name, and its colour."""

    name: str
    lines: Sequence[str]
    colour: str


def svg(width: int, height: int, shapes: Sequence[str], label: str) -> str:
    """Return an SVG element with these shapes (SVG texts). ``label`` describes it to readers who cannot see it."""
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{html.escape(label)}">'
        + "".join(shapes)
        + "</svg>"
    )


def text(x: float, y: float, content: str, *, anchor: str = "start", css: str = "", more: str = "") -> str:
    """Return a text at a point. ``anchor``: the end of it that is there; ``css``: a class; ``more``: attributes."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}" {more}>{html.escape(content)}</text>'


def rect(x: float, y: float, width: float, height: float, fill: str, *, more: str = "") -> str:
    """Return a rectangle with slightly rounded corners; ``more`` are further attributes."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" rx="3" fill="{fill}" {more}/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, *, more: str = 'class="axis"') -> str:
    """Return a line between two points; ``more`` are further attributes."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {more}/>'


def ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers in a range, for an axis; ``high`` must be over ``low``."""
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    return [round(n * step, 10) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def timeline(rows: Sequence[Row], seconds: float, lanes: Mapping[str, str]) -> str:
    """Return a chart of when cameras saw each identity, over ``seconds``, with a cursor that the page's script moves.

    ``lanes``: the colour of each camera, in the order in which cameras stand in a row.
    """
    margin, row_height = 108, 34
    scale, bottom = (WIDTH - margin - 10) / seconds, len(rows) * row_height + 6
    shapes = []
    for second in range(0, int(seconds) + 1, 2):
        x = margin + second * scale
        shapes += [line(x, 0, x, bottom), text(x, bottom + 16, f"{second} s", anchor="middle")]
    for i, row in enumerate(rows):
        y = i * row_height + 6
        shapes.append(f'<image href="data:image/jpeg;base64,{row.picture}" x="2" y="{y}" width="26" height="26"/>')
        shapes.append(rect(2, y, 26, 26, "none", more=f'stroke="{row.colour}" stroke-width="2"'))
        shapes.append(text(36, y + 18, row.label, css="ink", more='style="font-family:ui-monospace,monospace"'))
        for start, end, camera in row.spans:
            lane = list(lanes).index(camera) * 8
            more = f'opacity="0.9"><title>{camera}, {start:.1f} to {end:.1f} s</title></rect'
            # a rectangle with a title inside ends with its own end tag, not with "/>"
            shapes.append(
                rect(margin + start * scale, y + 1 + lane, (end - start) * scale, 7, lanes[camera], more=more)[:-2]
                + ">"
            )
    cursor = line(margin, 0, margin, bottom, more='stroke="var(--all)" stroke-width="2"')
    shapes.append(f'<g id="cursor" data-scale="{scale:.3f}">{cursor}</g>')
    return svg(WIDTH, bottom + 22, shapes, "When each identity was seen, by camera")


def bars(
    values: Mapping[str, float],
    colours: Mapping[str, str],
    *,
    target: tuple[float, str] | None = None,
    ends: Mapping[str, tuple[float, float]] | None = None,
) -> str:
    """Return a chart of shares from 0 to 1, as horizontal bars by name.

    ``colours``: by name. ``target``: a value with its name, as a vertical line. ``ends``: the interval of each value,
    by name; a name without one has none.
    """
    margin, row_height, width = 92, 42, HALF
    scale = width - margin - 64
    shapes = []
    for i, (name, value) in enumerate(values.items()):
        y = i * row_height + 4
        shapes.append(text(margin - 10, y + 20, name, anchor="end", css="ink"))
        shapes.append(rect(margin, y, scale, 28, "var(--shade)"))
        shapes.append(rect(margin, y, scale * value, 28, colours[name]))
        shapes.append(text(margin + scale + 8, y + 20, f"{value:.3f}", css="ink", more='font-weight="600"'))
        if ends and name in ends:
            first, last = (margin + scale * end for end in ends[name])
            for x1, y1, x2, y2 in ((first, 14, last, 14), (first, 8, first, 20), (last, 8, last, 20)):
                shapes.append(line(x1, y + y1, x2, y + y2, more='stroke="var(--ink)" stroke-width="2"'))
    bottom = len(values) * row_height
    if target:
        x = margin + scale * target[0]
        shapes.append(line(x, 0, x, bottom, more='stroke="var(--ink)" stroke-dasharray="4 4"'))
        shapes.append(text(x, bottom + 14, target[1], anchor="middle"))
    return svg(width, bottom + 20, shapes, ", ".join(f"{k} {v:.3f}" for k, v in values.items()))


def pairs(rows: Sequence[tuple[str, float, float]], colours: Mapping[str, str]) -> str:
    """Return a chart of two shares of each node, from 0 to 1: of the capacity (outlined) and of the answers.

    A row is (node, share of the capacity, share of the answers); there is one at least. ``colours``: by node.
    """
    margin, row_height, width = 70, 64, HALF
    largest = max(max(a, b) for _, a, b in rows) * 1.02
    scale = (width - margin - 150) / largest
    shapes = []
    for i, (name, capacity, answers) in enumerate(rows):
        y = i * row_height + 4
        shapes.append(text(margin - 10, y + 30, name, anchor="end", css="ink"))
        shapes.append(rect(margin, y, scale * answers, 24, colours[name]))
        shapes.append(text(margin + scale * answers + 8, y + 17, f"{answers:.1%} of answers", css="ink"))
        more = f'stroke="{colours[name]}" stroke-width="1.5" stroke-dasharray="4 3"'
        shapes.append(rect(margin, y + 28, scale * capacity, 18, "none", more=more))
        shapes.append(text(margin + scale * capacity + 8, y + 42, f"{capacity:.1%} of capacity"))
    return svg(
        width, len(rows) * row_height, shapes, "Each node's share of the answers beside its share of the capacity"
    )


def stacked_bars(series: Mapping[str, Sequence[float]], colours: Mapping[str, str], *, step: float, unit: str) -> str:
    """Return a chart of rates over time, one bar for each ``step`` seconds, the names of ``series`` stacked.

    ``series``: by name the rate of each step, as many for every name. ``colours``: by name. ``unit`` says what a rate
    is.
    """
    margin, bottom, width, top = 44, 190, HALF, 8
    count = max((len(values) for values in series.values()), default=1)
    totals = [sum(values[i] for values in series.values()) for i in range(count)]
    highest = max([*totals, 1.0]) * 1.12
    across, scale = (width - margin - 8) / max(count, 1), (bottom - top) / highest
    shapes = []
    for value in ticks(0, highest):
        y = bottom - value * scale
        shapes += [line(margin, y, width, y), text(margin - 8, y + 4, f"{value:.0f}", anchor="end")]
    heights = [0.0] * count
    for name, values in series.items():
        for i, value in enumerate(values):
            y = bottom - (heights[i] + value) * scale
            shapes.append(f'<rect x="{margin + i * across:.1f}" y="{y:.1f}" width="{max(across - 1, 1):.1f}" '
                         f'height="{value * scale:.1f}" fill="{colours[name]}"/>')  # fmt: skip
            heights[i] += value
    for second in ticks(0, count * step):
        shapes.append(text(margin + second / step * across, bottom + 18, f"{second:g} s", anchor="middle"))
    shapes.append(text(margin, bottom + 38, unit))
    return svg(width, bottom + 44, shapes, unit)


def waits(
    points: Sequence[tuple[float, float, str]],
    events: Sequence[tuple[float, str]],
    seconds: float,
    colours: Mapping[str, str],
) -> str:
    """Return a chart of when each frame came and how long it waited for its answer, over ``seconds``.

    A point is (second, milliseconds until the answer, who answered), an event (second, name), and ``colours`` are by
    who answered. Milliseconds are drawn as their square root, so that both usual and long waits can be seen.
    """
    margin, top, bottom = 62, 26, 250
    longest_ms = max([ms for _, ms, _ in points] or [100.0])
    across, scale = (WIDTH - margin - 10) / seconds, (bottom - top) / longest_ms**0.5
    shapes = []
    above = bottom
    for value in (1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 2000, 3000, 5000, 10_000):
        y = bottom - value**0.5 * scale
        if value <= longest_ms * 1.05 and above - y > 18:
            above = y
            shapes.append(line(margin, y, WIDTH, y))
            shapes.append(
                text(margin - 8, y + 4, f"{value} ms" if value < 1000 else f"{value / 1000:g} s", anchor="end")
            )
    for at, name in events:
        x = margin + at * across
        shapes.append(line(x, top - 8, x, bottom, more='stroke="var(--bad)" stroke-width="1.5" stroke-dasharray="5 4"'))
        shapes.append(text(x + 5, top - 10, name, css="ink"))
    for at, ms, by in points:
        x, y = margin + at * across, bottom - ms**0.5 * scale
        shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colours[by]}" fill-opacity="0.75"/>')
    shapes += [
        text(margin + second * across, bottom + 20, f"{second:g} s", anchor="middle") for second in ticks(0, seconds)
    ]
    return svg(WIDTH, bottom + 26, shapes, "How long each frame waited for its answer, and who gave it")


def curve(
    points: Sequence[tuple[float, float]],
    colour: str,
    across: ChartAxis,
    up: ChartAxis,
    *,
    levels: Mapping[str, tuple[float, str]],
    dot: tuple[float, float, str] | None = None,
    verticals: Mapping[float, str] | None = None,
    baseline: Sequence[tuple[float, float]] = (),
) -> str:
    """Return a chart of a line through points (x, y); ``across`` and ``up`` are its axes.

    ``levels``: horizontal lines, (y, colour) by name. ``dot``: one point (x, y, name). ``verticals``: names of vertical
    lines, by x. ``baseline``: the points of a second, thin line.
    """
    margin, top, bottom, width = 56, 12, 210, HALF

    def x(value: float) -> float:
        return margin + (value - across.low) / (across.high - across.low) * (width - margin - 12)

    def y(value: float) -> float:
        return bottom - (min(max(value, up.low), up.high) - up.low) / (up.high - up.low) * (bottom - top)

    shapes = []
    for value in ticks(up.low, up.high):
        shapes += [line(margin, y(value), width - 12, y(value))]
        shapes += [text(margin - 8, y(value) + 4, up.form.format(value), anchor="end")]
    for value in ticks(across.low, across.high):
        shapes.append(text(x(value), bottom + 18, across.form.format(value), anchor="middle"))
    for name, (value, fill) in levels.items():
        more = f'stroke="{fill}" stroke-width="1.5" stroke-dasharray="5 4"'
        shapes += [line(margin, y(value), width - 12, y(value), more=more)]
        shapes += [text(width - 12, y(value) - 6, name, anchor="end", css="ink")]
    for i, (at, name) in enumerate((verticals or {}).items()):
        shapes += [line(x(at), top, x(at), bottom, more='stroke="var(--ink)" stroke-width="1" stroke-dasharray="2 3"')]
        late = at > across.low + 0.8 * (across.high - across.low)
        side = x(at) - 4 if late else x(at) + 4
        shapes.append(text(side, bottom - 8 - 15 * (i % 5), name, anchor="end" if late else "start", css="ink"))
    lines = [(baseline, "var(--soft)", 1.5)] if baseline else []
    for drawn, stroke, thickness in (*lines, (points, colour, 2.5)):
        corners = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in drawn)
        shapes.append(f'<polyline points="{corners}" fill="none" stroke="{stroke}" stroke-width="{thickness}"/>')
    if dot:
        shapes.append(f'<circle cx="{x(dot[0]):.1f}" cy="{y(dot[1]):.1f}" r="6" fill="{colour}" stroke="var(--card)"/>')
        shapes.append(text(x(dot[0]) + 4, y(dot[1]) + 24, dot[2], css="ink", more='font-weight="600"'))
    shapes.append(text(margin, bottom + 38, f"{up.label}, by {across.label}"))
    return svg(width, bottom + 44, shapes, f"{up.label}, by {across.label}")


def flow(columns: Sequence[Sequence[Stop]], links: Sequence[tuple[str, str, int]], label: str) -> str:
    """Return a Sankey diagram of how many samples went from stop to stop: the more samples, the thicker the band.

    ``columns``: the stops from left to right, in two columns or more. A link is (name of a stop, name of a later stop,
    number of samples). ``label`` describes the diagram to readers who cannot see it.
    """
    width, height, gap, block, caption = 580, 280, 36, 12, 170
    passed = {
        stop.name: max(sum(n for a, _, n in links if a == stop.name), sum(n for _, b, n in links if b == stop.name))
        for column in columns
        for stop in column
    }
    totals = [sum(passed[stop.name] for stop in column) for column in columns]
    scale = min(
        (height - gap * (len(column) - 1)) / max(total, 1) for column, total in zip(columns, totals, strict=True)
    )
    blocks, labels, at, colours = [], [], {}, {}
    for i, column in enumerate(columns):
        x, y = i * (width - caption) / (len(columns) - 1), (height - totals[i] * scale - gap * (len(column) - 1)) / 2
        for stop in column:
            high = max(passed[stop.name] * scale, 1)
            at[stop.name], colours[stop.name] = (x, y), stop.colour
            blocks.append(rect(x, y, block, high, stop.colour))
            first = y + high / 2 - 9.5 * len(stop.lines) + 5
            labels.append(text(x + block + 8, first, stop.name, css="ink", more='font-weight="600"'))
            for number, caption_line in enumerate(stop.lines, 1):
                labels.append(text(x + block + 8, first + 19 * number, caption_line))
            y += high + gap
    bands, leave, enter = [], {k: y for k, (_, y) in at.items()}, {k: y for k, (_, y) in at.items()}
    for a, b, count in links:
        thick, x1, x2 = count * scale, at[a][0] + block, at[b][0]
        y1, y2, middle = leave[a] + thick / 2, enter[b] + thick / 2, (x1 + x2) / 2
        leave[a], enter[b] = leave[a] + thick, enter[b] + thick
        bands.append(
            f'<path d="M{x1:.1f} {y1:.1f}C{middle:.1f} {y1:.1f} {middle:.1f} {y2:.1f} {x2:.1f} {y2:.1f}" fill="none" '
            f'stroke="{colours[b]}" stroke-opacity="0.28" stroke-width="{max(thick, 0.5):.1f}">'
            f"<title>{html.escape(f'{a} to {b}: {count:,} samples')}</title></path>"
        )
    return svg(width, height + 6, [*bands, *blocks, *labels], label)
