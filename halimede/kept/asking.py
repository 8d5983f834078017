"""Asks edge workers for the hard samples that they keep, from anywhere on the bus: pages of them, or one whole.

All workers hear a question without a worker's name; what comes within a short time is the answer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import msgspec

from halimede import topics
from halimede.bus.port import Bus, Delivery
from halimede.errors import HalimedeError
from halimede.messages import KeptEntry, KeptReply, KeptRequest
from halimede.topic import Filter

#: seconds in which workers answer: until nothing more has come for a while, and at most
QUIET_S, LONGEST_S = 0.5, 5.0
#: seconds for the answer of one worker that is known to be there
ANSWER_S = 15.0
#: answers to one question that are kept
MOST = 1024
NOBODY = (
    "no edge worker that keeps hard samples is there: set keepHardSamples in the service's edgeWorker, and see "
    "`halimede get ji -A`"
)


class KeptSamples:
    """What edge workers keep, asked over a connection that is up. Call ``start`` first."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._reply_to = topics.KEPT_REPLY.at(client=bus.client_id)
        self._to = topics.KEPT_REQUEST.at(client=bus.client_id)
        self._open: dict[bytes, asyncio.Queue[KeptReply]] = {}

    async def start(self) -> None:
        """Listen for answers."""
        await self._bus.subscribe(Filter(topics.KEPT_REPLY, self._reply_to.text), self._answered)

    async def pages(self, wanted: KeptRequest) -> list[KeptReply]:
        """Return the first page of each worker. Raises HalimedeError when nobody keeps anything."""
        replies: list[KeptReply] = []
        async for reply in self._ask(wanted, QUIET_S, LONGEST_S):
            replies.append(reply)
            if len(replies) == MOST or wanted.worker:
                break
        if not replies:
            raise HalimedeError(NOBODY)
        return replies

    async def entries(self, first: KeptReply, wanted: KeptRequest) -> AsyncIterator[KeptEntry]:
        """Yield a worker's samples, the newest first, from its first page on. Raises HalimedeError."""
        page = first
        while True:
            if page.error:
                raise HalimedeError(f"worker {page.worker} on {page.node}: {page.error}")
            for entry in page.entries:
                yield entry
            if not page.next:
                return
            page = await self._one(msgspec.structs.replace(_to(first, wanted), before=page.next))

    async def sample(self, entry_id: str, of: KeptReply | None = None) -> KeptReply:
        """Return one sample with its file, of a worker or of whoever has it; raises HalimedeError."""
        request = KeptRequest(id=entry_id)
        try:
            reply = await self._one(_to(of, request) if of else request)
        except TimeoutError:
            raise HalimedeError(
                f"nobody keeps hard sample {entry_id}, or not any longer: see `halimede hard list`"
            ) from None
        if reply.error:
            raise HalimedeError(f"worker {reply.worker} on {reply.node}: {reply.error}")
        return reply

    async def _one(self, wanted: KeptRequest) -> KeptReply:
        limit = ANSWER_S if wanted.worker else LONGEST_S
        async for reply in self._ask(wanted, limit, limit):
            return reply
        raise TimeoutError

    async def _ask(self, wanted: KeptRequest, quiet_s: float, longest_s: float) -> AsyncIterator[KeptReply]:
        """Yield what comes until nothing more has come for a while."""
        correlation = secrets.token_bytes(16)
        queue = self._open[correlation] = asyncio.Queue(MOST)
        loop = asyncio.get_running_loop()
        until = loop.time() + longest_s
        try:
            sent = await self._bus.publish(
                self._to, wanted, reply_to=self._reply_to, correlation=correlation, expiry_s=round(longest_s)
            )
            if not sent:
                raise HalimedeError(NOBODY)
            patience = longest_s / 2
            while loop.time() < until:
                try:
                    async with asyncio.timeout(min(patience, until - loop.time())):
                        reply = await queue.get()
                except TimeoutError:
                    return
                patience = quiet_s
                yield reply
        finally:
            del self._open[correlation]

    async def _answered(self, delivery: Delivery[KeptReply]) -> None:
        queue = self._open.get(delivery.packet.correlation)
        if queue is not None and not queue.full():
            queue.put_nowait(delivery.body)


def _to(of: KeptReply, wanted: KeptRequest) -> KeptRequest:
    return msgspec.structs.replace(wanted, worker=of.worker, namespace=of.namespace, service=of.service)
