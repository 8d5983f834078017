"""``halimede trace``: shows the steps of one frame at edge and cloud, as bars over time.

It requests the steps from all workers; each worker remembers the steps of its last frames.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from halimede import topics
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.bus.rpc import RpcClient
from halimede.cli import completion
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.options import Format
from halimede.cli.output import clean, clean_cell, console, dump, plain, table
from halimede.cli.runner import run
from halimede.errors import HalimedeError, InvalidFieldError, NoSubscriberError
from halimede.messages import Result, Span, TraceReply, TraceRequest
from halimede.names import check_name

#: seconds for replies: until none has arrived for a while, and at most
QUIET_S, LONGEST_S = 0.5, 3.0
#: seconds after which the broker drops the request
EXPIRY_S = 10
#: seconds between a result and the request for its frame: the worker first receives the broker's acknowledgement
SETTLE_S = 0.3
#: most replies
MAX_REPLIES = 256
#: characters of the longest bar
WIDTH = 40
#: which frames can be traced, for errors; ``halimede.tracing.record`` sets the number
HOW = (
    "each worker keeps its last 4,096 frames until it restarts. "
    "Ids: `halimede results -f SERVICE -o json` (field id); or `halimede trace --last`"
)
#: colours of workers, by role
STYLES = {"edge": "green", "cloud": "cyan"}
#: nanoseconds of a millisecond
MS = 1e6
#: names of the steps in which a worker waits for the next tier, and sends its reply
REQUEST, REPLY = "offload.request", "reply"
#: milliseconds by which clocks may differ without a note
TOLERANCE_MS = 1.0


def trace(
    frame: Annotated[
        str, typer.Argument(metavar="[FRAME_ID]", help="Field id of the result: 32 hex digits.", show_default=False)
    ] = "",
    last: Annotated[bool, typer.Option("--last", help="Trace the last frame that was answered.")] = False,
    coming: Annotated[bool, typer.Option("--next", help="Wait for a frame that is answered, and trace it.")] = False,
    hard: Annotated[
        bool, typer.Option("--hard", help="Only a hard frame, which the cloud answers. Alone: the last one.")
    ] = False,
    service: Annotated[
        str,
        typer.Option(
            "--service",
            "-s",
            metavar="NAME",
            help="With --last, --next and --hard: only frames of this service.",
            show_default=False,
            autocompletion=completion.services,
        ),
    ] = "",
    namespace: o.Namespace = "default",
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="With --next: how long to wait.")] = 30.0,
    output: o.LinesOption = "table",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show the steps of one frame at the edge and in the cloud, and their times.

    Each worker keeps its last 4,096 frames. Times count from the edge's receipt of the frame. The cloud's steps are
    placed inside the request that they answered, because clocks of machines differ.

    \b
    Examples:
      halimede trace --last
      halimede trace --hard -s digits
      halimede trace --next --hard --timeout 60
      halimede trace 0123456789abcdef0123456789abcdef
      halimede trace $(halimede results digits --limit 1 -o json | jq -r .id) -o json
    """
    if bool(frame) == (last or coming or hard) or (last and coming):
        raise typer.BadParameter("give a FRAME_ID, or --last, or --next, or --hard")
    if service and frame:
        raise typer.BadParameter("give -s only with --last, --next or --hard: a frame id needs no service")

    async def command() -> None:
        if service:
            check_name("--service", service)
        query = FrameQuery(frame.lower(), service, o.namespace_of(namespace), hard, timeout if coming else 0.0)
        await trace_frame(o.address(broker, credentials), query, Format(output))

    run(command)


@dataclass(frozen=True, slots=True)
class FrameQuery:
    """Selects a frame: by its id, or the last or next one that is answered."""

    #: hexadecimal; empty: the last or next one
    id: str = ""
    #: without an id: only frames of this service (empty: of all) in this namespace
    service: str = ""
    namespace: str = ""
    #: without an id: only hard frames
    hard: bool = False
    #: without an id: seconds to wait for the next frame; 0: the last one
    next_s: float = 0.0


