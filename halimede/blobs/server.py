"""The giving side: answers questions for pieces of files, one asker after the other, a piece at a time.

A piece is on its way to the broker before the next is read, and QoS 0: the socket holds a source back, nothing piles
up in it, and what is lost is asked for again. Whoever asks is named in the topic, which the broker has checked, and the
answer goes to that name alone: nobody can have somebody else flooded.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from halimede import topics
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.errors import BusError, first_error
from halimede.messages import BlobAnswer, BlobChunk, BlobQuery, BlobRequest
from halimede.messages.blobs import MAX_CHUNK
from halimede.models import Cache
from halimede.models.cache import in_thread

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
#: open files, and seconds that one stays open after its last piece
MOST_OPEN, IDLE_S = 16, 10.0
#: the cache's word for who asks over the bus: nobody who has been to an origin with credentials
BUS = "bus"
Find = Callable[[str], Awaitable[Path | None]]


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
                log.exception("blob request failed", asker=question.asker)

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


@dataclass(slots=True)
class _Open:
    fd: int
    size: int
    used: float
    busy: int = 0


class FileProvider:
    """Files that any client on the bus may get. ``find`` returns the path of a digest's file, or None."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._open: dict[str, _Open] = {}
        self._buffer = bytearray(MAX_CHUNK)

    async def size(self, digest: str) -> int | None:
        """Return the size of a file, None if it is not here. Raises OSError."""
        held = self._open.get(digest) or await self._opened(digest)
        return held.size if held else None

    async def read(self, digest: str, offset: int, length: int) -> tuple[int, memoryview] | None:
        """Return a file's size and a piece of it, empty behind its end; None if it is not here. Raises OSError.

        The piece may be shorter than asked for. It holds until the next call.
        """
        held = self._open.get(digest) or await self._opened(digest)
        if held is None:
            return None
        held.used = asyncio.get_running_loop().time()
        held.busy += 1
        try:
            return held.size, await self._piece(held, offset, min(length, held.size - offset))
        finally:
            held.busy -= 1

    async def _piece(self, held: _Open, offset: int, length: int) -> memoryview:
        if length <= 0:
            return memoryview(b"")
        piece = memoryview(self._buffer)[:length]
        try:
            # from memory if it is there: a thread for each piece costs more than the piece
            return piece[: os.preadv(held.fd, [piece], offset, os.RWF_NOWAIT)]
        except OSError:  # the disk has to be asked, or the file system cannot tell
            return memoryview(await in_thread(os.pread, held.fd, length, offset))

    def tidy(self) -> None:
        """Close what nobody has asked for in a while."""
        now = asyncio.get_running_loop().time()
        for digest, held in list(self._open.items()):
            if not held.busy and now - held.used > IDLE_S:
                self._close(digest)

    def close(self) -> None:
        """Close all."""
        for digest in list(self._open):
            self._close(digest)

    async def _opened(self, digest: str) -> _Open | None:
        path = await self._find(digest)
        if path is None:
            return None
        fd = await in_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
        if digest in self._open:  # another was faster
            os.close(fd)
            return self._open[digest]
        if len(self._open) >= MOST_OPEN:
            idle = [each for each, held in self._open.items() if not held.busy]
            if idle:
                self._close(min(idle, key=lambda each: self._open[each].used))
        held = _Open(fd, os.fstat(fd).st_size, asyncio.get_running_loop().time())
        self._open[digest] = held
        return held

    def _close(self, digest: str) -> None:
        os.close(self._open.pop(digest).fd)


def of_cache(cache: Cache) -> Find:
    """Return what finds files of a cache, but none that was opened with credentials: those are not for everybody."""

    async def find(digest: str) -> Path | None:
        if not await in_thread(cache.may_have, BUS, digest):
            return None
        found = await cache.find(digest)
        return found.path if found else None

    return find
