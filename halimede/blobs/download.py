"""Downloads files over the bus: finds their sources, keeps pieces in flight, and replaces silent sources.

The caller verifies the digest, so sources need not be trusted: a wrong one only costs time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import structlog

from halimede.blobs.chunk_scheduler import ChunkRequest, ChunkScheduler
from halimede.blobs.client import BlobClient
from halimede.blobs.uris import ANY, SCHEME, node_of, party, read_url, url
from halimede.bus.message import Delivery
from halimede.bus.rpc import new_ticket
from halimede.errors import BusError, DisconnectedError
from halimede.messages import BlobChunk, BlobRequest
from halimede.models import Cache, Fetched
from halimede.models.errors import FetchError, FetchReason, redact
from halimede.models.external_data import DataFilesError
from halimede.models.fetcher import Progress
from halimede.models.source_types import SourceOpener, Stream, TransferLimits

log = structlog.get_logger()
#: seconds: for a source to prove that it has the file, and between two rounds over all sources
SHOW_S, ROUND_S = 4.0, 1.0
#: rounds after which a missing file is reported: a request or its replies may be lost
ROUNDS = 2
#: rounds of late pieces after which a source counts as silent
MISSES = 3
#: origins that may be unreachable while the broker is reachable
REMOTE = frozenset({"http", "https", "s3"})
#: most files whose sources are remembered
REMEMBERED = 64
Fetch = Callable[..., Awaitable[Fetched]]


class BlobDownload:
    """One file from ``offset`` on. ``open`` first, then ``blocks``; ``close`` at the end.

    ``ask_all``: if the given sources do not have it, all sources are queried.

    Attributes:
        used: sources that have sent some of it.

    """

    def __init__(
        self, client: BlobClient, digest: str, sources: Sequence[str], limits: TransferLimits, *, ask_all: bool = True
    ) -> None:
        self.used: list[str] = []
        self.size = 0
        self._client = client
        self._digest = digest
        self._named = list(sources)
        self._limits = limits
        self._ask_all = ask_all
        self._source = ""
        self._ticket = b""
        self._shown: asyncio.Future[BlobChunk] | None = None
        self._transfer: ChunkScheduler | None = None
        self._trouble = ""
        self._woken = asyncio.Event()

    async def open(self, offset: int) -> int:
        """Find a source; return its begin: ``offset``, or 0 if the file is shorter. Raises FetchError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.connect_s
        rounds = 0
        while not (chunk := await self._round()):
            rounds += 1
            # a source's own answer is certain; a query of all sources, or its replies, may be lost
            answered = rounds >= (ROUNDS if self._ask_all else 1) and self._trouble != FetchReason.UNREACHABLE
            if answered or loop.time() >= deadline:
                raise self._nobody()
            await asyncio.sleep(ROUND_S)
        self.size = chunk.size
        offset = offset if offset <= self.size else 0
        self._transfer = ChunkScheduler(offset, self.size)
        return offset

    async def blocks(self) -> AsyncIterator[memoryview]:
        """Yield the file, piece by piece. Raises FetchError if no source can continue."""
        transfer = self._transfer
        assert transfer is not None, "open"  # noqa: S101 - for the type checker
        loop = asyncio.get_running_loop()
        self._trouble = ""
        while True:
            self._woken.clear()
            for data in transfer.give():
                yield data
            if transfer.done:
                return
            transfer.expire(loop.time())
            if self._trouble or transfer.misses >= MISSES:
                await self._switch_source(transfer)
            await self._ask(transfer, patiently=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(transfer.wake(loop.time()) + 0.001):
                    await self._woken.wait()

    def close(self) -> None:
        """Stop receiving pieces."""
        self._client.detach(self._ticket)

    async def came(self, delivery: Delivery[BlobChunk]) -> None:
        """Receive a piece, and request more at once: the reader may still be busy with earlier ones."""
        chunk, transfer = delivery.body, self._transfer
        if delivery.names["source"] != self._source or chunk.digest != self._digest:
            return
        if self._shown:
            if not self._shown.done():
                self._shown.set_result(chunk)
        elif transfer is None or self._trouble:
            return
        elif chunk.error or chunk.size != transfer.size or not chunk.data:
            self._trouble = chunk.error or "it has another file under this digest"
            self._woken.set()
        elif transfer.add(chunk.offset, chunk.data, asyncio.get_running_loop().time()):
            self._woken.set()
            await self._ask(transfer, patiently=False)

    async def _ask(self, transfer: ChunkScheduler, *, patiently: bool) -> None:
        """Request due pieces. ``patiently``: the broker reports whether the source is online."""
        for request in transfer.ask(asyncio.get_running_loop().time()):
            try:
                if not await self._publish(request, qos=1 if patiently and request.again else 0):
                    self._trouble = "it has disconnected"
                    self._woken.set()
            except BusError:
                return  # the piece counts as lost, and is requested again

    async def _publish(self, request: ChunkRequest, qos: int) -> bool:
        address = self._client.channel.request_to(self._source, self._client.name)
        body = BlobRequest(digest=self._digest, offset=request.offset, length=request.length)
        return await self._client.bus.publish(
            address, body, qos=qos, correlation=self._ticket, expiry_s=int(SHOW_S) * 5, timeout_s=SHOW_S
        )

    async def _switch_source(self, transfer: ChunkScheduler) -> None:
        """Find a source that can continue. Raises FetchError if there is none within the limits."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.inactivity_s
        log.info("blob source timed out", source=node_of(self._source), why=self._trouble, at=transfer.passed_on)
        while True:
            chunk = await self._round(last=self._source)
            if chunk and chunk.size == transfer.size:
                self._trouble = ""
                return transfer.switch_source()
            if loop.time() >= deadline:
                limit = self._limits.inactivity_s
                text = f"{node_of(self.used[-1])} sent no data of sha256:{self._digest} for {limit:g} s"
                raise FetchError(FetchReason.INTERRUPTED, text, temporary=True)
            await asyncio.sleep(ROUND_S)

    async def _round(self, last: str = "") -> BlobChunk | None:
        """Query all possible sources; return the reply of one with the file. Named ones first, ``last`` last."""
        answers: list[str] = []
        try:
            await self._client.bus.wait_connected(ROUND_S)
            for candidates in ([named for named in self._named if named != last], None, [last] if last else []):
                for source in await self._query_sources() if candidates is None else candidates:
                    if source == self._client.name or (source == last and candidates is None):
                        continue
                    if not self._client.is_trusted(self._digest, source):
                        answers.append(FetchReason.DIGEST_MISMATCH)
                        continue
                    chunk = await self._shows(source)
                    if chunk and not chunk.error:
                        self.used = [*dict.fromkeys([*self.used, source])]
                        return chunk
                    answers.append(FetchReason.NOT_FOUND if chunk else FetchReason.UNREACHABLE)
        except BusError as error:
            log.debug("blob sources not asked", error=str(error))
            answers = [FetchReason.UNREACHABLE]
        # an unreachable source may have the file; the reachable ones do not
        first = (named for named in (FetchReason.UNREACHABLE, FetchReason.DIGEST_MISMATCH) if named in answers)
        self._trouble = next(first, FetchReason.NOT_FOUND)
        return None

    async def _query_sources(self) -> list[str]:
        return await self._client.who_has(self._digest) if self._ask_all else []

    async def _shows(self, source: str) -> BlobChunk | None:
        """Request the first byte from one source; return its reply, None without one."""
        self.close()
        self._source, self._ticket = source, new_ticket()
        self._shown = asyncio.get_running_loop().create_future()
        self._client.attach(self._ticket, self)
        try:
            async with asyncio.timeout(SHOW_S):
                return await self._shown if await self._publish(ChunkRequest(0, 1), qos=1) else None
        except (TimeoutError, DisconnectedError):
            return None
        finally:
            self._shown = None

    def _nobody(self) -> FetchError:
        """Return the error for a file that no source provides."""
        what = f"sha256:{self._digest}"
        if self._trouble == FetchReason.NOT_FOUND:
            return FetchError(
                FetchReason.NOT_FOUND, f"no source on the bus has {what}: upload it with `halimede blob put`"
            )
        if self._trouble == FetchReason.DIGEST_MISMATCH:
            return FetchError(FetchReason.DIGEST_MISMATCH, f"the sources of {what} sent other bytes: see their logs")
        who = " and ".join(map(node_of, self._named)) or "the broker"
        return FetchError(
            FetchReason.UNREACHABLE, f"{who} cannot be reached, and no other source has {what}", temporary=True
        )


class BusOpener:
    """Opens ``bus://`` URLs: a ``SourceOpener``. ``sources`` (names on the bus) replace the URL's.

    Not ``ask_all``: a URL that names a source is read from that one alone.
    """

    def __init__(self, client: BlobClient, sources: Sequence[str] = (), *, ask_all: bool = True) -> None:
        self._client = client
        self._sources = sources
        self._ask_all = ask_all
        self._gave: dict[str, list[str]] = {}

    @contextlib.asynccontextmanager
    async def __call__(
        self, url_: str, known_digest: str, limits: TransferLimits, offset: int, /
    ) -> AsyncIterator[Stream]:
        """Open a URL at an offset. Raises FetchError."""
        source, digest = read_url(url_)
        if known_digest == digest:
            yield Stream(known_digest, None, None)
            return
        sources = self._sources or ([] if source == ANY else [party(source)])
        reading = BlobDownload(self._client, digest, sources, limits, ask_all=self._ask_all or not sources)
        try:
            begins = await reading.open(offset)
            # views of received buffers: writing or hashing them needs no copy
            blocks = cast("AsyncIterator[bytes]", reading.blocks())
            yield Stream(digest, reading.size, blocks, begins)
        finally:
            reading.close()
            gave = self._gave.pop(digest, []) if offset else []
            self._gave[digest] = [*dict.fromkeys([*gave, *reading.used])]
            while len(self._gave) > REMEMBERED:
                del self._gave[next(iter(self._gave))]

    def distrust(self, digest: str) -> str:
        """Distrust the sources that sent wrong bytes for a digest; return their names, empty for none."""
        gave = self._gave.pop(digest, [])
        self._client.distrust(digest, gave)
        return ", ".join(map(node_of, gave))


async def with_fallback(
    fetch: Fetch,
    url_: str,
    sha256: str,
    cache: Cache,
    progress: Progress | None = None,
    *,
    openers: Mapping[str, SourceOpener] | None = None,
    **more: Any,
) -> Fetched:
    """Call ``fetch`` (the fetcher or a substitute); if the origin is unreachable, request the bus.

    A ``bus://`` URL has a digest, which is required, whether ``sha256`` repeats it or is empty. A source with wrong
    bytes is not requested again. Raises FetchError: that of the origin, if the bus does not help either.
    """
    openers = openers or {}

    async def fetch_from_bus(where: str, digest: str) -> Fetched:
        try:
            return await fetch(where, digest, cache, progress, openers=openers, **more)
        except FetchError as error:
            opener = openers.get(SCHEME)
            has_content = isinstance(error, DataFilesError)  # it is as its digest says
            if error.reason is not FetchReason.DIGEST_MISMATCH or has_content or not isinstance(opener, BusOpener):
                raise
            who = opener.distrust(digest)
            if not who:
                raise
            text = f"{who} sent other content as sha256:{digest}: other sources are used from now on"
            raise FetchError(FetchReason.DIGEST_MISMATCH, text, temporary=True) from error

    scheme = urlsplit(url_).scheme
    if scheme == SCHEME:
        digest = read_url(url_)[1]
        if sha256 not in {"", digest}:
            text = f"sha256 {sha256} differs from that of {url_}: correct one of the two"
            raise FetchError(FetchReason.DIGEST_MISMATCH, text)
        return await fetch_from_bus(url_, digest)
    try:
        return await fetch(url_, sha256, cache, progress, openers=openers, **more)
    except FetchError as error:
        away = error.temporary and error.reason is not FetchReason.CACHE_FAILED and scheme in REMOTE
        if not (away and sha256 and SCHEME in openers):
            raise
        log.warning(
            "origin not reachable: blob requested on the bus", url=redact(url_), reason=error.reason, digest=sha256
        )
        try:
            return await fetch_from_bus(url(ANY, sha256), sha256)
        except FetchError as second:
            log.info("blob not available on the bus", digest=sha256, reason=second.reason, message=str(second))
            raise error from second
