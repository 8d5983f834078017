"""Small charts as SVG, in the page's own colours, so that they are right in light and in darkness. Pure."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: of a chart that takes the page's width, and of one that takes half of it
WIDTH, HALF = 1040, 500


@dataclass(frozen=True)
class Row:
    """One row of a timeline: whose, its colour, its picture (a JPEG in base 64), and (from, to, lane) in seconds."""

    label: str
    colour: str
    picture: str
    spans: Sequence[tuple[float, float, str]]


@dataclass(frozen=True)
class ChartAxis:
    """The range of an axis, how its values are written, and what they are."""

    low: float
    high: float
    form: str = "{:g}"
    label: str = ""


@dataclass(frozen=True)
class Stop:
    """Where samples pass in a flow: its name, the lines that stand below the name, and its colour."""

    name: str
    lines: Sequence[str]
    colour: str


def svg(width: int, height: int, inside: Sequence[str], label: str) -> str:
    """Put parts into a picture with a name for those who cannot see it."""
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{html.escape(label)}">'
        + "".join(inside)
        + "</svg>"
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", css: str = "", more: str = "") -> str:
    """Return words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}" {more}>{html.escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, fill: str, *, more: str = "") -> str:
    """Return a bar with slightly rounded corners."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" rx="3" fill="{fill}" {more}/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, *, more: str = 'class="axis"') -> str:
    """Return a line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {more}/>'


def ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers in a range."""
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    return [round(n * step, 10) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def timeline(rows: Sequence[Row], seconds: float, lanes: Mapping[str, str]) -> str:
    """Draw who was seen when, by which camera, with a cursor that the page moves. ``lanes``: colours by camera."""
    left, high = 108, 34
    scale, bottom = (WIDTH - left - 10) / seconds, len(rows) * high + 6
    parts = []
    for second in range(0, int(seconds) + 1, 2):
        x = left + second * scale
        parts += [line(x, 0, x, bottom), text(x, bottom + 16, f"{second} s", anchor="middle")]
    for i, row in enumerate(rows):
        y = i * high + 6
        parts.append(f'<image href="data:image/jpeg;base64,{row.picture}" x="2" y="{y}" width="26" height="26"/>')
        parts.append(rect(2, y, 26, 26, "none", more=f'stroke="{row.colour}" stroke-width="2"'))
        parts.append(text(36, y + 18, row.label, css="ink", more='style="font-family:ui-monospace,monospace"'))
        for start, end, camera in row.spans:
            lane = list(lanes).index(camera) * 8
            more = f'opacity="0.9"><title>{camera}, {start:.1f} to {end:.1f} s</title></rect'
            parts.append(
                rect(left + start * scale, y + 1 + lane, (end - start) * scale, 7, lanes[camera], more=more)[:-2] + ">"
            )
    cursor = line(left, 0, left, bottom, more='stroke="var(--all)" stroke-width="2"')
    parts.append(f'<g id="cursor" data-scale="{scale:.3f}">{cursor}</g>')
    return svg(WIDTH, bottom + 22, parts, "When each identity was seen, by camera")


def bars(
    values: Mapping[str, float],
    colours: Mapping[str, str],
    *,
    target: tuple[float, str] | None = None,
    ends: Mapping[str, tuple[float, float]] | None = None,
) -> str:
    """Draw shares from 0 to 1 as bars that lie, with their values, and with the ends of their intervals if given."""
    left, high, width = 92, 42, HALF
    scale = width - left - 64
    parts = []
    for i, (name, value) in enumerate(values.items()):
        y = i * high + 4
        parts.append(text(left - 10, y + 20, name, anchor="end", css="ink"))
        parts.append(rect(left, y, scale, 28, "var(--shade)"))
        parts.append(rect(left, y, scale * value, 28, colours[name]))
        parts.append(text(left + scale + 8, y + 20, f"{value:.3f}", css="ink", more='font-weight="600"'))
        if ends and name in ends:
            first, last = (left + scale * end for end in ends[name])
            for x1, y1, x2, y2 in ((first, 14, last, 14), (first, 8, first, 20), (last, 8, last, 20)):
                parts.append(line(x1, y + y1, x2, y + y2, more='stroke="var(--ink)" stroke-width="2"'))
    bottom = len(values) * high
    if target:
        x = left + scale * target[0]
        parts.append(line(x, 0, x, bottom, more='stroke="var(--ink)" stroke-dasharray="4 4"'))
        parts.append(text(x, bottom + 14, target[1], anchor="middle"))
    return svg(width, bottom + 20, parts, ", ".join(f"{k} {v:.3f}" for k, v in values.items()))


def pairs(rows: Sequence[tuple[str, float, float]], colours: Mapping[str, str]) -> str:
    """Draw for each node its part of the capacity (outlined) over its part of the answers."""
    left, high, width = 70, 64, HALF
    most = max(max(a, b) for _, a, b in rows) * 1.02
    scale = (width - left - 150) / most
    parts = []
    for i, (name, wanted, found) in enumerate(rows):
        y = i * high + 4
        parts.append(text(left - 10, y + 30, name, anchor="end", css="ink"))
        parts.append(rect(left, y, scale * found, 24, colours[name]))
        parts.append(text(left + scale * found + 8, y + 17, f"{found:.1%} of answers", css="ink"))
        more = f'stroke="{colours[name]}" stroke-width="1.5" stroke-dasharray="4 3"'
        parts.append(rect(left, y + 28, scale * wanted, 18, "none", more=more))
        parts.append(text(left + scale * wanted + 8, y + 42, f"{wanted:.1%} of capacity"))
    return svg(width, len(rows) * high, parts, "Each node's share of the answers beside its share of the capacity")


def stacked(series: Mapping[str, Sequence[float]], colours: Mapping[str, str], *, step: float, unit: str) -> str:
    """Draw rates of ``step`` seconds each, by name, one over the other."""
    left, bottom, width, top = 44, 190, HALF, 8
    count = max((len(values) for values in series.values()), default=1)
    totals = [sum(values[i] for values in series.values()) for i in range(count)]
    most = max([*totals, 1.0]) * 1.12
    across, scale = (width - left - 8) / max(count, 1), (bottom - top) / most
    parts = []
    for value in ticks(0, most):
        y = bottom - value * scale
        parts += [line(left, y, width, y), text(left - 8, y + 4, f"{value:.0f}", anchor="end")]
    heights = [0.0] * count
    for name, values in series.items():
        for i, value in enumerate(values):
            y = bottom - (heights[i] + value) * scale
            parts.append(f'<rect x="{left + i * across:.1f}" y="{y:.1f}" width="{max(across - 1, 1):.1f}" '
                         f'height="{value * scale:.1f}" fill="{colours[name]}"/>')  # fmt: skip
            heights[i] += value
    for second in ticks(0, count * step):
        parts.append(text(left + second / step * across, bottom + 18, f"{second:g} s", anchor="middle"))
    parts.append(text(left, bottom + 38, unit))
    return svg(width, bottom + 44, parts, unit)


def waits(
    points: Sequence[tuple[float, float, str]],
    marks: Sequence[tuple[float, str]],
    seconds: float,
    colours: Mapping[str, str],
) -> str:
    """Draw for each frame (second, milliseconds until its answer, who gave it) when it came and how long it waited.

    Milliseconds are drawn as their square root, so that both usual and long waits can be seen.
    """
    left, top, bottom = 62, 26, 250
    most = max([ms for _, ms, _ in points] or [100.0])
    across, scale = (WIDTH - left - 10) / seconds, (bottom - top) / most**0.5
    parts = []
    above = bottom
    for value in (1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 2000, 3000, 5000, 10_000):
        y = bottom - value**0.5 * scale
        if value <= most * 1.05 and above - y > 18:
            above = y
            parts.append(line(left, y, WIDTH, y))
            parts.append(text(left - 8, y + 4, f"{value} ms" if value < 1000 else f"{value / 1000:g} s", anchor="end"))
    for at, words in marks:
        x = left + at * across
        parts.append(line(x, top - 8, x, bottom, more='stroke="var(--bad)" stroke-width="1.5" stroke-dasharray="5 4"'))
        parts.append(text(x + 5, top - 10, words, css="ink"))
    for at, ms, by in points:
        x, y = left + at * across, bottom - ms**0.5 * scale
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colours[by]}" fill-opacity="0.75"/>')
    parts += [
        text(left + second * across, bottom + 20, f"{second:g} s", anchor="middle") for second in ticks(0, seconds)
    ]
    return svg(WIDTH, bottom + 26, parts, "How long each frame waited for its answer, and who gave it")


def curve(
    points: Sequence[tuple[float, float]],
    colour: str,
    across: ChartAxis,
    up: ChartAxis,
    *,
    levels: Mapping[str, tuple[float, str]],
    dot: tuple[float, float, str] | None = None,
    marks: Mapping[float, str] | None = None,
    baseline: Sequence[tuple[float, float]] = (),
) -> str:
    """Draw a line of (x, y), with ``levels`` (height and colour by name) across it, and a dot with its name.

    ``marks`` are named lines upright at their x. ``baseline``: a second, thin line.
    """
    left, top, bottom, width = 56, 12, 210, HALF

    def x(value: float) -> float:
        return left + (value - across.low) / (across.high - across.low) * (width - left - 12)

    def y(value: float) -> float:
        return bottom - (min(max(value, up.low), up.high) - up.low) / (up.high - up.low) * (bottom - top)

    parts = []
    for value in ticks(up.low, up.high):
        parts += [line(left, y(value), width - 12, y(value))]
        parts += [text(left - 8, y(value) + 4, up.form.format(value), anchor="end")]
    for value in ticks(across.low, across.high):
        parts.append(text(x(value), bottom + 18, across.form.format(value), anchor="middle"))
    for name, (value, fill) in levels.items():
        more = f'stroke="{fill}" stroke-width="1.5" stroke-dasharray="5 4"'
        parts += [line(left, y(value), width - 12, y(value), more=more)]
        parts += [text(width - 12, y(value) - 6, name, anchor="end", css="ink")]
    for i, (at, name) in enumerate((marks or {}).items()):
        parts += [line(x(at), top, x(at), bottom, more='stroke="var(--ink)" stroke-width="1" stroke-dasharray="2 3"')]
        late = at > across.low + 0.8 * (across.high - across.low)
        side = x(at) - 4 if late else x(at) + 4
        parts.append(text(side, bottom - 8 - 15 * (i % 5), name, anchor="end" if late else "start", css="ink"))
    lines = [(baseline, "var(--soft)", 1.5)] if baseline else []
    for drawn, stroke, thickness in (*lines, (points, colour, 2.5)):
        corners = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in drawn)
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{stroke}" stroke-width="{thickness}"/>')
    if dot:
        parts.append(f'<circle cx="{x(dot[0]):.1f}" cy="{y(dot[1]):.1f}" r="6" fill="{colour}" stroke="var(--card)"/>')
        parts.append(text(x(dot[0]) + 4, y(dot[1]) + 24, dot[2], css="ink", more='font-weight="600"'))
    parts.append(text(left, bottom + 38, f"{up.label}, by {across.label}"))
    return svg(width, bottom + 44, parts, f"{up.label}, by {across.label}")


def flow(columns: Sequence[Sequence[Stop]], links: Sequence[tuple[str, str, int]], label: str) -> str:
    """Draw how many samples went from stop to stop: a band each, as thick as there are many (a Sankey diagram)."""
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
            for number, words in enumerate(stop.lines, 1):
                labels.append(text(x + block + 8, first + 19 * number, words))
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
