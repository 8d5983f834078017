"""The requester's connection: finds the sources of a file, receives its pieces, and sends orders of an operator.

Replies are identified by correlation data that cannot be guessed, and by their sender, which the broker has checked.
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

#: seconds: for the first reply to a query, and for more of them after it; between two repetitions of an order
QUERY_S, MORE_S, ORDER_S = 2.0, 0.2, 10.0
#: most replies to one query, and pieces in the queue
ANSWERS, PIECES = 16, 64
#: seconds for which a source is not asked again for a file after wrong bytes, and the number of such entries
DISTRUST_S, DISTRUSTED = 600.0, 1000


class Listener(Protocol):
    """Receives the pieces of its ticket."""

    async def came(self, delivery: Delivery[BlobChunk]) -> None:
        """Process a piece."""


class BlobClient:
    """Requests files under a name (``lc.edge0``). The caller enters the bus, and calls ``start`` once.

    Attributes:
        late: pieces that are not, or no longer, expected: late, repeated or forged.

    """

    def __init__(self, bus: Bus, name: str, channel: BlobChannel = SITE) -> None:
        self.bus = bus
        self.name = name
        self.channel = channel
        self.late = 0
        self._readers: dict[bytes, Listener] = {}
        self._answers = RpcClient(bus, topics.BLOB_ANSWER.filter(asker=name), queue=PIECES)
        self._wrong: dict[tuple[str, str], float] = {}

    async def start(self) -> None:
        """Subscribe to pieces and replies for this client."""
        await self.bus.subscribe(self.channel.chunks_for(self.name), self._chunk, queue=PIECES)
        if self.channel.has_queries:
            await self._answers.start()

    def attach(self, ticket: bytes, listener: Listener) -> None:
        """Pass pieces with this ticket to a listener, until ``detach``."""
        self._readers[ticket] = listener

    def detach(self, ticket: bytes) -> None:
        """Drop further pieces with this ticket."""
        self._readers.pop(ticket, None)

    async def who_has(self, digest: str) -> list[str]:
        """Return the sources that report to have a file, in the order of their replies. Raises BusError."""
        answers = self._answers.gather(
            topics.BLOB_QUERY.at(asker=self.name),
            BlobQuery(digest=digest),
            first_s=QUERY_S,
            quiet_s=MORE_S,
            longest_s=QUERY_S + ANSWERS * MORE_S,
            most=ANSWERS,
            accept=lambda delivery: delivery.body.outcome == "has",
        )
        try:
            sources = [delivery.names["source"] async for delivery in answers]
        except NoSubscriberError:
            return []
        return list(dict.fromkeys(sources))

    async def order(self, source: str, order: BlobOrder, *, timeout_s: float) -> BlobAnswer:
        """Send an order to a source, and repeat it until the source replies: it carries it out once.

        Raises HalimedeError when it refuses or does not reply, NoSubscriberError when it is offline, BusError.
        """
        with self._answers.pending(ANSWERS, lambda delivery: delivery.names["source"] == source) as pending:
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await self._repeat(source, order, pending)
            except TimeoutError:
                raise HalimedeError(
                    f"{node_of(source)} did not answer within {timeout_s:g} s: see its log, then try again"
                ) from None
        if answer.outcome == "refused":
            raise HalimedeError(f"{node_of(source)} refused: {answer.message}")
        return answer

    def distrust(self, digest: str, sources: Sequence[str]) -> None:
        """Record that a file had wrong bytes, of which these sources sent some."""
        now = asyncio.get_running_loop().time()
        self._wrong = {entry: until for entry, until in self._wrong.items() if until > now}
        for source in sources:
            if len(self._wrong) < DISTRUSTED:
                self._wrong[digest, source] = now + DISTRUST_S

    def is_trusted(self, digest: str, source: str) -> bool:
        """Whether a source may be asked for a file."""
        return self._wrong.get((digest, source), 0.0) <= asyncio.get_running_loop().time()

    async def _repeat(self, source: str, order: BlobOrder, pending: PendingReplies[BlobAnswer]) -> BlobAnswer:
        """Repeat an order until its source replies."""
        address = topics.BLOB_ORDER.at(source=source, asker=self.name)
        while True:
            with contextlib.suppress(DisconnectedError):
                if not await self._answers.send(address, order, pending):
                    raise NoSubscriberError(f"{node_of(source)} is not on the bus: see `halimede nodes`")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ORDER_S):
                    return (await pending.queue.get()).body

    async def _chunk(self, delivery: Delivery[BlobChunk]) -> None:
        reader = self._readers.get(delivery.packet.correlation)
        if reader is None:
            self.late += 1
        else:
            await reader.came(delivery)
