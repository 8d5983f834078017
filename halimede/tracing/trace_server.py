"""What a worker says when somebody asks for a frame: the steps that it remembers, to the client that asked.

Whoever knows nothing of the frame says nothing: all workers are asked, and mostly one or two of them know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from halimede import topics
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.bus.rpc import RpcServer
from halimede.messages import TraceReply, TraceRequest
from halimede.tracing.record import Book, spans

#: seconds that a reply may take to leave
PATIENCE_S = 2.0


class TraceServer(RpcServer[TraceRequest, TraceReply]):
    """Answers trace requests from a book. ``names`` (namespace, service, worker, node) stand in each answer."""

    def __init__(self, bus: Bus, book: Book, role: Literal["edge", "cloud"], names: Mapping[str, str]) -> None:
        super().__init__(
            bus,
            topics.TRACE_REQUEST.filter(),
            topics.TRACE_REPLY,
            self._answer,
            optional=True,
            timeout_s=PATIENCE_S,
        )
        self._book = book
        self._role = role
        self._names = names

    async def _answer(self, delivery: Delivery[TraceRequest]) -> TraceReply | None:
        record = self._book.find(bytes.fromhex(delivery.body.id))
        names: Mapping[str, Any] = self._names
        return TraceReply(role=self._role, spans=spans(record), **names) if record else None
