"""``halimede top``: shows a live view of the system, from retained messages, so that it works while GM is offline.

Rates are computed over a window of time. A status document is valid until the next one arrives: the count at the start
of a window is that of the last document before it, and a service without a new document has counted nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from halimede import topics
from halimede.api.placement import SERVICES
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.options import Format
from halimede.cli.output import clean, console, dump, table
from halimede.cli.runner import run
from halimede.errors import HalimedeError, first_error
from halimede.health_checks.resources import phase_rank
from halimede.messages import GmPresence, Load, NodeInfo, Peer, Presence, StatusDocument

#: seconds over which a rate is computed
WINDOW_S = 5.0
#: most counts of one service: GM sends at most one document a second
MOST_POINTS = 32
#: seconds between two requests to GM, for facts that no topic has (drained nodes, workers)
ASK_S = 2.0
#: least seconds of a measurement: status documents arrive at most once a second
LEAST_MEASURE_S = 3.0
#: a row of a table as plain data
Row = Mapping[str, Any]


#: what ``top`` sorts services by
Sort = Literal["phase", "name", "rate", "upload", "latency"]


def top(
    seconds: Annotated[float, typer.Option("--seconds", min=0.2, max=60, help="Seconds per update.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Measure for one interval, print it, and exit.")] = False,
    sort: Annotated[Sort, typer.Option("--sort", help="The column that services are sorted by.")] = "phase",
    output: o.ReportOption = "table",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Watch nodes, services, rates, latencies and cloud workers, until Ctrl-C.

    \b
    Examples:
      halimede top
      halimede top --seconds 5 --sort rate
      halimede top --once -o json | jq '.services[].framesPerSecond'
    """
    run(lambda: show_system(o.address(broker, credentials), seconds, sort, Format(output), once=once))


@dataclass(frozen=True, slots=True)
class RatePoint:
    """The counts of a service since its start, at a time of the loop's clock."""

    time: float
    #: answered frames
    frames: int
    #: uploaded frames, as the share of uploads times the frames
    uploads: float


@dataclass(slots=True)
class ServiceRates:
    """A service's newest status document, and its counts over time, the newest last."""

    document: StatusDocument
    points: deque[RatePoint] = field(default_factory=lambda: deque(maxlen=MOST_POINTS))

    def rate(self, now: float, read: Callable[[RatePoint], float]) -> float:
        """Return the increase per second of the count that ``read`` returns, over ``WINDOW_S`` or since the first."""
        last, start = self.points[-1], now - WINDOW_S
        base = self.points[0]
        for point in self.points:
            if point.time <= start:
                base = point
        seconds = now - max(base.time, start)
        return max(0.0, read(last) - read(base)) / seconds if seconds > 0 else 0.0


@dataclass(slots=True)
class TopState:
    """What ``top`` has received."""

    #: by plural of the kind, namespace and name
    services: dict[tuple[str, str, str], ServiceRates] = field(default_factory=dict)
    #: of cloud workers and of peers, by namespace, service and worker
    loads: dict[tuple[str, str, str], Load] = field(default_factory=dict)
    peers: dict[tuple[str, str, str], Peer] = field(default_factory=dict)
    #: of nodes, by name
    presences: dict[str, Presence] = field(default_factory=dict)
    #: names of nodes whose presence is only a retained message: they may have ended since, which GM knows
    unconfirmed: set[str] = field(default_factory=set)
    #: GM's answers about nodes, by name
    infos: dict[str, NodeInfo] = field(default_factory=dict)
    #: None: nothing was received
    gm: GmPresence | None = None

    def take(self, now: float, document: StatusDocument, plural: str = "") -> None:
        """Record a status document of a resource of the kind ``plural``, received at ``now`` (the loop's clock).

        A document with another uid is of a new service, whose counts begin again.
        """
        key = plural, document.namespace, document.name
        service = self.services.get(key)
        if service is None or service.document.uid != document.uid:
            service = self.services[key] = ServiceRates(document)
        service.document = document
        service.points.append(_point(now, document))

    def view(self, now: float, sort: str) -> dict[str, Any]:
        """Return what to show at ``now``, as plain data; ``sort`` is a key of ``SORTS``."""
        services = [_service(now, service) for service in self.services.values()]
        services.sort(key=SORTS[sort])
        return {
            "gm": {"online": self.gm.online, "version": self.gm.version, "epoch": self.gm.epoch} if self.gm else None,
            "nodes": [self._node(name) for name in sorted({*self.presences, *self.infos})],
            "services": services,
            "cloudWorkers": [
                {**_worker(key), "credits": load.credits, "serviceMs": round(load.service_ms, 2)}
                for key, load in sorted(self.loads.items())
            ],
            "peers": [
                {
                    **_worker(key),
                    "rank": peer.rank,
                    "credits": peer.share.credits if peer.share else 0,
                    "serviceMs": round(peer.share.service_ms, 2) if peer.share else None,
                    "joint": peer.join is not None,
                }
                for key, peer in sorted(self.peers.items())
            ],
        }

    def _node(self, name: str) -> dict[str, Any]:
        """Return a node as a row, from its presence and GM's answer about it."""
        presence, info = self.presences.get(name), self.infos.get(name)
        is_confirmed = presence is not None and (info is None or name not in self.unconfirmed)
        source = presence if is_confirmed else info
        online = source is not None and source.online
        return {
            "name": name,
            "status": ("online" if online else "offline") + (",drained" if info and info.drained else ""),
            "services": info.resources if info else 0,
            "workers": info.workers if info else 0,
            # the broker publishes the presence of a node that went offline (a will), which has no version
            "version": (presence.version if presence else "") or (info.version if info else ""),
        }


