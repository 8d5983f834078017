"""What a worker says when somebody asks for a frame: the steps that it remembers, to the client that asked.

Whoever knows nothing of the frame says nothing: all workers are asked, and mostly one or two of them know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import structlog

from halimede import topics
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.errors import BusError, InvalidFieldError, RefusedError
from halimede.messages import TraceReply, TraceRequest
from halimede.tracing.record import Book, spans

log = structlog.get_logger()

#: seconds that an answer may take to leave; requests that wait
PATIENCE_S = 2.0
QUEUE = 32


class TraceServer:
    """Answers trace requests from a book. ``names`` (namespace, service, worker, node) stand in each answer."""

    def __init__(self, bus: Bus, book: Book, role: Literal["edge", "cloud"], names: Mapping[str, str]) -> None:
        self._bus = bus
        self._book = book
        self._role = role
        self._names = names

    async def start(self) -> None:
        """Subscribe. A broker that does not allow it costs the traces, not the worker."""
        try:
            await self._bus.subscribe(topics.TRACE_REQUEST.filter(), self._asked, queue=QUEUE)
        except RefusedError as error:
            log.warning("no traces: the broker refused the subscription", error=str(error))

    async def _asked(self, delivery: Delivery[TraceRequest]) -> None:
        response = topics.TRACE_REPLY.parse(delivery.packet.response_topic)
        if response is None or response["client"] != delivery.names["client"]:
            raise InvalidFieldError("response topic", delivery.packet.response_topic, "use your own trace reply topic")
        record = self._book.find(bytes.fromhex(delivery.body.id))
        if record is None:
            return
        names: Mapping[str, Any] = self._names
        answer = TraceReply(role=self._role, spans=spans(record), **names)
        try:
            await self._bus.publish(
                topics.TRACE_REPLY.at(client=response["client"]),
                answer,
                correlation=delivery.packet.correlation[:64],
                timeout_s=PATIENCE_S,
            )
        except BusError as error:
            log.debug("trace not delivered", error=str(error))