async def trace_frame(broker: BrokerAddress, query: FrameQuery, form: Format) -> None:
    """Print a frame's steps.

    Raises HalimedeError for an invalid id, if no worker remembers the frame, or if no result arrives in time.
    """
    if query.id and not re.fullmatch(r"[0-9a-f]{32}", query.id):
        raise InvalidFieldError("FRAME_ID", query.id, f"write 32 hexadecimal digits (0-9, a-f). {HOW}")
    async with Client.to(broker) as client:
        rpc = RpcClient(client.bus, topics.TRACE_REPLY.at(client=client.bus.client_id))
        await rpc.start()
        id_ = query.id or await (_next_result(client.bus, query) if query.next_s else _last_result(rpc, query))
        replies = await ask(rpc, TraceRequest(id=id_))
    if not replies:
        raise HalimedeError(f"no worker has frame {id_}: {HOW}")
    waterfalls = timelines(replies)
    if form is Format.JSON:
        dump({"id": id_, "timelines": [_as_json(timeline) for timeline in waterfalls], "replies": plain(replies)}, form)
        return
    out = console()
    for timeline in waterfalls:
        out.print(Text(f"frame {id_}  {timeline.length_ms:.2f} ms", style="bold"))
        out.print(waterfall(timeline))
        for remark in timeline.remarks:
            out.print(Text(clean(f"note: {remark}"), style="dim"))


async def ask(rpc: RpcClient[TraceReply], request: TraceRequest) -> list[TraceReply]:
    """Request the steps of a frame from all workers; return the replies of those that have them, an empty list if none.

    ``request``: the frame's id, or which last frame. Raises HalimedeError if no worker is connected.
    """
    replies = rpc.gather(
        topics.TRACE_REQUEST.at(client=rpc.bus.client_id),
        request,
        first_s=LONGEST_S / 2,
        quiet_s=QUIET_S,
        longest_s=LONGEST_S,
        most=MAX_REPLIES,
        expiry_s=EXPIRY_S,
    )
    try:
        return [delivery.body async for delivery in replies]
    except NoSubscriberError:
        raise HalimedeError("no worker replies: see `halimede get ji -A`, `halimede get mei -A`") from None


async def _last_result(rpc: RpcClient[TraceReply], query: FrameQuery) -> str:
    """Return the id of the last frame that a worker has answered; among several workers, their clocks decide.

    Raises HalimedeError if there is none.
    """
    request = TraceRequest(namespace=query.namespace, service=query.service, hard=query.hard)
    replies = await ask(rpc, request)
    if not replies:
        raise HalimedeError(
            f"no worker has answered a {_what(query)} since it started: publish a frame (`halimede publish`), "
            "or wait for one with --next"
        )
    return max(replies, key=lambda reply: max((s.start_ns + s.duration_ns for s in reply.spans), default=0)).id


def _what(query: FrameQuery) -> str:
    """Return what a query selects, for errors."""
    of = f"service {query.service}" if query.service else "any service"
    return f"{'hard frame' if query.hard else 'frame'} of {of} in namespace {query.namespace}"


async def _next_result(bus: Bus, query: FrameQuery) -> str:
    """Wait for the next matching result, and until its worker has recorded the steps; return the frame's id.

    Raises HalimedeError after ``query.next_s``.
    """
    frame_id: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def result(delivery: Delivery[Result]) -> None:
        if not frame_id.done() and (delivery.body.hard or not query.hard):
            frame_id.set_result(delivery.body.id)

    names = {"ns": query.namespace} | ({"service": query.service} if query.service else {})
    for topic in (topics.RESULT, topics.MULTI_RESULT):
        await bus.subscribe(topic.filter(**names), result)
    try:
        async with asyncio.timeout(query.next_s):
            id_ = await frame_id
    except TimeoutError:
        raise HalimedeError(
            f"no {_what(query)} was answered within {query.next_s:g} s: publish a frame (`halimede publish`), or "
            "wait longer with --timeout"
        ) from None
    await asyncio.sleep(SETTLE_S)
    return id_