def _worker(key: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(("namespace", "service", "worker"), key, strict=True))


def _point(now: float, document: StatusDocument) -> RatePoint:
    """Return the counts in a status document that arrived at ``now``."""
    infos = [node.task_info for node in document.status.nodes if node.task_info]
    uploads = sum(info.upload_cloud_ratio * info.inference_number for info in infos)
    return RatePoint(now, int(_metrics(document).get("inferenceNumber", "0")), uploads)


def _service(now: float, service: ServiceRates) -> dict[str, Any]:
    """Return a service as a row: its phase, rates, counts and latencies."""
    document = service.document
    counts, status = _metrics(document), document.status
    infos = [node.task_info for node in status.nodes if node.task_info]
    return {
        "namespace": document.namespace,
        "name": document.name,
        "phase": status.phase,
        "reason": status.conditions[-1].reason if status.conditions else "",
        "overload": status.overload,
        "framesPerSecond": round(service.rate(now, lambda point: point.frames), 2),
        "uploadsPerSecond": round(service.rate(now, lambda point: point.uploads), 2),
        "uploadRatio": float(counts.get("uploadCloudRatio", "0")),
        "frames": int(counts.get("inferenceNumber", "0")),
        "degraded": int(counts.get("degraded", "0")),
        "skipped": int(counts.get("skipped", "0")),
        "lost": int(counts.get("lost", "0")),
        "modelErrors": int(counts.get("modelErrors", "0")),
        "queued": sum(info.queued for info in infos),
        "edgeP50Ms": _number(counts, "edgeLatencyP50Ms"),
        "edgeP99Ms": _number(counts, "edgeLatencyP99Ms"),
        "offloadP50Ms": _number(counts, "offloadLatencyP50Ms"),
        "offloadP99Ms": _number(counts, "offloadLatencyP99Ms"),
    }


def _metrics(document: StatusDocument) -> dict[str, str]:
    return {metric.key: metric.value for metric in document.status.metrics}


def _number(counts: Mapping[str, str], key: str) -> float | None:
    return float(counts[key]) if key in counts else None


