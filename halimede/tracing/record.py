"""The traces of a worker's last frames: a ``TraceBuffer`` has a ``FrameRecord`` with the steps of each.

Every frame is recorded, so a step costs only a tuple. Ids are made, and spans computed, only when a frame is sent on,
its trace is requested, or an exporter gets it. Times are seconds of ``time.monotonic()``, which threads share and no
clock change affects.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, Protocol

from halimede import topics
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.bus.rpc import RpcServer
from halimede.messages import Span, TraceReply, TraceRequest
from halimede.tracing.context import TraceContext, trace_of, write
from halimede.tracing.steps import RESULT, Kind, Value

#: frames that one worker remembers
REMEMBERED = 4096
#: most steps of one frame in a reply: the limit of a TraceReply
MOST_STEPS = 64
#: most seconds to send a reply
REPLY_TIMEOUT_S = 2.0

#: kind, begin and end in seconds of the monotonic clock, then the values in the order of their names in the kind
Step = tuple[Kind, float, float, *tuple[Value, ...]]

#: span ids must be unique, not secret
_random = random.Random()  # noqa: S311


class Exporter(Protocol):
    """Receives finished frames and model calls for export. Its methods must not block or raise."""

    def must_sample(self, trace_id: int, parent: TraceContext | None) -> bool:
        """Whether to export a trace; the decision travels with the frame. ``parent``: the context that came with it."""

    def export(self, record: FrameRecord | Batch) -> None:
        """Export a finished frame or a model call."""


class FrameRecord:
    """The trace of one frame in this worker.

    Attributes:
        id: the frame's id, 16 bytes.
        parent: the context that came with the frame's message; None if none came.
        steps: the recorded steps, in the order of their end.
        step: records a ``Step``; callers that repeat steps bound their number.
        batch: the context of the frame's model call; None before it, or if model calls are not exported.
        request: the context of the frame's request to the next tier; None before it.

    """

    __slots__ = ("_context", "_exporter", "batch", "id", "parent", "request", "step", "steps")

    def __init__(self, frame_id: bytes, parent: TraceContext | None, exporter: Exporter | None) -> None:
        self.id = frame_id
        self.parent = parent
        self.steps: list[Step] = []
        self.step = self.steps.append
        self.batch: TraceContext | None = None
        self.request: TraceContext | None = None
        self._exporter = exporter
        self._context: TraceContext | None = None

    @property
    def context(self) -> TraceContext:
        """The frame's context: a span of this worker; without an exporter ``parent``, or a new span if it is None."""
        if self._context is None:
            parent, exporter = self.parent, self._exporter
            trace = parent.trace if parent else trace_of(self.id)
            if exporter:
                state = parent.state if parent else ""
                self._context = TraceContext(trace, new_span(), exporter.must_sample(trace, parent), state)
            else:
                self._context = parent or TraceContext(trace, new_span())
        return self._context

    @property
    def must_travel(self) -> bool:
        """Whether messages about this frame must contain its trace: otherwise the frame's id is the trace id."""
        return self.parent is not None or self._exporter is not None

    def request_context(self) -> TraceContext:
        """Return the context of the frame's request to the next tier: a separate span, if spans are exported."""
        if self.request is None:
            self.request = self.context._replace(span=new_span()) if self._exporter else self.context
        return self.request


@dataclass(slots=True, eq=False)
class Batch:
    """One model call: a separate trace, because it belongs to several frames.

    Attributes:
        context: its trace and its span.
        began: its begin, in seconds of the monotonic clock.
        ended: its end.
        members: the contexts of the frames in it that are exported.
        size: the number of its samples.

    """

    context: TraceContext
    began: float
    ended: float
    members: Sequence[TraceContext]
    size: int


