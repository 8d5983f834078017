"""The screen of ``top``: as many columns as fit the terminal, by priority."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from halimede.cli.output import clean, table

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ScreenColumn:
    """A column: title, function of a cell, and the minimum width of the terminal."""

    title: str
    cell: Callable[[Row], str]
    room: int = 0


def _count(key: str) -> Callable[[Row], str]:
    return lambda row: str(row[key])


def _rate(key: str) -> Callable[[Row], str]:
    return lambda row: f"{row[key]:.1f}"


def _ms(*keys: str) -> Callable[[Row], str]:
    return lambda row: "/".join("-" if row[key] is None else f"{row[key]:.3g}" for key in keys)


SERVICES = (
    ScreenColumn("SERVICE", lambda row: f"{row['namespace']}/{row['name']}"),
    ScreenColumn("PHASE", lambda row: row["phase"]),
    ScreenColumn("FRAMES/S", _rate("framesPerSecond")),
    ScreenColumn("UP/S", _rate("uploadsPerSecond"), 60),
    ScreenColumn("UPLOAD", lambda row: f"{row['uploadRatio']:.1%}", 70),
    ScreenColumn("EDGE P50/P99", _ms("edgeP50Ms", "edgeP99Ms"), 90),
    ScreenColumn("OFFLOAD P50/P99", _ms("offloadP50Ms", "offloadP99Ms"), 110),
    ScreenColumn("QUEUE", _count("queued"), 120),
    ScreenColumn("DEGRADED", _count("degraded"), 130),
    ScreenColumn("LOST", _count("lost"), 80),
    ScreenColumn("FRAMES", _count("frames"), 140),
    ScreenColumn("WHY", lambda row: "" if row["phase"] == "Running" else row["reason"], 100),
)
WORKERS = (
    ScreenColumn("CLOUD WORKER", lambda row: row["worker"]),
    ScreenColumn("SERVICE", lambda row: f"{row['namespace']}/{row['service']}", 80),
    ScreenColumn("CREDITS", _count("credits")),
    ScreenColumn("MS A SAMPLE", lambda row: f"{row['serviceMs']:.3g}"),
)
PEERS = (
    ScreenColumn("EDGE WORKER", lambda row: row["worker"]),
    ScreenColumn("SERVICE", lambda row: f"{row['namespace']}/{row['service']}", 80),
    ScreenColumn("CREDITS", _count("credits")),
    ScreenColumn("MS A SAMPLE", _ms("serviceMs")),
    ScreenColumn("RANK", _count("rank"), 70),
)
NODES = (
    ScreenColumn("NODE", lambda row: row["name"]),
    ScreenColumn("STATUS", lambda row: row["status"]),
    ScreenColumn("SERVICES", _count("services"), 60),
    ScreenColumn("WORKERS", _count("workers")),
    ScreenColumn("VERSION", lambda row: row["version"] or "-", 70),
)


def screen(view: Row, width: int, *, rows: int) -> RenderableType:
    """Return a view as it is shown on a terminal so wide and high (``rows`` 0: as long as it gets)."""
    parts: list[RenderableType] = [_head(view)]
    blocks = ((SERVICES, view["services"]), (WORKERS, view["cloudWorkers"]), (PEERS, view["peers"]),
              (NODES, view["nodes"]))  # fmt: skip
    room = _shares([len(found) for _, found in blocks], rows - 1) if rows else None
    for i, (columns, found) in enumerate(blocks):
        if found:
            parts += [Text(""), *_block(columns, found, width, room[i] if room else len(found))]
    if not view["services"]:
        parts += [Text(""), Text("no services: `halimede apply -f FILE`", style="yellow")]
    return Group(*parts)


def _head(view: Row) -> Text:
    broker, gm, nodes = view["broker"], view["gm"], view["nodes"]
    head = Text("halimede top  ", style="bold")
    head.append(clean(f"{broker['address']} "), style="not bold")
    if not broker["connected"]:
        head.append("BROKER AWAY ", style="red")
    if gm is None or not gm["online"]:
        head.append("GM AWAY ", style="red")
    else:
        head.append(clean(f"gm {gm['version'] or '-'} epoch {gm['epoch']} "), style="green not bold")
    away = sum(not node["status"].startswith("online") for node in nodes)
    head.append(f"nodes {len(nodes) - away}/{len(nodes)} ", style="yellow not bold" if away else "green not bold")
    total = sum(row["framesPerSecond"] for row in view["services"])
    head.append(f"{total:.1f} frames/s", style="not bold")
    head.no_wrap, head.overflow = True, "ellipsis"
    return head


def _block(columns: Sequence[ScreenColumn], rows: Sequence[Row], width: int, most: int) -> list[RenderableType]:
    chosen = [column for column in columns if column.room <= width]
    shown = rows[:most]
    made = table([column.title for column in chosen], ([column.cell(row) for column in chosen] for row in shown))
    for column in made.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    parts: list[RenderableType] = [made]
    if len(rows) > most:
        parts.append(Text(f"and {len(rows) - most} more", style="dim"))
    return parts


def _shares(wanted: Sequence[int], rows: int) -> list[int]:
    """Divide the lines of a screen among tables: each gets a few, what is left goes to the first."""
    frame = 3  # a blank line, the header, and "and n more"
    free = max(0, rows - frame * sum(1 for want in wanted if want))
    shares = [min(want, max(1, free // 4)) for want in wanted]
    for i, want in enumerate(wanted):
        shares[i] += max(0, min(want - shares[i], free - sum(shares)))
    return shares
