"""The giving side: answers questions for pieces of files, one asker after the other, a piece at a time.

A piece is on its way to the broker before the next is read, and QoS 0: the socket holds a source back, nothing piles
up in it, and what is lost is asked for again. Whoever asks is named in the topic, which the broker has checked, and the
answer goes to that name alone: nobody can have somebody else flooded.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from halimede import topics
from halimede.blobs.file_provider import FileProvider
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.errors import BusError, first_error
from halimede.messages import BlobAnswer, BlobChunk, BlobQuery, BlobRequest

log = structlog.get_logger()
NOT_FOUND, BEYOND, UNREADABLE = "NotFound", "Beyond", "Unreadable"
#: pieces that are read and sent side by side
HANDS = 2
#: seconds: for a piece to leave, between two looks at idle files, and for the lifetime of an answer
SEND_S, TIDY_S = 30.0, 5.0
#: bytes of a packet that are not the piece
BESIDE = 4096
#: questions that the bus holds for us, beside those in their turns
QUEUE = 256
T = TypeVar("T")
#: questions of one asker, and askers, that may wait
EACH, ASKERS = 32, 512


@dataclass(slots=True)
class SourceStats:
    """What was given since the start."""

    pieces: int = 0
    bytes: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class _Question:
    asker: str
    correlation: bytes
    body: BlobRequest | BlobQuery


class BlobServer:
    """Serves a provider's files under a name (``gm``, ``lc.edge0``). The caller enters the bus and runs ``run``."""

    def __init__(self, bus: Bus, name: str, shelf: FileProvider) -> None:
        self.stats = SourceStats()
        self.turns: FairQueue[_Question] = FairQueue()
        self._bus = bus
        self._name = name
        self._shelf = shelf

    async def start(self, *, queries: bool = True) -> None:
        """Subscribe to questions for us, and to those for all."""
        await self._bus.subscribe(topics.BLOB_REQUEST.filter(source=self._name), self._asked, queue=QUEUE)
        if queries:
            await self._bus.subscribe(topics.BLOB_QUERY.filter(), self._queried, queue=QUEUE)

    async def run(self) -> None:
        """Answer until cancelled."""
        try:
            with first_error():
                async with asyncio.TaskGroup() as group:
                    for number in range(HANDS):
                        group.create_task(self._work(), name=f"blobs: hand {number}")
                    while True:
                        await asyncio.sleep(TIDY_S)
                        self._shelf.tidy()
        finally:
            self._shelf.close()

    async def _asked(self, delivery: Delivery[BlobRequest]) -> None:
        asker, body = delivery.names["asker"], delivery.body
        self.turns.put(asker, (body.digest, body.offset), _Question(asker, delivery.packet.correlation, body))

    async def _queried(self, delivery: Delivery[BlobQuery]) -> None:
        asker, body = delivery.names["asker"], delivery.body
        if asker != self._name:
            self.turns.put(asker, body.digest, _Question(asker, delivery.packet.correlation, body))

    async def _work(self) -> None:
        while True:
            question = await self.turns.take()
            try:
                if isinstance(question.body, BlobQuery):
                    await self._answer(question, question.body)
                else:
                    await self._give(question, question.body)
            except BusError as error:
                log.debug("blob answer not sent", asker=question.asker, error=str(error))
            except Exception:  # one question must not end what else this process does
                log.exception("blob question failed", asker=question.asker)

    async def _give(self, question: _Question, body: BlobRequest) -> None:
        length = min(body.length, self._bus.max_packet - BESIDE)
        error, size, data = "", 0, memoryview(b"")
        try:
            found = await self._shelf.read(body.digest, body.offset, length)
            if found is None:
                error = NOT_FOUND
            else:
                size, data = found
                error = BEYOND if body.offset > size else ""
        except OSError as problem:
            log.warning("blob cannot be read", digest=body.digest, error=problem.strerror)
            error = UNREADABLE
        chunk = BlobChunk(digest=body.digest, offset=body.offset, size=size, error=error, data=data)
        to = topics.BLOB_CHUNK.at(asker=question.asker, source=self._name)
        await self._bus.publish(to, chunk, correlation=question.correlation, timeout_s=SEND_S)
        self.stats.refused += bool(error)
        self.stats.pieces += not error
        self.stats.bytes += len(data)

    async def _answer(self, question: _Question, body: BlobQuery) -> None:
        try:
            size = await self._shelf.size(body.digest)
        except OSError:
            return
        if size is not None:
            to = topics.BLOB_ANSWER.at(asker=question.asker, source=self._name)
            await self._bus.publish(to, BlobAnswer(outcome="has", size=size), correlation=question.correlation)


class FairQueue(Generic[T]):
    """Questions that wait. The same one (asker, key) waits once: asked again, it keeps its place.

    Attributes:
        dropped: questions that found no place. Whoever asked hears nothing, and asks again more slowly.

    """

    def __init__(self, *, each: int = EACH, askers: int = ASKERS) -> None:
        self.dropped = 0
        self._each = each
        self._askers = askers
        self._waiting: dict[str, OrderedDict[Hashable, T]] = {}
        self._order: deque[str] = deque()
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, asker: str, key: Hashable, question: T) -> bool:
        """Queue a question; return whether it has a place."""
        own = self._waiting.get(asker)
        if own is None:
            if len(self._waiting) >= self._askers:
                self.dropped += 1
                return False
            own = self._waiting[asker] = OrderedDict()
            self._order.append(asker)
        if key not in own and len(own) >= self._each:
            self.dropped += 1
            return False
        own[key] = question
        self._some.set()
        return True

    async def take(self) -> T:
        """Return the next question, of the asker whose turn it is."""
        while not self._order:
            self._some.clear()
            await self._some.wait()
        asker = self._order.popleft()
        own = self._waiting[asker]
        _, question = own.popitem(last=False)
        if own:
            self._order.append(asker)
        else:
            del self._waiting[asker]
        return question
