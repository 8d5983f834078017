"""The page of the demo: the three films with what the system said, one object's path, and charts. Pure.

What moves is a few lines of plain JavaScript in ``page.html``.
"""

from __future__ import annotations

import base64
import colorsys
import html
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import msgspec
from PIL import Image

from examples.multi_edge import boards, report, scene, words
from examples.multi_edge.measure import FRAGMENT, NS, Corners, Shot, on_plane, rates
from examples.multi_edge.pictures import objects
from examples.multi_edge.report import Told
from halimede.html_report import charts
from halimede.html_report.page import keys, picture, render, table
from halimede.messages import Fused

BODY, STYLE = (Path(__file__).with_name(f"page.{kind}") for kind in ("html", "css"))
TITLE = "Three cameras, three nodes, one job"
#: of the films as they are shown, and of the pictures of identities
WIDE, QUALITY, THUMB = 384, 52, 56
#: a gap in which an identity was not seen, in frames, that parts two bars of the timeline
GAP = 3
INSTANTS = 8
NODES = {"edge0": "var(--edge0)", "edge1": "var(--edge1)", "edge2": "var(--edge2)"}
CAMERAS = {"west": "var(--west)", "mid": "var(--mid)", "east": "var(--east)"}


def page(told: Told, found: Mapping[str, Any]) -> str:
    """Return report.html."""
    who = identities(told.street.shots)
    frames, boxes, count = films(told.street.shots, who)
    fps = told.runs["street"].fps
    views = [{"name": c.name, "corners": " ".join(f"{x},{y}" for x, y in c.corners)} for c in scene.CAMERAS]
    chosen = max(range(len(who)), key=lambda i: (who[i]["id"] == told.asked_for, who[i]["count"]), default=None)
    start = who[chosen]["path"][len(who[chosen]["path"]) // 2][3] if chosen is not None else 0
    data = {
        "fps": fps, "count": count, "width": scene.VIEW[0], "frames": frames, "boxes": boxes,
        "who": who, "views": views, "chosen": chosen, "start": start,
    }  # fmt: skip
    accuracies = {**told.board.alone, "together": told.board.fused}
    best = (told.board.best, f"best alone {told.board.best:.3f}")
    nodes = [(node, told.capacity[node], share) for node, share in told.share.items()]
    body = Template(BODY.read_text()).substitute(
        street=words.street(told, found),
        views="".join(_view(camera.name) for camera in scene.CAMERAS),
        keys=keys(CAMERAS),
        timeline=charts.timeline([_row(one, fps) for one in who], told.seconds, CAMERAS),
        asked=words.asked(told, found, _photograph(told.asked[0])),
        board=words.board(told),
        accuracy=charts.bars(accuracies, {**CAMERAS, "together": "var(--all)"}, target=best),
        gain=words.gain(told, found),
        instants=_instants(told),
        belt=words.belt(told),
        shares=charts.pairs(nodes, NODES),
        rates=_rates(told),
        kill=words.kill(told, found),
        waits=_waits(told),
        rows=table(report.table(found)),
        honest=words.HONEST,
        data=msgspec.json.encode(data).decode().replace("</", "<\\/"),
    )
    intro = words.intro(told, found)
    return render(TITLE, intro, words.tiles(found), body, style=STYLE.read_text())


def identities(shots: Sequence[Shot]) -> list[dict[str, Any]]:
    """Return those who were seen often enough to be somebody, in the order of their coming, with a picture of each."""
    seen: dict[str, list[tuple[Shot, Corners]]] = defaultdict(list)
    for shot in shots:
        for corners, name in shot.boxes:
            if name:
                seen[name].append((shot, corners))
    large = {name: found for name, found in seen.items() if len(found) >= FRAGMENT}
    by_name = {camera.name: camera for camera in scene.CAMERAS}
    who = []
    for i, (name, found) in enumerate(large.items()):
        shot, corners = max(found, key=lambda each: _whole(each[1]))
        who.append({
            "id": name,
            "short": name[:4],
            "colour": colour(i, len(large)),
            "count": len(found),
            "cameras": sorted({shot.camera for shot, _ in found}),
            "picture": _thumb(shot, corners),
            "path": [
                [*(round(v) for v in on_plane(by_name[shot.camera], corners)), shot.camera, shot.index]
                for shot, corners in found
            ],
        })  # fmt: skip
    return who


def films(
    shots: Sequence[Shot], who: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, list[str]], dict[str, list[list[Any]]], int]:
    """Return by camera the pictures, smaller, and the boxes with the number of whom they show; and how many."""
    number = {one["id"]: i for i, one in enumerate(who)}
    count = max((shot.index for shot in shots), default=-1) + 1
    frames = {camera.name: [""] * count for camera in scene.CAMERAS}
    boxes: dict[str, list[list[Any]]] = {camera.name: [[] for _ in range(count)] for camera in scene.CAMERAS}
    for shot in shots:
        frames[shot.camera][shot.index] = _smaller(shot.data)
        boxes[shot.camera][shot.index] = [
            [*(round(v) for v in corners), number.get(name or "", -1)] for corners, name in shot.boxes
        ]
    return frames, boxes, count


