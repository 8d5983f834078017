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
#: errors in a piece: there is no such file, the position is beyond its end, it cannot be read
NOT_FOUND, BEYOND, UNREADABLE = "NotFound", "Beyond", "Unreadable"
#: pieces that are read and sent in parallel
SENDERS = 2
#: seconds to send a piece, and between two checks of idle files
SEND_TIMEOUT_S, TIDY_PERIOD_S = 30.0, 5.0
#: most bytes of a packet without the piece
MAX_HEADER_BYTES = 4096
#: requests in the subscription's queue, in addition to those in the fair queue
QUEUE_SIZE = 256
T = TypeVar("T")
#: most waiting requests of one requester, and most requesters
MAX_PER_REQUESTER, MAX_REQUESTERS = 32, 512
#: most open files, and seconds until a file is closed after its last piece
MAX_OPEN, MAX_IDLE_S = 16, 10.0
#: the name under which the cache knows requesters on the bus, which have no credentials for an origin
BUS = "bus"
#: returns the path of the file with a digest (SHA-256), None if it has none
Find = Callable[[str], Awaitable[Path | None]]


@dataclass(slots=True)
class SourceStats:
    """Counts since the start: pieces, their bytes, and ``refused`` requests, which got an error."""

    pieces: int = 0
    bytes: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class _PendingRequest:
    """A request for a piece or a query (``body``), its sender ``asker``, and its correlation data."""

    asker: str
    correlation: bytes
    body: BlobRequest | BlobQuery


class BlobServer:
    """Serves a provider's files under a name (``gm``, ``lc.edge0``).

    The caller enters the bus, calls ``start`` once, and runs ``run``.
    """

    def __init__(self, bus: Bus, name: str, provider: FileProvider, channel: BlobChannel = SITE) -> None:
        self.stats = SourceStats()
        #: requests that wait for an answer
        self.queue: FairQueue[_PendingRequest] = FairQueue()
        self._bus = bus
        self._name = name
        self._provider = provider
        self._channel = channel

    async def start(self, *, queries: bool = True) -> None:
        """Subscribe to requests for this source and, with ``queries``, to those for all sources.

        Raises RefusedError.
        """
        await self._bus.subscribe(self._channel.requests_of(self._name), self._on_request, queue=QUEUE_SIZE)
        if queries and self._channel.has_queries:
            await self._bus.subscribe(topics.BLOB_QUERY.filter(), self._on_query, queue=QUEUE_SIZE)

    async def run(self) -> None:
        """Answer requests, and close idle files, until cancelled."""
        try:
            with first_error():
                async with asyncio.TaskGroup() as group:
                    for number in range(SENDERS):
                        group.create_task(self._work(), name=f"blobs: hand {number}")
                    while True:
                        await asyncio.sleep(TIDY_PERIOD_S)
                        self._provider.tidy()
        finally:
            self._provider.close()

    async def _on_request(self, delivery: Delivery[BlobRequest]) -> None:
        """Queue a request for a piece."""
        asker, body = delivery.names["asker"], delivery.body
        self.queue.put(asker, (body.digest, body.offset), _PendingRequest(asker, delivery.packet.correlation, body))

    async def _on_query(self, delivery: Delivery[BlobQuery]) -> None:
        """Queue a query, unless this process has sent it itself."""
        asker, body = delivery.names["asker"], delivery.body
        if asker != self._name:
            self.queue.put(asker, body.digest, _PendingRequest(asker, delivery.packet.correlation, body))

    async def _work(self) -> None:
        """Answer one request after another until cancelled."""
        while True:
            question = await self.queue.take()
            try:
                if isinstance(question.body, BlobQuery):
                    await self._answer_query(question, question.body)
                else:
                    await self._send_piece(question, question.body)
            except BusError as error:
                log.debug("blob answer not sent", asker=question.asker, error=str(error))
            except Exception:  # an unexpected error in one request must not end the process
                log.exception("blob request failed", asker=question.asker)

    async def _send_piece(self, question: _PendingRequest, request: BlobRequest) -> None:
        """Send a piece of a file, or the error. Raises BusError."""
        length = min(request.length, self._bus.max_packet - MAX_HEADER_BYTES)
        error, size, data = "", 0, memoryview(b"")
        try:
            piece = await self._provider.read(request.digest, request.offset, length)
            if piece is None:
                error = NOT_FOUND
            else:
                size, data = piece
                error = BEYOND if request.offset > size else ""
        except OSError as read_error:
            log.warning("blob cannot be read", digest=request.digest, error=read_error.strerror)
            error = UNREADABLE
        chunk = BlobChunk(digest=request.digest, offset=request.offset, size=size, error=error, data=data)
        address = self._channel.chunk_to(question.asker, self._name)
        await self._bus.publish(address, chunk, correlation=question.correlation, timeout_s=SEND_TIMEOUT_S)
        self.stats.refused += bool(error)
        self.stats.pieces += not error
        self.stats.bytes += len(data)

    async def _answer_query(self, question: _PendingRequest, query: BlobQuery) -> None:
        """Answer that a file is here; send nothing without it, or if it cannot be read. Raises BusError."""
        try:
            size = await self._provider.size(query.digest)
        except OSError:
            return
        if size is not None:
            address = topics.BLOB_ANSWER.at(asker=question.asker, source=self._name)
            await self._bus.publish(address, BlobAnswer(outcome="has", size=size), correlation=question.correlation)