def _name(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["namespace"], row["name"]


#: sort keys of services; services with equal keys are sorted by name
SORTS: dict[str, Callable[[Mapping[str, Any]], tuple[Any, ...]]] = {
    "phase": lambda row: (phase_rank(row["phase"]), *_name(row)),
    "name": _name,
    "rate": lambda row: (-row["framesPerSecond"], *_name(row)),
    "upload": lambda row: (-row["uploadsPerSecond"], *_name(row)),
    "latency": lambda row: (-(row["edgeP99Ms"] or 0.0), *_name(row)),
}


async def show_system(broker: BrokerAddress, seconds: float, sort: str, form: Format, *, once: bool) -> None:
    """Show the system every ``seconds`` until it is cancelled, or (``once``) once, after one measurement."""
    state = TopState()
    async with Client.to(broker, patience_s=0.0) as client:
        await listen(client.bus, state)
        with first_error():
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(_ask(client, state), name="top: nodes")
                await _show(client.bus, broker, state, seconds=seconds, sort=sort, form=form, once=once)
                asking.cancel()


async def listen(bus: Bus, state: TopState) -> None:
    """Subscribe to all topics from which ``state`` is kept up to date. Raises BusError."""
    loop = asyncio.get_running_loop()

    async def status(delivery: Delivery[StatusDocument]) -> None:
        state.take(loop.time(), delivery.body, delivery.names["plural"])

    async def no_status(names: Mapping[str, str]) -> None:
        state.services.pop((names["plural"], names["ns"], names["name"]), None)

    def mirror(messages: dict[tuple[str, str, str], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the handlers that keep the retained messages of each worker of a service."""

        async def keep(delivery: Delivery[Any]) -> None:
            names = delivery.names
            messages[names["ns"], names["service"], names["worker"]] = delivery.body

        async def drop(names: Mapping[str, str]) -> None:
            messages.pop((names["ns"], names["service"], names["worker"]), None)

        return keep, drop

    async def presence(delivery: Delivery[Presence]) -> None:
        node = delivery.names["node"]
        state.presences[node] = delivery.body
        (state.unconfirmed.add if delivery.packet.retain else state.unconfirmed.discard)(node)

    async def no_presence(names: Mapping[str, str]) -> None:
        state.presences.pop(names["node"], None)
        state.infos.pop(names["node"], None)

    async def gm(delivery: Delivery[GmPresence]) -> None:
        state.gm = delivery.body

    for plural in SERVICES:
        await bus.subscribe(topics.STATUS.filter(plural=plural), status, cleared=no_status)
    keep, drop = mirror(state.loads)
    await bus.subscribe(topics.LOAD.filter(), keep, cleared=drop)
    keep, drop = mirror(state.peers)
    await bus.subscribe(topics.PEER.filter(), keep, cleared=drop)
    await bus.subscribe(topics.PRESENCE.filter(), presence, cleared=no_presence)
    await bus.subscribe(topics.GM_PRESENCE.filter(), gm)


async def _ask(client: Client, state: TopState) -> None:
    """Request the nodes from GM again and again, until it is cancelled."""
    while True:
        with contextlib.suppress(HalimedeError):  # GM is offline: the screen shows that
            state.infos = {node.name: node for node in await client.nodes()}
        await asyncio.sleep(ASK_S)


async def _show(
    bus: Bus, broker: BrokerAddress, state: TopState, *, seconds: float, sort: str, form: Format, once: bool
) -> None:
    """Show the state: on a terminal as a live screen, else as lines or documents.

    ``once``: wait for ``seconds``, at least ``LEAST_MEASURE_S``, show the state, and return.
    """
    loop = asyncio.get_running_loop()

    def view() -> dict[str, Any]:
        return {"broker": {"address": str(broker), "connected": bus.connected}, **state.view(loop.time(), sort)}

    if once:
        await asyncio.sleep(max(seconds, LEAST_MEASURE_S))
        if form is Format.TABLE:
            out = console() if not sys.stdout.isatty() else Console(highlight=False)
            out.print(screen(view(), out.width, rows=0))
        else:
            dump(view(), form)
        return
    if form is not Format.TABLE or not sys.stdout.isatty():
        await _lines(view, seconds, form)
        return
    out = Console(highlight=False)
    with Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(view(), out.width, rows=out.height), refresh=True)
            await asyncio.sleep(seconds)


async def _lines(view: Any, seconds: float, form: Format) -> None:
    """For pipes: prints one JSON document per line, or one YAML document or table after another."""
    while True:
        await asyncio.sleep(seconds)
        if form is Format.JSON:
            print(json.dumps(view(), ensure_ascii=False), flush=True)
        elif form is Format.YAML:
            print("---", flush=True)
            dump(view(), form)
        else:
            console().print(screen(view(), console().width, rows=0), end="\n\n")


@dataclass(frozen=True, slots=True)
class ScreenColumn:
    """A column: its title, the function that returns a cell, and the least columns of a terminal that shows it."""

    title: str
    cell: Callable[[Row], str]
    min_width: int = 0


def _count(key: str) -> Callable[[Row], str]:
    return lambda row: str(row[key])


def _rate(key: str) -> Callable[[Row], str]:
    return lambda row: f"{row[key]:.1f}"


def milliseconds(value: float | None) -> str:
    """Return milliseconds as text with three significant digits, large ones in whole numbers; ``-`` for None."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _ms(*keys: str) -> Callable[[Row], str]:
    return lambda row: "/".join(milliseconds(row[key]) for key in keys)


#: columns of the tables; the rows are those of ``TopState.view``
SERVICE_COLUMNS = (
    ScreenColumn("SERVICE", lambda row: f"{row['namespace']}/{row['name']}"),
    ScreenColumn("PHASE", lambda row: row["phase"]),
    ScreenColumn("FRAMES/S", _rate("framesPerSecond")),
    ScreenColumn("UP/S", _rate("uploadsPerSecond"), 60),
    ScreenColumn("UPLOAD", lambda row: f"{row['uploadRatio']:.1%}", 70),
    ScreenColumn("EDGE P50/P99", _ms("edgeP50Ms", "edgeP99Ms"), 90),
    ScreenColumn("OFFLOAD P50/P99", _ms("offloadP50Ms", "offloadP99Ms"), 110),
    ScreenColumn("QUEUE", _count("queued"), 120),
    ScreenColumn("DEGRADED", _count("degraded"), 130),
    ScreenColumn("SKIPPED", _count("skipped"), 100),
    ScreenColumn("LOST", _count("lost"), 80),
    ScreenColumn("MODEL ERRORS", _count("modelErrors"), 130),
    ScreenColumn("FRAMES", _count("frames"), 140),
    ScreenColumn("WHY", lambda row: row["overload"] if row["phase"] == "Running" else row["reason"], 100),
)
#: columns of workers that answer requests of others
CAPACITY_COLUMNS = (
    ScreenColumn("SERVICE", lambda row: f"{row['namespace']}/{row['service']}", 80),
    ScreenColumn("CREDITS", _count("credits")),
    ScreenColumn("MS A SAMPLE", _ms("serviceMs")),
)
WORKER_COLUMNS = (ScreenColumn("CLOUD WORKER", lambda row: row["worker"]), *CAPACITY_COLUMNS)
PEER_COLUMNS = (
    ScreenColumn("EDGE WORKER", lambda row: row["worker"]),
    *CAPACITY_COLUMNS,
    ScreenColumn("RANK", _count("rank"), 70),
)
NODE_COLUMNS = (
    ScreenColumn("NODE", lambda row: row["name"]),
    ScreenColumn("STATUS", lambda row: row["status"]),
    ScreenColumn("SERVICES", _count("services"), 60),
    ScreenColumn("WORKERS", _count("workers")),
    ScreenColumn("VERSION", lambda row: row["version"] or "-", 70),
)


def screen(view: Row, width: int, *, rows: int) -> RenderableType:
    """Return a view (of ``TopState.view``) for a terminal with so many columns and rows; ``rows`` 0: any height."""
    parts: list[RenderableType] = [_head(view)]
    blocks = (
        (SERVICE_COLUMNS, view["services"]),
        (WORKER_COLUMNS, view["cloudWorkers"]),
        (PEER_COLUMNS, view["peers"]),
        (NODE_COLUMNS, view["nodes"]),
    )
    shares = _shares([len(block_rows) for _, block_rows in blocks], rows - 1) if rows else None
    for i, (columns, block_rows) in enumerate(blocks):
        if block_rows:
            parts += [Text(""), *_block(columns, block_rows, width, shares[i] if shares else len(block_rows))]
    if not view["services"]:
        parts += [Text(""), Text("no services: `halimede apply -f FILE`", style="yellow")]
    return Group(*parts)


def _head(view: Row) -> Text:
    """Return the first line: broker, GM, nodes, and frames per second."""
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
    """Return a table with at most ``most`` rows, for a terminal of this width, and the number of further rows."""
    chosen = [column for column in columns if column.min_width <= width]
    shown = rows[:most]
    block = table([column.title for column in chosen], ([column.cell(row) for column in chosen] for row in shown))
    for column in block.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    parts: list[RenderableType] = [block]
    if len(rows) > most:
        parts.append(Text(f"and {len(rows) - most} more", style="dim"))
    return parts


def _shares(counts: Sequence[int], rows: int) -> list[int]:
    """Return how many rows of each table a screen of ``rows`` lines shows; ``counts`` are those of all rows.

    Each table gets a few, and the first tables get what is free.
    """
    frame = 3  # a blank line, the header, and "and n more"
    free = max(0, rows - frame * sum(1 for count in counts if count))
    shares = [min(count, max(1, free // 4)) for count in counts]  # a quarter each: there are four tables
    for i, count in enumerate(counts):
        shares[i] += max(0, min(count - shares[i], free - sum(shares)))
    return shares
