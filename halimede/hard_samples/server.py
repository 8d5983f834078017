"""Serves a worker's stored hard samples over the bus: a page of them, or one with its picture.

One picture a reply, one request at a time: whoever exports thousands of them does not hold up the worker's answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar

from halimede import topics
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.bus.rpc import RpcServer
from halimede.hard_samples.store import HardSampleStore
from halimede.messages import KeptReply, KeptRequest

P = ParamSpec("P")
T = TypeVar("T")


class Thread(Protocol):
    """Runs blocking disk operations outside the event loop (``ModelThread``)."""

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` in the thread."""


class HardSampleServer(RpcServer[KeptRequest, KeptReply]):
    """Answers requests for kept samples. ``names`` (namespace, service, worker, node) stand in each reply."""

    def __init__(self, bus: Bus, store: HardSampleStore, names: Mapping[str, str], thread: Thread) -> None:
        super().__init__(
            bus,
            topics.KEPT_REQUEST.filter(),
            topics.KEPT_REPLY,
            self._answer,
            too_large=lambda error: self._entry_of(error=str(error)),
            optional=True,
        )
        self._store = store
        self._names = names
        self._thread = thread

    async def _answer(self, delivery: Delivery[KeptRequest]) -> KeptReply | None:
        wanted = delivery.body
        asked = {name: getattr(wanted, name) for name in self._names}
        if any(value and value != self._names[name] for name, value in asked.items()):
            return None
        return await self._thread.call(self._reply, wanted)

    def _reply(self, wanted: KeptRequest) -> KeptReply | None:
        """Look into the store; None of a sample that is not here, unless this worker was asked by its name."""
        try:
            if not wanted.id:
                page = self._store.page(wanted)
                return self._entry_of(entries=page.entries, next=page.next)
            found = self._store.get(wanted.id)
        except OSError as error:
            return self._entry_of(error=f"its store cannot be read: {error.strerror or error}")
        if found:
            return self._entry_of(sample=found[0], data=found[1])
        return self._entry_of(error="it is no longer kept: newer ones needed the room") if wanted.worker else None

    def _entry_of(self, **said: Any) -> KeptReply:
        names: Mapping[str, Any] = self._names
        return KeptReply(samples=len(self._store), room=self._store.bytes, **names, **said)