def colour(i: int, count: int) -> str:
    """Return a colour that can be told from the others, light enough for dark letters on it."""
    red, green, blue = colorsys.hls_to_rgb((i * 0.618 + 0.08) % 1, 0.70 if i % 2 else 0.62, 0.85 if count else 0)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _whole(corners: Corners) -> float:
    """Prefer pictures that are whole: large, and away from the rim."""
    x1, y1, x2, y2 = corners
    inside = x1 > 3 and y1 > 3 and x2 < scene.VIEW[0] - 3 and y2 < scene.VIEW[1] - 3
    square = min(x2 - x1, y2 - y1) / max(x2 - x1, y2 - y1, 1)
    return inside * 10 + square


def _thumb(shot: Shot, corners: Corners) -> str:
    with Image.open(io.BytesIO(shot.data)) as image:
        return _jpeg(image.crop(corners).resize((THUMB, THUMB)), 80)


def _photograph(name: str) -> str:
    return _jpeg(Image.fromarray(dict(objects())[name]).resize((2 * THUMB, 2 * THUMB)), 85)


def _smaller(data: bytes) -> str:
    with Image.open(io.BytesIO(data)) as image:
        height = round(image.height * WIDE / image.width)
        return _jpeg(image.convert("RGB").resize((WIDE, height), Image.Resampling.BOX), QUALITY)


def _jpeg(image: Image.Image, quality: int) -> str:
    out = io.BytesIO()
    image.convert("RGB").save(out, format="JPEG", quality=quality, optimize=True)
    return base64.b64encode(out.getvalue()).decode()


def _view(name: str) -> str:
    node = dict(zip(CAMERAS, NODES, strict=True))[name]
    return (
        f'<figure><canvas width="720" height="486" data-camera="{name}"></canvas>'
        f'<figcaption><b style="color:var(--{name})">{name}</b>, its frames are looked at on {node}</figcaption>'
        "</figure>"
    )


def _row(one: Mapping[str, Any], fps: float) -> charts.Row:
    spans: list[tuple[float, float, str]] = []
    for camera in one["cameras"]:
        at = sorted(i for _, _, where, i in one["path"] if where == camera)
        start = last = at[0]
        for i in [*at[1:], at[-1] + 10 * GAP]:
            if i - last > GAP:
                spans.append((start / fps, (last + 1) / fps, camera))
                start = i
            last = i
    return charts.Row(one["short"], one["colour"], one["picture"], spans)


def _instants(told: Told) -> str:
    """Show instants at which fusion mattered: it was right and somebody was not; and mistakes, where there are."""
    run = told.runs["board"]
    pictures = {(s.camera.partition("-")[2], run.index(s.captured_ns)): s.data for s in run.sent.values()}
    right: list[tuple[int, int, Fused, str]] = []
    wrong: list[tuple[int, int, Fused, str]] = []
    for i, fused in told.board.instants:
        truth = str(told.shown.labels[i])
        mistakes = sum(source.label != truth for source in fused.sources)
        if len(fused.sources) > 1 and mistakes:
            (right if fused.label == truth else wrong).append((-mistakes, i, fused, truth))
    chosen = sorted(right, key=lambda each: each[:2])[: INSTANTS - 2] + wrong[:2]
    parts = []
    for _, i, fused, truth in chosen:
        sources = {source.camera.partition("-")[2]: source for source in fused.sources}
        cells = []
        for camera in boards.CAMERAS:
            shot = picture(pictures.get((camera, i), b""), f"the board as camera {camera} saw it")
            answer = "<small>too late to be fused</small>"
            if source := sources.get(camera):
                css = "right" if source.label == truth else "wrong"
                answer = (
                    f'<b class="{css}">{html.escape(source.label or "?")}</b> <small>{source.score or 0:.2f}</small>'
                )
            cells.append(f"<div>{shot}{answer}</div>")
        css = "right" if fused.label == truth else "wrong"
        said = f'<div class="said {css}">{html.escape(fused.label or "?")}</div>'
        said += f"<small>together {fused.score or 0:.2f}</small>"
        parts.append(f'<div class="instant">{"".join(cells)}<div>{said}</div></div>')
    return "".join(parts)


def _rates(told: Told) -> str:
    run = told.runs["full"]
    seconds = len(run.sent) / 3 / run.fps + 2
    return charts.stacked_bars(rates(run, list(NODES), seconds, 0.5), NODES, step=0.5, unit="answers a second, by node")


def _waits(told: Told) -> str:
    run = told.runs["calm"]
    points = [
        ((s.captured_ns - run.start_ns) / NS, (run.answers[k].at_ns - s.captured_ns) / 1e6, run.answers[k].node)
        for k, s in run.sent.items()
        if k in run.answers
    ]
    at = (told.killed_ns - run.start_ns) / NS
    marks = [(at, f"{told.victim} is killed")]
    if told.killed.back_s:
        marks.append((at + told.killed.back_s, "it is back"))
    seconds = max([x for x, _, _ in points] or [1.0]) + 0.5
    legend = keys({f"answered by {node}": fill for node, fill in NODES.items()})
    drawn = charts.waits(points, [m for m in marks if m[0] < seconds], seconds, NODES)
    return f'<div class="wide">{drawn}</div>{legend}'
