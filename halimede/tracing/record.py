"""The traces of a worker's last frames: the steps of each in order, in a bounded buffer.

Every frame is recorded, so a step costs only a tuple: identifiers are made, and clocks and spans computed, only when a
frame is sent on or requested. Times are ``time.monotonic()``, which threads share and no clock change affects.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Literal, Protocol

from halimede import topics
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.bus.rpc import RpcServer
from halimede.messages import Span, TraceReply, TraceRequest
from halimede.tracing.context import TraceContext, trace_of, write
from halimede.tracing.steps import RESULT, Kind, Value

#: frames that one worker remembers, and most reported steps of one frame (the limit of a TraceReply)
REMEMBERED = 4096
MOST_STEPS = 64

#: kind, begin and end, and its values (by the kind's names)
Step = tuple[Kind, float, float, *tuple[Value, ...]]

#: span ids must be unique, not secret
_chance = random.Random()  # noqa: S311


class Exporter(Protocol):
    """Receives finished frames for export. Its methods must not block or raise."""

    def samples(self, trace: int, parent: TraceContext | None) -> bool:
        """Whether to export a trace; the decision is propagated with the frame."""

    def finished(self, record: FrameRecord) -> None:
        """Export a finished frame."""

    def batched(self, batch: Batch) -> None:
        """Export a model call."""


class FrameRecord:
    """The trace of one frame in this worker. ``parent`` is the context of its message."""

    __slots__ = ("_exporter", "_here", "asked", "batch", "id", "parent", "step", "steps")

    def __init__(self, id_: bytes, parent: TraceContext | None, exporter: Exporter | None) -> None:
        self.id = id_
        self.parent = parent
        self.steps: list[Step] = []
        #: records a step; callers that repeat steps bound them
        self.step = self.steps.append
        #: its model call; the context of its request
        self.batch: TraceContext | None = None
        self.asked: TraceContext | None = None
        self._exporter = exporter
        self._here: TraceContext | None = None

    @property
    def here(self) -> TraceContext:
        """The frame's current context: a span of this worker, or its parent if spans are not exported."""
        if self._here is None:
            parent, exporter = self.parent, self._exporter
            trace = parent.trace if parent else trace_of(self.id)
            if exporter:
                state = parent.state if parent else ""
                self._here = TraceContext(trace, new_span(), exporter.samples(trace, parent), state)
            else:
                self._here = parent or TraceContext(trace, new_span())
        return self._here

    @property
    def travels(self) -> bool:
        """Whether messages about this frame must contain its trace: otherwise its id is the trace."""
        return self.parent is not None or self._exporter is not None

    def ask(self) -> TraceContext:
        """Return the context of a request: a separate span, if spans are exported."""
        if self.asked is None:
            self.asked = self.here._replace(span=new_span()) if self._exporter else self.here
        return self.asked


class Batch:
    """One model call of ``size`` samples: a separate trace, with links to its exported ``members``."""

    __slots__ = ("began", "ended", "here", "members", "size")

    def __init__(
        self, here: TraceContext, began: float, ended: float, members: Sequence[TraceContext], size: int
    ) -> None:
        self.here = here
        self.size = size
        self.began = began
        self.ended = ended
        self.members = members


class TraceBuffer:
    """The records of the last ``size`` frames, by frame id."""

    def __init__(self, exporter: Exporter | None = None, *, size: int = REMEMBERED) -> None:
        self._exporter = exporter
        self._ring: list[FrameRecord | None] = [None] * size
        self._next = 0
        self._records: dict[bytes, FrameRecord] = {}

    @property
    def exports(self) -> bool:
        """Whether records are exported."""
        return self._exporter is not None

    def begin(self, id_: bytes, parent: TraceContext | None = None) -> FrameRecord:
        """Begin a frame's record, in place of an earlier one; the oldest record is removed."""
        record = FrameRecord(id_, parent, self._exporter)
        at, ring, records = self._next, self._ring, self._records
        oldest, ring[at] = ring[at], record
        self._next = (at + 1) % len(ring)
        if oldest and records.get(oldest.id) is oldest:
            del records[oldest.id]
        records[id_] = record
        return record

    def find(self, id_: bytes) -> FrameRecord | None:
        """Return a frame's record, None if it is unknown or was removed."""
        return self._records.get(id_)

    def last(self, *, hard: bool = False) -> FrameRecord | None:
        """Return the newest frame whose result the broker has accepted; ``hard``: the newest hard one."""
        at, ring = self._next, self._ring
        for record in (*reversed(ring[:at]), *reversed(ring[at:])):
            if record and any(kind is RESULT and (known[1] or not hard) for kind, _, _, *known in record.steps):
                return record
        return None

    def done(self, record: FrameRecord) -> None:
        """Finish a record: no steps are added any more."""
        if self._exporter and record.here.sampled:
            self._exporter.finished(record)

    def batch(self, began: float, ended: float, records: Sequence[FrameRecord]) -> None:
        """Record which frames shared a model call."""
        if self._exporter is None:
            return
        members = [record.here for record in records if record.here.sampled]
        if members:
            here = TraceContext(_chance.getrandbits(128) or 1, new_span())
            for record in records:
                record.batch = here
            self._exporter.batched(Batch(here, began, ended, members, len(records)))


def new_span() -> int:
    """Return a new span's id: 64 bits, not 0."""
    return _chance.getrandbits(64) or 1


def origin(frame_id: bytes) -> dict[str, str]:
    """Return the user properties with which the creator of a frame begins its trace."""
    return write(TraceContext(trace_of(frame_id), new_span()))


def wall_ahead_ns() -> int:
    """Return the current difference of wall clock and monotonic clock."""
    return time.time_ns() - time.monotonic_ns()


def named(kind: Kind, known: Sequence[Value]) -> dict[str, Value]:
    """Return the values of a step with their names, without empty values and non-finite numbers."""
    pairs = zip(kind[1], known, strict=False)
    return {
        key: value for key, value in pairs if value != "" and not (isinstance(value, float) and not isfinite(value))
    }


def spans(record: FrameRecord) -> list[Span]:
    """Return a record's steps in the form for messages."""
    ahead = wall_ahead_ns()
    return [
        Span(
            name=kind[0],
            start_ns=max(0, ahead + int(began * 1e9)),
            duration_ns=max(0, int((ended - began) * 1e9)),
            attributes=named(kind, known),
        )
        for kind, began, ended, *known in record.steps[:MOST_STEPS]
    ]


#: most seconds to send a reply
PATIENCE_S = 2.0


class TraceServer(RpcServer[TraceRequest, TraceReply]):
    """Answers trace requests from a trace buffer. Each answer has ``names`` (namespace, service, worker, node).

    A worker that does not know the frame sends no reply: all workers receive the request, and few know it.
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
            timeout_s=PATIENCE_S,
        )
        self._trace_buffer = trace_buffer
        self._role = role
        self._names = names

    async def _answer(self, delivery: Delivery[TraceRequest]) -> TraceReply | None:
        asked = delivery.body
        if asked.id:
            record = self._trace_buffer.find(bytes.fromhex(asked.id))
        else:
            record = self._trace_buffer.last(hard=asked.hard) if self._serves(asked) else None
        names: Mapping[str, Any] = self._names
        return TraceReply(role=self._role, spans=spans(record), id=record.id.hex(), **names) if record else None

    def _serves(self, asked: TraceRequest) -> bool:
        """Whether this worker is of the namespace and service that are asked for; an empty one is any."""
        wanted = {"namespace": asked.namespace, "service": asked.service}
        return all(value in {"", self._names.get(name)} for name, value in wanted.items())