def waterfall(timeline: Waterfall) -> Table:
    """Return a timeline as a table, with a bar for each step."""
    grid = table(("STEP", "WORKER", "START MS", "MS", "", "NOTES"), ())
    first = min(row.start_ms for row in timeline.rows)
    for row in timeline.rows:
        depth = row.step.count(".") + (row.role == "cloud") * 2
        grid.add_row(
            Text(clean_cell("  " * depth + row.step.rpartition(".")[2])),
            Text(clean_cell(row.worker), style=STYLES.get(row.role, "")),
            Text(f"{row.start_ms - first:9.3f}"),
            Text(f"{row.duration_ms:9.3f}"),
            _bar(row, first, timeline.length_ms),
            Text(
                clean_cell("  ".join(f"{key}={_short(value)}" for key, value in row.attributes.items() if value != "")),
                style="dim",
            ),
        )
    return grid


def _bar(row: WaterfallRow, first: float, length: float) -> Text:
    """Return the bar of a step, in a timeline that begins at ``first`` and takes ``length`` milliseconds."""
    scale = WIDTH / length if length else 0.0
    before = min(int((row.start_ms - first) * scale), WIDTH - 1)
    long = max(1, min(round(row.duration_ms * scale), WIDTH - before))
    bar = Text(" " * before)
    return bar.append("█" * long, style=STYLES.get(row.role, "")).append(" " * (WIDTH - before - long))


def _short(value: object) -> str:
    """Return the value of a step's attribute as a short text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else str(value)[:80]


def _as_json(timeline: Waterfall) -> dict[str, object]:
    """Return a timeline as plain data."""
    rows = [
        {
            "worker": row.worker,
            "node": row.node,
            "role": row.role,
            "step": row.step,
            "startMs": round(row.start_ms, 6),
            "durationMs": round(row.duration_ms, 6),
            "attributes": row.attributes,
        }
        for row in timeline.rows
    ]
    return {"steps": rows, "remarks": timeline.remarks}


@dataclass(frozen=True, slots=True)
class WaterfallRow:
    """One step of a frame in a worker."""

    worker: str
    node: str
    #: of the worker: ``edge`` or ``cloud``
    role: str
    #: name of the step; ``a.b`` is a part of ``a``
    step: str
    #: milliseconds after the beginning of the timeline: the first step of the edge worker, or of a lone cloud worker
    start_ms: float
    duration_ms: float
    #: facts about the step, by name
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The timeline of a frame: its steps in the order of their start, and notes about clocks and missing steps."""

    rows: list[WaterfallRow]
    remarks: list[str]

    @property
    def length_ms(self) -> float:
        """Milliseconds from the first start to the last end."""
        ends = [row.start_ms + row.duration_ms for row in self.rows]
        return max(ends, default=0.0) - min((row.start_ms for row in self.rows), default=0.0)


def timelines(replies: Sequence[TraceReply]) -> list[Waterfall]:
    """Return a timeline for each edge worker that had the frame, then one for each other cloud worker's, on its clock.

    Clocks of two machines are not compared: the cloud's steps are placed in the middle of the edge's request to that
    worker, because both directions take about the same time. Clocks only serve for a note about their difference.
    """
    edges = [reply for reply in replies if reply.role == "edge" and reply.spans]
    clouds = [reply for reply in replies if reply.role == "cloud" and reply.spans]
    waterfalls = []
    for edge in edges:
        answers = [cloud for cloud in clouds if (cloud.namespace, cloud.service) == (edge.namespace, edge.service)]
        clouds = [cloud for cloud in clouds if cloud not in answers]
        waterfalls.append(_timeline(edge, answers))
    for cloud in clouds:
        remark = f"no edge worker has it: times of {cloud.worker}'s clock"
        waterfalls.append(Waterfall(_sort_rows(_rows(cloud, _start(cloud.spans))), [remark]))
    return waterfalls


