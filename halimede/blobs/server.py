"""The server of files: answers requests for pieces, the requesters in turn, one piece at a time.

A piece is sent to the broker before the next one is read, with QoS 0: back-pressure of the socket slows the source
down, nothing accumulates in it, and lost pieces are requested again. The topic names the requester, which the broker
has verified, and replies go only to that name: no client can flood another one.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from halimede import topics
from halimede.blobs.channel import SITE, BlobChannel
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.errors import BusError, first_error
from halimede.messages import BlobAnswer, BlobChunk, BlobQuery, BlobRequest
from halimede.messages.blobs import MAX_CHUNK
from halimede.models import Cache
from halimede.models.cache import in_thread

log = structlog.get_logger()
NOT_FOUND, BEYOND, UNREADABLE = "NotFound", "Beyond", "Unreadable"
#: pieces that are read and sent in parallel
SENDERS = 2
#: seconds: to send a piece, between two checks of idle files, and the lifetime of a reply
SEND_S, TIDY_S = 30.0, 5.0
#: most bytes of a packet without the piece
HEADER_BYTES = 4096
#: requests in the bus's queue, in addition to those in the fair queue
QUEUE = 256
T = TypeVar("T")
#: most waiting requests of one requester, and most requesters
PER_ASKER, ASKERS = 32, 512
#: most open files, and seconds until a file is closed after its last piece
MOST_OPEN, IDLE_S = 16, 10.0
#: the cache's name of requesters on the bus, which have no credentials for an origin
BUS = "bus"
Find = Callable[[str], Awaitable[Path | None]]


@dataclass(slots=True)
class SourceStats:
    """Counts of sent data since the start."""

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

    def __init__(self, bus: Bus, name: str, provider: FileProvider, channel: BlobChannel = SITE) -> None:
        self.stats = SourceStats()
        self.queue: FairQueue[_Question] = FairQueue()
        self._bus = bus
        self._name = name
        self._provider = provider
        self._channel = channel

    async def start(self, *, queries: bool = True) -> None:
        """Subscribe to requests for this source, and to queries for all sources."""
        await self._bus.subscribe(self._channel.requests_of(self._name), self._on_request, queue=QUEUE)
        if queries and self._channel.has_queries:
            await self._bus.subscribe(topics.BLOB_QUERY.filter(), self._on_query, queue=QUEUE)

    async def run(self) -> None:
        """Answer requests until cancelled."""
        try:
            with first_error():
                async with asyncio.TaskGroup() as group:
                    for number in range(SENDERS):
                        group.create_task(self._work(), name=f"blobs: hand {number}")
                    while True:
                        await asyncio.sleep(TIDY_S)
                        self._provider.tidy()
        finally:
            self._provider.close()

    async def _on_request(self, delivery: Delivery[BlobRequest]) -> None:
        asker, body = delivery.names["asker"], delivery.body
        self.queue.put(asker, (body.digest, body.offset), _Question(asker, delivery.packet.correlation, body))

    async def _on_query(self, delivery: Delivery[BlobQuery]) -> None:
        asker, body = delivery.names["asker"], delivery.body
        if asker != self._name:
            self.queue.put(asker, body.digest, _Question(asker, delivery.packet.correlation, body))

    async def _work(self) -> None:
        while True:
            question = await self.queue.take()
            try:
                if isinstance(question.body, BlobQuery):
                    await self._answer(question, question.body)
                else:
                    await self._give(question, question.body)
            except BusError as error:
                log.debug("blob answer not sent", asker=question.asker, error=str(error))
            except Exception:  # an unexpected error in one request must not end the process
                log.exception("blob request failed", asker=question.asker)

    async def _give(self, question: _Question, body: BlobRequest) -> None:
        length = min(body.length, self._bus.max_packet - HEADER_BYTES)
        error, size, data = "", 0, memoryview(b"")
        try:
            piece = await self._provider.read(body.digest, body.offset, length)
            if piece is None:
                error = NOT_FOUND
            else:
                size, data = piece
                error = BEYOND if body.offset > size else ""
        except OSError as problem:
            log.warning("blob cannot be read", digest=body.digest, error=problem.strerror)
            error = UNREADABLE
        chunk = BlobChunk(digest=body.digest, offset=body.offset, size=size, error=error, data=data)
        to = self._channel.chunk_to(question.asker, self._name)
        await self._bus.publish(to, chunk, correlation=question.correlation, timeout_s=SEND_S)
        self.stats.refused += bool(error)
        self.stats.pieces += not error
        self.stats.bytes += len(data)

    async def _answer(self, question: _Question, body: BlobQuery) -> None:
        try:
            size = await self._provider.size(body.digest)
        except OSError:
            return
        if size is not None:
            to = topics.BLOB_ANSWER.at(asker=question.asker, source=self._name)
            await self._bus.publish(to, BlobAnswer(outcome="has", size=size), correlation=question.correlation)


class FairQueue(Generic[T]):
    """Waiting requests. Equal ones (requester, key) wait once: a repeated request keeps its position.

    Attributes:
        dropped: requests without a slot. Their requesters get no reply, and repeat them more slowly.

    """

    def __init__(self, *, per_asker: int = PER_ASKER, askers: int = ASKERS) -> None:
        self.dropped = 0
        self._per_asker = per_asker
        self._askers = askers
        self._waiting: dict[str, OrderedDict[Hashable, T]] = {}
        self._order: deque[str] = deque()
        self._has_waiting = asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, asker: str, key: Hashable, question: T) -> bool:
        """Queue a request; return whether it has a slot."""
        own = self._waiting.get(asker)
        if own is None:
            if len(self._waiting) >= self._askers:
                self.dropped += 1
                return False
            own = self._waiting[asker] = OrderedDict()
            self._order.append(asker)
        if key not in own and len(own) >= self._per_asker:
            self.dropped += 1
            return False
        own[key] = question
        self._has_waiting.set()
        return True

    async def take(self) -> T:
        """Return the next request; requesters take turns."""
        while not self._order:
            self._has_waiting.clear()
            await self._has_waiting.wait()
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
    """Files that any client of the bus may get. Each of ``finders`` returns the path of a digest's file, or None."""

    def __init__(self, finders: Sequence[Find]) -> None:
        self._finders = finders
        self._open: dict[str, _Open] = {}
        self._buffer = bytearray(MAX_CHUNK)

    async def size(self, digest: str) -> int | None:
        """Return the size of a file, None if it does not exist. Raises OSError."""
        file = self._open.get(digest) or await self._open_file(digest)
        return file.size if file else None

    async def read(self, digest: str, offset: int, length: int) -> tuple[int, memoryview] | None:
        """Return a file's size and a piece of it, empty beyond its end; None without the file. Raises OSError.

        The piece may be shorter than requested. It is valid until the next call.
        """
        file = self._open.get(digest) or await self._open_file(digest)
        if file is None:
            return None
        file.used = asyncio.get_running_loop().time()
        file.busy += 1
        try:
            return file.size, await self._piece(file, offset, min(length, file.size - offset))
        finally:
            file.busy -= 1

    async def _piece(self, file: _Open, offset: int, length: int) -> memoryview:
        if length <= 0:
            return memoryview(b"")
        piece = memoryview(self._buffer)[:length]
        try:
            # from the page cache if possible: a thread for each piece costs more than the piece
            return piece[: os.preadv(file.fd, [piece], offset, os.RWF_NOWAIT)]
        except OSError:  # it must be read from disk, or the file system does not support this
            return memoryview(await in_thread(os.pread, file.fd, length, offset))

    def tidy(self) -> None:
        """Close files that were idle for a while."""
        now = asyncio.get_running_loop().time()
        for digest, file in list(self._open.items()):
            if not file.busy and now - file.used > IDLE_S:
                self._close(digest)

    def close(self) -> None:
        """Close all files."""
        for digest in list(self._open):
            self._close(digest)

    async def _open_file(self, digest: str) -> _Open | None:
        for find in self._finders:
            if path := await find(digest):
                break
        else:
            return None
        fd = await in_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
        if digest in self._open:  # another request opened it first
            os.close(fd)
            return self._open[digest]
        if len(self._open) >= MOST_OPEN:
            idle = [digest_ for digest_, file in self._open.items() if not file.busy]
            if idle:
                self._close(min(idle, key=lambda digest_: self._open[digest_].used))
        file = _Open(fd, os.fstat(fd).st_size, asyncio.get_running_loop().time())
        self._open[digest] = file
        return file

    def _close(self, digest: str) -> None:
        os.close(self._open.pop(digest).fd)


def of_cache(cache: Cache) -> Find:
    """Return the finder of a cache's files, except those downloaded with credentials, which are not public."""

    async def find(digest: str) -> Path | None:
        if not await in_thread(cache.may_have, BUS, digest):
            return None
        fetched = await cache.find(digest)
        return fetched.path if fetched else None

    return find