class TraceBuffer:
    """The records of the last ``size`` frames, by frame id. ``exporter``: gets finished records; None: no export."""

    def __init__(self, exporter: Exporter | None = None, *, size: int = REMEMBERED) -> None:
        self._exporter = exporter
        self._ring: list[FrameRecord | None] = [None] * size
        self._next = 0
        self._records: dict[bytes, FrameRecord] = {}

    @property
    def exports(self) -> bool:
        """Whether records are exported."""
        return self._exporter is not None

    def begin(self, frame_id: bytes, parent: TraceContext | None = None) -> FrameRecord:
        """Return a new record of a frame, in place of an earlier one of its id; the oldest record is removed.

        ``parent``: the context that came with the frame; None if none came.
        """
        record = FrameRecord(frame_id, parent, self._exporter)
        position, ring, records = self._next, self._ring, self._records
        oldest, ring[position] = ring[position], record
        self._next = (position + 1) % len(ring)
        if oldest and records.get(oldest.id) is oldest:
            del records[oldest.id]
        records[frame_id] = record
        return record

    def find(self, frame_id: bytes) -> FrameRecord | None:
        """Return a frame's record; None if it is unknown or was removed."""
        return self._records.get(frame_id)

    def last(self, *, hard: bool = False) -> FrameRecord | None:
        """Return the newest frame whose result was published; None without one, as in workers that only reply.

        ``hard``: only hard frames count.
        """
        position, ring = self._next, self._ring
        for record in (*reversed(ring[:position]), *reversed(ring[position:])):
            if record and any(kind is RESULT and (values[1] or not hard) for kind, _, _, *values in record.steps):
                return record
        return None

    def finish(self, record: FrameRecord) -> None:
        """Export a record if its trace is sampled. Call it when no more steps are added."""
        if self._exporter and record.context.sampled:
            self._exporter.export(record)

    def add_batch(self, began: float, ended: float, records: Sequence[FrameRecord]) -> None:
        """Export a model call with its frames, if one of their traces is sampled.

        ``began``, ``ended``: its begin and end in seconds of the monotonic clock.
        """
        if self._exporter is None:
            return
        members = [record.context for record in records if record.context.sampled]
        if members:
            context = TraceContext(_random.getrandbits(128) or 1, new_span())
            for record in records:
                record.batch = context
            self._exporter.export(Batch(context, began, ended, members, len(records)))


def new_span() -> int:
    """Return a new span's id: 64 bits, not 0."""
    return _random.getrandbits(64) or 1


def origin(frame_id: bytes) -> dict[str, str]:
    """Return the user properties with which the publisher of a new frame begins its trace."""
    return write(TraceContext(trace_of(frame_id), new_span()))


def wall_clock_offset_ns() -> int:
    """Return the wall clock minus the monotonic clock, in nanoseconds."""
    return time.time_ns() - time.monotonic_ns()


def values_by_name(kind: Kind, values: Sequence[Value]) -> dict[str, Value]:
    """Return the values of a step by their names in its kind, without empty text, infinite numbers and NaN."""
    pairs = zip(kind[1], values, strict=False)
    return {
        key: value for key, value in pairs if value != "" and not (isinstance(value, float) and not isfinite(value))
    }


def spans(record: FrameRecord) -> list[Span]:
    """Return the first MOST_STEPS steps of a record in the form for messages, with times since 1970."""
    offset_ns = wall_clock_offset_ns()
    return [
        Span(
            name=kind[0],
            start_ns=max(0, offset_ns + int(began * 1e9)),
            duration_ns=max(0, int((ended - began) * 1e9)),
            attributes=values_by_name(kind, values),
        )
        for kind, began, ended, *values in record.steps[:MOST_STEPS]
    ]


class TraceServer(RpcServer[TraceRequest, TraceReply]):
    """Answers requests for the trace of one frame from a trace buffer; ``RpcServer`` describes its methods.

    All workers receive a request, and only a worker with a record of the frame replies. ``names``: namespace, service,
    worker and node of this worker, which stand in each reply.
    """

    def __init__(
        self, bus: Bus, trace_buffer: TraceBuffer, role: Literal["edge", "cloud"], names: Mapping[str, str]
    ) -> None:
        super().__init__(
            bus,
            topics.TRACE_REQUEST.filter(),
            topics.TRACE_REPLY,
            self._answer,
            optional=True,
            timeout_s=REPLY_TIMEOUT_S,
        )
        self._trace_buffer = trace_buffer
        self._role = role
        self._names = names

    async def _answer(self, delivery: Delivery[TraceRequest]) -> TraceReply | None:
        """Return the reply about the frame of this id, or else about the last frame; None: it has no record."""
        request = delivery.body
        if request.id:
            record = self._trace_buffer.find(bytes.fromhex(request.id))
        else:
            record = self._trace_buffer.last(hard=request.hard) if self._matches(request) else None
        names: Mapping[str, Any] = self._names
        return TraceReply(role=self._role, spans=spans(record), id=record.id.hex(), **names) if record else None

    def _matches(self, request: TraceRequest) -> bool:
        """Whether this worker has the request's namespace and service; an empty name matches every worker."""
        filters = {"namespace": request.namespace, "service": request.service}
        return all(value in {"", self._names.get(name)} for name, value in filters.items())
