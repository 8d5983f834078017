"""One frame's way as a timeline: what workers remember, put on the clock of the edge. Pure.

Clocks of two machines are never compared: the cloud's steps are placed inside the edge's request to that worker, in its
middle, since the way there and the way back take about as long. What the clocks say is only used to tell how far they
disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from halimede.messages import Span, TraceReply

MS = 1e6
#: steps by which the parts of an answer are told apart
REQUEST, REPLY = "offload.request", "reply"
#: milliseconds by which clocks may differ before it is worth a word
TOLERANCE_MS = 1.0


@dataclass(frozen=True, slots=True)
class WaterfallRow:
    """One step: where, when (milliseconds after the edge received the frame), how long, and what is known of it."""

    worker: str
    node: str
    role: str
    step: str
    start_ms: float
    duration_ms: float
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Rows in the order of their start, and notes."""

    rows: list[WaterfallRow]
    remarks: list[str]

    @property
    def length_ms(self) -> float:
        """From the first begin to the last end."""
        ends = [row.start_ms + row.duration_ms for row in self.rows]
        return max(ends, default=0.0) - min((row.start_ms for row in self.rows), default=0.0)


def timelines(replies: Sequence[TraceReply]) -> list[Waterfall]:
    """Return one timeline for each edge worker that had the frame; what no edge claims comes last, on its own clock."""
    edges = [reply for reply in replies if reply.role == "edge" and reply.spans]
    clouds = [reply for reply in replies if reply.role == "cloud" and reply.spans]
    found = []
    for edge in edges:
        own = [cloud for cloud in clouds if _same(edge, cloud)]
        clouds = [cloud for cloud in clouds if cloud not in own]
        found.append(_timeline(edge, own))
    found += [Waterfall(_ordered(_rows(c, _start(c.spans))), [f"no edge worker remembers it: {c.worker}'s own clock"])
              for c in clouds]  # fmt: skip
    return found


def _same(edge: TraceReply, cloud: TraceReply) -> bool:
    return (edge.namespace, edge.service) == (cloud.namespace, cloud.service)


def _timeline(edge: TraceReply, clouds: Sequence[TraceReply]) -> Waterfall:
    rows = _rows(edge, _start(edge.spans))
    remarks = []
    #: who has a place, and where its own clock's zero is: a tier in between asks others itself
    placed = [(edge, _start(edge.spans))]
    left = list(clouds)
    while found := next(_placeable(placed, left), None):
        cloud, asker, zero, request = found
        left.remove(cloud)
        begin, busy = _start(cloud.spans), _busy(cloud.spans)
        slack = request.duration_ns - busy
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
    remarks += [f"{edge.worker} remembers no request to {cloud.worker}: its steps are left out" for cloud in left]
    if clouds and len(rows) > len(edge.spans):
        remarks.insert(0, "the cloud's steps are placed in the middle of the request: clocks of machines differ")
    return Waterfall(_ordered(rows), remarks)


def _placeable(
    placed: Sequence[tuple[TraceReply, int]], left: Sequence[TraceReply]
) -> Iterator[tuple[TraceReply, TraceReply, int, Span]]:
    """Yield who was asked by somebody that has a place: both, the asker's zero, and the request."""
    for cloud in left:
        for asker, zero in placed:
            if request := _request(asker.spans, cloud.worker):
                yield cloud, asker, zero, request


def _rows(reply: TraceReply, zero_ns: int) -> list[WaterfallRow]:
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


def _ordered(rows: list[WaterfallRow]) -> list[WaterfallRow]:
    """Order by begin; what contains another step comes before it."""
    return sorted(rows, key=lambda row: (round(row.start_ms, 6), row.step.count("."), -row.duration_ms))


def _start(spans: Sequence[Span]) -> int:
    return min(span.start_ns for span in spans)


def _busy(spans: Sequence[Span]) -> int:
    """How long the cloud had it, until its reply began to leave."""
    begin = _start(spans)
    return max((s.start_ns if s.name == REPLY else s.start_ns + s.duration_ns) - begin for s in spans)


def _request(spans: Sequence[Span], worker: str) -> Span | None:
    """Return the request that this worker answered, else the last one that went to it or to nobody in particular."""
    sent = [span for span in spans if span.name == REQUEST and span.attributes.get("to") in {worker, "any"}]
    answered = [span for span in sent if span.attributes.get("answered")]
    chosen = answered or sent
    return chosen[-1] if chosen else None
