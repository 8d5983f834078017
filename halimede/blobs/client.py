"""The asking side's connection: who has a file, pieces of it for those who read, and orders of an operator.

Answers are known by correlation data that nobody can guess, and by who gave them, which the broker has checked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from halimede import topics
from halimede.blobs.uris import node_of
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.bus.rpc import PendingReplies, RpcClient
from halimede.errors import DisconnectedError, HalimedeError, NoSubscriberError
from halimede.messages import BlobAnswer, BlobChunk, BlobOrder, BlobQuery

#: seconds: for the first answer to a query, and for more of them after it; between two repetitions of an order
QUERY_S, MORE_S, ORDER_S = 2.0, 0.2, 10.0
#: answers to one question that are looked at, and pieces that wait
ANSWERS, PIECES = 16, 64
#: seconds for which a source is not asked again for a file whose bytes were wrong, and how many such are remembered
DISTRUST_S, DISTRUSTED = 600.0, 1000


class Listener(Protocol):
    """Takes what comes with its ticket."""

    async def came(self, delivery: Delivery[BlobChunk]) -> None:
        """Take a piece."""


class BlobClient:
    """Asks for files under a name (``lc.edge0``). The caller enters the bus, and calls ``start`` once.

    Attributes:
        late: pieces that nobody (any more) waits for: late, repeated or forged.

    """

    def __init__(self, bus: Bus, name: str) -> None:
        self.bus = bus
        self.name = name
        self.late = 0
        self._readers: dict[bytes, Listener] = {}
        self._answers = RpcClient(bus, topics.BLOB_ANSWER.filter(asker=name), queue=PIECES)
        self._wrong: dict[tuple[str, str], float] = {}

    async def start(self) -> None:
        """Subscribe to pieces and answers for us."""
        await self.bus.subscribe(topics.BLOB_CHUNK.filter(asker=self.name), self._chunk, queue=PIECES)
        await self._answers.start()

    def attach(self, ticket: bytes, listener: Listener) -> None:
        """Hand pieces with this ticket to a listener, until ``detach``."""
        self._readers[ticket] = listener

    def detach(self, ticket: bytes) -> None:
        """Nobody waits for pieces with this ticket any more."""
        self._readers.pop(ticket, None)

    async def who_has(self, digest: str) -> list[str]:
        """Return who says to have a file, first answer first. Raises BusError."""
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
            found = [delivery.names["source"] async for delivery in answers]
        except NoSubscriberError:
            return []
        return list(dict.fromkeys(found))

    async def order(self, source: str, order: BlobOrder, *, timeout_s: float) -> BlobAnswer:
        """Have a source do something; it is asked again until it answers: it does the same thing once.

        Raises HalimedeError when it refuses or does not answer, NoSubscriberError when it is not there, BusError.
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

    def tls_error(self, digest: str, sources: Sequence[str]) -> None:
        """Note that a file had wrong bytes, of which these gave some."""
        now = asyncio.get_running_loop().time()
        self._wrong = {known: until for known, until in self._wrong.items() if until > now}
        for source in sources:
            if len(self._wrong) < DISTRUSTED:
                self._wrong[digest, source] = now + DISTRUST_S

    def trusts(self, digest: str, source: str) -> bool:
        """Whether a source is asked for a file."""
        return self._wrong.get((digest, source), 0.0) <= asyncio.get_running_loop().time()

    async def _repeat(self, source: str, order: BlobOrder, pending: PendingReplies[BlobAnswer]) -> BlobAnswer:
        """Send an order until its source answers."""
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
