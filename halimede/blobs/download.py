"""Downloads files over the bus: finds their sources, keeps pieces in flight, and replaces silent sources.

``BusOpener`` makes it a source of the fetcher. The caller verifies the digest, so sources need not be trusted: a wrong
one only costs time.
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
from halimede.blobs.uris import ANY, SCHEME, bus_name_of, node_of, parse_url, url
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
FIRST_REPLY_S, ROUND_PERIOD_S = 4.0, 1.0
#: rounds after which a missing file is reported: a request or its replies may be lost
MIN_ROUNDS = 2
#: rounds of late pieces after which a source counts as silent
MAX_MISSES = 3
#: origins that may be unreachable while the broker is reachable
REMOTE_SCHEMES = frozenset({"http", "https", "s3"})
#: most files whose sources are remembered
MAX_REMEMBERED = 64
#: the fetcher, or a wrapper of it: called with URL, digest, cache, progress and options
Fetch = Callable[..., Awaitable[Fetched]]


class BlobDownload:
    """The download of one file, a ``Listener``. ``open`` first, then ``blocks``; ``close`` at the end.

    ``digest``: its SHA-256. ``sources``: names on the bus that are asked first. ``limits``: how long ``open`` and
    ``blocks`` look for a source. ``ask_all``: if ``sources`` do not have the file, all sources are queried.

    Attributes:
        used: names of the sources that have sent some of the file.
        size: bytes of the file, known after ``open``.

    """

    def __init__(
        self, client: BlobClient, digest: str, sources: Sequence[str], limits: TransferLimits, *, ask_all: bool = True
    ) -> None:
        self.used: list[str] = []
        self.size = 0
        self._client = client
        self._digest = digest
        self._sources = list(sources)
        self._limits = limits
        self._ask_all = ask_all
        #: the present source, and the correlation data of the requests to it
        self._source = ""
        self._ticket = b""
        #: the reply that shows whether a source has the file; None: pieces of the transfer are awaited
        self._first_reply: asyncio.Future[BlobChunk] | None = None
        self._transfer: ChunkScheduler | None = None
        #: why the present source cannot continue, or why no source was found; empty: neither
        self._failure = ""
        self._wake = asyncio.Event()

    async def open(self, offset: int) -> int:
        """Find a source; return the position where ``blocks`` begins: ``offset``, or 0 if the file is shorter.

        Waits up to the limits' ``connect_s``, and until the last request ends. Raises FetchError.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.connect_s
        rounds = 0
        while not (chunk := await self._find_source()):
            rounds += 1
            # a source's own answer is certain; a query of all sources, or its replies, may be lost
            is_certain = rounds >= (MIN_ROUNDS if self._ask_all else 1) and self._failure != FetchReason.UNREACHABLE
            if is_certain or loop.time() >= deadline:
                raise self._no_source_error()
            await asyncio.sleep(ROUND_PERIOD_S)
        self.size = chunk.size
        offset = offset if offset <= self.size else 0
        self._transfer = ChunkScheduler(offset, self.size)
        return offset

    async def blocks(self) -> AsyncIterator[memoryview]:
        """Yield the file, piece by piece, from the position that ``open`` returned.

        Another source replaces a silent one. Raises FetchError if none can continue within the limits'
        ``inactivity_s``.
        """
        transfer = self._transfer
        assert transfer is not None, "open"  # noqa: S101 - for the type checker
        loop = asyncio.get_running_loop()
        self._failure = ""
        while True:
            self._wake.clear()
            for data in transfer.take_ready():
                yield data
            if transfer.done:
                return
            transfer.expire(loop.time())
            if self._failure or transfer.misses >= MAX_MISSES:
                await self._switch_source(transfer)
            await self._ask(transfer, patiently=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(transfer.seconds_to_timeout(loop.time()) + 0.001):
                    await self._wake.wait()

    def close(self) -> None:
        """Stop receiving pieces. It may be called at any time, and repeatedly."""
        self._client.detach(self._ticket)

    async def receive(self, delivery: Delivery[BlobChunk]) -> None:
        """Receive a piece, and request more at once: the reader may still be busy with earlier ones."""
        chunk, transfer = delivery.body, self._transfer
        if delivery.names["source"] != self._source or chunk.digest != self._digest:
            return
        if self._first_reply:
            if not self._first_reply.done():
                self._first_reply.set_result(chunk)
        elif transfer is None or self._failure:
            return
        elif chunk.error or chunk.size != transfer.size or not chunk.data:
            self._failure = chunk.error or "it has another file under this digest"
            self._wake.set()
        elif transfer.add(chunk.offset, chunk.data, asyncio.get_running_loop().time()):
            self._wake.set()
            await self._ask(transfer, patiently=False)

    async def _ask(self, transfer: ChunkScheduler, *, patiently: bool) -> None:
        """Request due pieces. ``patiently``: for a lost piece, wait for the broker to tell if the source is online."""
        for request in transfer.next_requests(asyncio.get_running_loop().time()):
            try:
                if not await self._publish(request, qos=1 if patiently and request.again else 0):
                    self._failure = "it has disconnected"
                    self._wake.set()
            except BusError:
                return  # the piece counts as lost, and is requested again

    async def _publish(self, request: ChunkRequest, qos: int) -> bool:
        """Send a request; return whether the source is online: at QoS 0 always True. Raises BusError.

        The broker drops a request that it cannot deliver within the longest timeout of a piece.
        """
        address = self._client.channel.request_to(self._source, self._client.name)
        body = BlobRequest(digest=self._digest, offset=request.offset, length=request.length)
        return await self._client.bus.publish(
            address, body, qos=qos, correlation=self._ticket, expiry_s=int(FIRST_REPLY_S) * 5, timeout_s=FIRST_REPLY_S
        )

    async def _switch_source(self, transfer: ChunkScheduler) -> None:
        """Find a source that can continue. Raises FetchError if there is none within the limits."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.inactivity_s
        log.info("blob source timed out", source=node_of(self._source), why=self._failure, at=transfer.passed_on)
        while True:
            chunk = await self._find_source(last=self._source)
            if chunk and chunk.size == transfer.size:
                self._failure = ""
                return transfer.switch_source()
            if loop.time() >= deadline:
                limit = self._limits.inactivity_s
                text = f"{node_of(self.used[-1])} sent no data of sha256:{self._digest} for {limit:g} s"
                raise FetchError(FetchReason.INTERRUPTED, text, temporary=True)
            await asyncio.sleep(ROUND_PERIOD_S)

    async def _find_source(self, last: str = "") -> BlobChunk | None:
        """Return the first reply of a source that has the file; None without one, with the reason in ``_failure``.

        The sources that the caller named are asked first, then all, ``last`` last.
        """
        answers: list[str] = []
        try:
            await self._client.bus.wait_connected(ROUND_PERIOD_S)
            for candidates in ([source for source in self._sources if source != last], None, [last] if last else []):
                for source in await self._query_sources() if candidates is None else candidates:
                    if source == self._client.name or (source == last and candidates is None):
                        continue
                    if not self._client.is_trusted(self._digest, source):
                        answers.append(FetchReason.DIGEST_MISMATCH)
                        continue
                    chunk = await self._request_first_byte(source)
                    if chunk and not chunk.error:
                        self.used = [*dict.fromkeys([*self.used, source])]
                        return chunk
                    answers.append(FetchReason.NOT_FOUND if chunk else FetchReason.UNREACHABLE)
        except BusError as error:
            log.debug("blob sources not asked", error=str(error))
            answers = [FetchReason.UNREACHABLE]
        # an unreachable source may have the file; the reachable ones do not
        failures = (named for named in (FetchReason.UNREACHABLE, FetchReason.DIGEST_MISMATCH) if named in answers)
        self._failure = next(failures, FetchReason.NOT_FOUND)
        return None

    async def _query_sources(self) -> list[str]:
        """Return the sources that report to have the file; none unless all may be asked."""
        return await self._client.who_has(self._digest) if self._ask_all else []

    async def _request_first_byte(self, source: str) -> BlobChunk | None:
        """Request the first byte from one source; return its reply, None without one."""
        self.close()
        self._source, self._ticket = source, new_ticket()
        self._first_reply = asyncio.get_running_loop().create_future()
        self._client.attach(self._ticket, self)
        try:
            async with asyncio.timeout(FIRST_REPLY_S):
                return await self._first_reply if await self._publish(ChunkRequest(0, 1), qos=1) else None
        except (TimeoutError, DisconnectedError):
            return None
        finally:
            self._first_reply = None

    def _no_source_error(self) -> FetchError:
        """Return the error for a file that no source provides, by the reason in ``_failure``."""
        content = f"sha256:{self._digest}"
        if self._failure == FetchReason.NOT_FOUND:
            text = f"no source on the bus has {content}: upload it with `halimede blob put`"
            return FetchError(FetchReason.NOT_FOUND, text)
        if self._failure == FetchReason.DIGEST_MISMATCH:
            return FetchError(FetchReason.DIGEST_MISMATCH, f"the sources of {content} sent other bytes: see their logs")
        names = " and ".join(map(node_of, self._sources)) or "the broker"
        text = f"{names} cannot be reached, and no other source has {content}"
        return FetchError(FetchReason.UNREACHABLE, text, temporary=True)


class BusOpener:
    """Opens ``bus://`` URLs: a ``SourceOpener``. ``sources`` (names on the bus) replace the source in the URL.

    ``ask_all`` False: a URL that names a source is read from that source alone.
    """

    def __init__(self, client: BlobClient, sources: Sequence[str] = (), *, ask_all: bool = True) -> None:
        self._client = client
        self._sources = sources
        self._ask_all = ask_all
        #: names of the sources that have sent some of a file, by its digest
        self._senders: dict[str, list[str]] = {}

    @contextlib.asynccontextmanager
    async def __call__(
        self, url_: str, known_digest: str, limits: TransferLimits, offset: int, /
    ) -> AsyncIterator[Stream]:
        """Open a URL at an offset in bytes; with a known digest that is the URL's, nothing is sent.

        Raises FetchError.
        """
        source, digest = parse_url(url_)
        if known_digest == digest:
            yield Stream(known_digest, None, None)
            return
        sources = self._sources or ([] if source == ANY else [bus_name_of(source)])
        download = BlobDownload(self._client, digest, sources, limits, ask_all=self._ask_all or not sources)
        try:
            begin = await download.open(offset)
            # views of received buffers: writing or hashing them needs no copy
            blocks = cast("AsyncIterator[bytes]", download.blocks())
            yield Stream(digest, download.size, blocks, begin)
        finally:
            download.close()
            earlier_senders = self._senders.pop(digest, []) if offset else []
            self._senders[digest] = [*dict.fromkeys([*earlier_senders, *download.used])]
            while len(self._senders) > MAX_REMEMBERED:
                del self._senders[next(iter(self._senders))]

    def distrust(self, digest: str) -> str:
        """Do not ask the sources again that sent wrong bytes for a digest; return their names, empty if none did."""
        senders = self._senders.pop(digest, [])
        self._client.distrust(digest, senders)
        return ", ".join(map(node_of, senders))


async def with_fallback(
    fetch: Fetch,
    url_: str,
    sha256: str,
    cache: Cache,
    progress: Progress | None = None,
    *,
    openers: Mapping[str, SourceOpener] | None = None,
    **options: Any,
) -> Fetched:
    """Return the file that ``fetch`` brings; if its origin is unreachable, the file of that digest from the bus.

    ``fetch``: the fetcher, or a wrapper of it, which gets ``options``. ``url_``: of any scheme; ``sha256``: its digest,
    empty if unknown. ``openers``: those of further schemes, ``bus`` among them. The digest of a ``bus://`` URL is
    verified, whether ``sha256`` repeats it or is empty. A source that sent wrong bytes is not asked again. Raises
    FetchError: that of the origin, if the bus does not help either.
    """
    openers = openers or {}

    async def fetch_from_bus(blob_url: str, digest: str) -> Fetched:
        try:
            return await fetch(blob_url, digest, cache, progress, openers=openers, **options)
        except FetchError as error:
            opener = openers.get(SCHEME)
            has_content = isinstance(error, DataFilesError)  # it is as its digest says
            if error.reason is not FetchReason.DIGEST_MISMATCH or has_content or not isinstance(opener, BusOpener):
                raise
            senders = opener.distrust(digest)
            if not senders:
                raise
            text = f"{senders} sent other content as sha256:{digest}: other sources are used from now on"
            raise FetchError(FetchReason.DIGEST_MISMATCH, text, temporary=True) from error

    scheme = urlsplit(url_).scheme
    if scheme == SCHEME:
        digest = parse_url(url_)[1]
        if sha256 not in {"", digest}:
            text = f"sha256 {sha256} differs from that of {url_}: correct one of the two"
            raise FetchError(FetchReason.DIGEST_MISMATCH, text)
        return await fetch_from_bus(url_, digest)
    try:
        return await fetch(url_, sha256, cache, progress, openers=openers, **options)
    except FetchError as error:
        is_unreachable = error.temporary and error.reason is not FetchReason.CACHE_FAILED and scheme in REMOTE_SCHEMES
        if not (is_unreachable and sha256 and SCHEME in openers):
            raise
        log.warning(
            "origin not reachable: blob requested on the bus", url=redact(url_), reason=error.reason, digest=sha256
        )
        try:
            return await fetch_from_bus(url(ANY, sha256), sha256)
        except FetchError as bus_error:
            log.info("blob not available on the bus", digest=sha256, reason=bus_error.reason, message=str(bus_error))
            raise error from bus_error
