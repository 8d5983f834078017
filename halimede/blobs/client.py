"""The requester's connection: finds the sources of a file, receives its pieces, and sends orders of an operator.

A source or requester is named by its user at the broker (``gm``, ``lc.edge0``). Replies are identified by tickets
(correlation data that cannot be guessed), and by their sender, which the broker has checked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from halimede import topics
from halimede.blobs.channel import SITE, BlobChannel
from halimede.blobs.uris import node_of
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.bus.rpc import PendingReplies, RpcClient
from halimede.errors import DisconnectedError, HalimedeError, NoSubscriberError
from halimede.messages import BlobAnswer, BlobChunk, BlobOrder, BlobQuery

#: seconds: for the first reply to a query, and for each further one after it; between two repetitions of an order
FIRST_ANSWER_S, NEXT_ANSWER_S, ORDER_PERIOD_S = 2.0, 0.2, 10.0
#: most replies to one query, and most pieces in the subscription's queue
MAX_ANSWERS, MAX_PIECES = 16, 64
#: seconds for which a source is not asked again for a file after wrong bytes, and the number of such entries
DISTRUST_S, MAX_DISTRUSTED = 600.0, 1000


class Listener(Protocol):
    """Receives the pieces with its ticket: a ``BlobDownload``."""

    async def receive(self, delivery: Delivery[BlobChunk]) -> None:
        """Handle a piece that has arrived; the next one waits until this returns."""


class BlobClient:
    """Requests files under a name (``lc.edge0``). The caller enters the bus, and calls ``start`` once.

    Attributes:
        late: pieces so far that no listener expected: late, repeated or forged.

    """

    def __init__(self, bus: Bus, name: str, channel: BlobChannel = SITE) -> None:
        self.bus = bus
        self.name = name
        self.channel = channel
        self.late = 0
        self._listeners: dict[bytes, Listener] = {}
        self._answers = RpcClient(bus, topics.BLOB_ANSWER.filter(asker=name), queue=MAX_PIECES)
        self._distrusted_until: dict[tuple[str, str], float] = {}

    async def start(self) -> None:
        """Subscribe to pieces and replies for this client. Raises RefusedError."""
        await self.bus.subscribe(self.channel.chunks_for(self.name), self._on_chunk, queue=MAX_PIECES)
        if self.channel.has_queries:
            await self._answers.start()

    def attach(self, ticket: bytes, listener: Listener) -> None:
        """Pass pieces with the ticket to a listener, until ``detach``."""
        self._listeners[ticket] = listener

    def detach(self, ticket: bytes) -> None:
        """Pass no further pieces with the ticket on: they count as late."""
        self._listeners.pop(ticket, None)

    async def who_has(self, digest: str) -> list[str]:
        """Return the names of the sources that report to have a file, in the order of their replies.

        ``digest``: its SHA-256 in hexadecimal. Waits FIRST_ANSWER_S for the first reply, and NEXT_ANSWER_S for each
        further one. Raises BusError.
        """
        answers = self._answers.gather(
            topics.BLOB_QUERY.at(asker=self.name),
            BlobQuery(digest=digest),
            first_s=FIRST_ANSWER_S,
            quiet_s=NEXT_ANSWER_S,
            longest_s=FIRST_ANSWER_S + MAX_ANSWERS * NEXT_ANSWER_S,
            most=MAX_ANSWERS,
            accepts=lambda delivery: delivery.body.outcome == "has",
        )
        try:
            sources = [delivery.names["source"] async for delivery in answers]
        except NoSubscriberError:
            return []
        return list(dict.fromkeys(sources))

    async def order(self, source: str, order: BlobOrder, *, timeout_s: float) -> BlobAnswer:
        """Send an order to a source, and repeat it until the source replies; the source carries it out once.

        Raises HalimedeError if the source refuses or does not reply, NoSubscriberError if it is offline, BusError.
        """
        with self._answers.expect_replies(MAX_ANSWERS, lambda delivery: delivery.names["source"] == source) as pending:
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await self._send_until_reply(source, order, pending)
            except TimeoutError:
                raise HalimedeError(
                    f"{node_of(source)} did not answer within {timeout_s:g} s: see its log, then try again"
                ) from None
        if answer.outcome == "refused":
            raise HalimedeError(f"{node_of(source)} refused: {answer.message}")
        return answer

    def distrust(self, digest: str, sources: Sequence[str]) -> None:
        """Let ``is_trusted`` be False for a file and ``sources`` for DISTRUST_S: one of them has sent wrong bytes."""
        now = asyncio.get_running_loop().time()
        self._distrusted_until = {entry: until for entry, until in self._distrusted_until.items() if until > now}
        for source in sources:
            if len(self._distrusted_until) < MAX_DISTRUSTED:
                self._distrusted_until[digest, source] = now + DISTRUST_S

    def is_trusted(self, digest: str, source: str) -> bool:
        """Whether a source may be asked for a file: it has not been distrusted in the last ``DISTRUST_S`` seconds."""
        return self._distrusted_until.get((digest, source), 0.0) <= asyncio.get_running_loop().time()

    async def _send_until_reply(self, source: str, order: BlobOrder, pending: PendingReplies[BlobAnswer]) -> BlobAnswer:
        """Repeat an order until its source replies. Raises NoSubscriberError if the source is offline, BusError."""
        address = topics.BLOB_ORDER.at(source=source, asker=self.name)
        while True:
            with contextlib.suppress(DisconnectedError):
                if not await self._answers.send(address, order, pending):
                    raise NoSubscriberError(f"{node_of(source)} is not on the bus: see `halimede nodes`")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ORDER_PERIOD_S):
                    return (await pending.queue.get()).body

    async def _on_chunk(self, delivery: Delivery[BlobChunk]) -> None:
        """Pass a piece to the listener of its ticket, or count it."""
        listener = self._listeners.get(delivery.packet.correlation)
        if listener is None:
            self.late += 1
        else:
            await listener.receive(delivery)