class FairQueue(Generic[T]):
    """Waiting requests, at most ``per_asker`` of a requester, and of at most ``askers`` requesters, who take turns.

    Requests of one requester with one key wait once: a repeated request keeps its position.

    Attributes:
        dropped: requests that had no place. Their requesters get no reply, and repeat them more slowly.

    """

    def __init__(self, *, per_asker: int = MAX_PER_REQUESTER, askers: int = MAX_REQUESTERS) -> None:
        self.dropped = 0
        self._per_asker = per_asker
        self._askers = askers
        self._requests: dict[str, OrderedDict[Hashable, T]] = {}
        self._order: deque[str] = deque()
        self._has_waiting = asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, self._requests.values()))

    def put(self, asker: str, key: Hashable, request: T) -> bool:
        """Queue a request of the requester ``asker``; return whether there was a place for it.

        A waiting request with the same ``key`` is replaced, and its position stays.
        """
        requests = self._requests.get(asker)
        if requests is None:
            if len(self._requests) >= self._askers:
                self.dropped += 1
                return False
            requests = self._requests[asker] = OrderedDict()
            self._order.append(asker)
        if key not in requests and len(requests) >= self._per_asker:
            self.dropped += 1
            return False
        requests[key] = request
        self._has_waiting.set()
        return True

    async def take(self) -> T:
        """Wait for a request and return it; requesters take turns."""
        while not self._order:
            self._has_waiting.clear()
            await self._has_waiting.wait()
        asker = self._order.popleft()
        requests = self._requests[asker]
        _, request = requests.popitem(last=False)
        if requests:
            self._order.append(asker)
        else:
            del self._requests[asker]
        return request


@dataclass(slots=True)
class _OpenFile:
    """An open file: its descriptor ``fd``, its bytes, the loop time of its last use, and its present readers."""

    fd: int
    size: int
    last_use_s: float
    busy: int = 0


class FileProvider:
    """Files that any client of the bus may get. Each of ``finders`` returns the path of a digest's file, or None."""

    def __init__(self, finders: Sequence[Find]) -> None:
        self._finders = finders
        self._open: dict[str, _OpenFile] = {}
        self._buffer = bytearray(MAX_CHUNK)

    async def size(self, digest: str) -> int | None:
        """Return the bytes of a file, None if it does not exist. Raises OSError."""
        file = self._open.get(digest) or await self._open_file(digest)
        return file.size if file else None

    async def read(self, digest: str, offset: int, length: int) -> tuple[int, memoryview] | None:
        """Return a file's size and a piece of it, empty beyond its end; None without the file. Raises OSError.

        The piece may be shorter than ``length`` bytes. It is valid until the next call.
        """
        file = self._open.get(digest) or await self._open_file(digest)
        if file is None:
            return None
        file.last_use_s = asyncio.get_running_loop().time()
        file.busy += 1
        try:
            return file.size, await self._piece(file, offset, min(length, file.size - offset))
        finally:
            file.busy -= 1

    async def _piece(self, file: _OpenFile, offset: int, length: int) -> memoryview:
        """Return bytes of a file, perhaps fewer than ``length``. Raises OSError."""
        if length <= 0:
            return memoryview(b"")
        piece = memoryview(self._buffer)[:length]
        try:
            # from the page cache if possible: a thread for each piece costs more than the piece
            return piece[: os.preadv(file.fd, [piece], offset, os.RWF_NOWAIT)]
        except OSError:  # it must be read from disk, or the file system does not support this
            return memoryview(await in_thread(os.pread, file.fd, length, offset))

    def tidy(self) -> None:
        """Close the files that nobody has read for ``MAX_IDLE_S`` seconds."""
        now = asyncio.get_running_loop().time()
        for digest, file in list(self._open.items()):
            if not file.busy and now - file.last_use_s > MAX_IDLE_S:
                self._close(digest)

    def close(self) -> None:
        """Close all files, at the end."""
        while self._open:
            os.close(self._open.popitem()[1].fd)

    async def _open_file(self, digest: str) -> _OpenFile | None:
        """Open the file of a digest, and close an idle file if too many are open; None if no finder has it.

        Raises OSError.
        """
        for find in self._finders:
            if path := await find(digest):
                break
        else:
            return None
        fd = await in_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
        if digest in self._open:  # another request opened it first
            os.close(fd)
            return self._open[digest]
        if len(self._open) >= MAX_OPEN:
            idle = [digest_ for digest_, file in self._open.items() if not file.busy]
            if idle:
                self._close(min(idle, key=lambda digest_: self._open[digest_].last_use_s))
        file = _OpenFile(fd, os.fstat(fd).st_size, asyncio.get_running_loop().time())
        self._open[digest] = file
        return file

    def _close(self, digest: str) -> None:
        """Close the file of a digest."""
        os.close(self._open.pop(digest).fd)


def of_cache(cache: Cache) -> Find:
    """Return the finder of a cache's files, without those downloaded with credentials, which are not public."""

    async def find(digest: str) -> Path | None:
        if not await in_thread(cache.may_have, BUS, digest):
            return None
        fetched = await cache.find(digest)
        return fetched.path if fetched else None

    return find