def _timeline(edge: TraceReply, clouds: Sequence[TraceReply]) -> Waterfall:
    """Return the timeline of an edge's reply, with the replies of further tiers placed in it."""
    rows = _rows(edge, _start(edge.spans))
    remarks = []
    #: replies with a position, and the zero of their clocks: a tier in between sends requests itself
    placed = [(edge, _start(edge.spans))]
    unplaced = list(clouds)
    while placement := next(_placeable(placed, unplaced), None):
        cloud, asker, zero, request = placement
        unplaced.remove(cloud)
        begin, busy = _start(cloud.spans), _busy(cloud.spans)
        slack = request.duration_ns - busy  # the time of both directions: half of it passed before the first step
        put = request.start_ns + max(0, slack // 2)
        placed.append((cloud, zero + begin - put))
        rows += _rows(cloud, zero + begin - put)
        apart_ms = (begin - put) / MS
        if abs(apart_ms) > max(0, slack) / 2 / MS + TOLERANCE_MS:
            ahead = "ahead of" if apart_ms > 0 else "behind"
            remarks.append(
                f"the clock of {cloud.node or cloud.worker} is about {abs(apart_ms):.0f} ms {ahead} "
                f"{asker.node or asker.worker}'s"
            )
    remarks += [f"{edge.worker} has no request to {cloud.worker}: steps left out" for cloud in unplaced]
    if clouds and len(rows) > len(edge.spans):
        remarks.insert(0, "the cloud's steps are placed in the middle of the request: clocks of machines differ")
    return Waterfall(_sort_rows(rows), remarks)


def _placeable(
    placed: Sequence[tuple[TraceReply, int]], unplaced: Sequence[TraceReply]
) -> Iterator[tuple[TraceReply, TraceReply, int, Span]]:
    """Yield each reply whose request is in a placed reply: the reply, the requester's one, its zero, and the request.

    The zero is the time of the requester's clock at which the timeline begins, in nanoseconds.
    """
    for cloud in unplaced:
        for asker, zero in placed:
            if request := _request(asker.spans, cloud.worker):
                yield cloud, asker, zero, request


def _rows(reply: TraceReply, zero_ns: int) -> list[WaterfallRow]:
    """Return the steps of a reply; ``zero_ns`` is the beginning of the timeline on the worker's clock."""
    return [
        WaterfallRow(
            reply.worker,
            reply.node,
            reply.role,
            span.name,
            (span.start_ns - zero_ns) / MS,
            span.duration_ns / MS,
            dict(span.attributes),
        )
        for span in reply.spans
    ]


def _sort_rows(rows: list[WaterfallRow]) -> list[WaterfallRow]:
    """Return steps sorted by start; a step comes before its parts."""
    return sorted(rows, key=lambda row: (round(row.start_ms, 6), row.step.count("."), -row.duration_ms))


def _start(spans: Sequence[Span]) -> int:
    return min(span.start_ns for span in spans)


def _busy(spans: Sequence[Span]) -> int:
    """Return the nanoseconds from a worker's first step to the start of its reply."""
    begin = _start(spans)
    return max((s.start_ns if s.name == REPLY else s.start_ns + s.duration_ns) - begin for s in spans)


def _request(spans: Sequence[Span], worker: str) -> Span | None:
    """Return the request that this worker answered; else the last one to it or to any worker, None without one."""
    sent = [span for span in spans if span.name == REQUEST and span.attributes.get("to") in {worker, "any"}]
    answered = [span for span in sent if span.attributes.get("answered")]
    chosen = answered or sent
    return chosen[-1] if chosen else None
