"""``bus://`` for the fetcher, and the bus as the way out when an origin cannot be reached."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import structlog

from halimede.blobs.client import BlobClient
from halimede.blobs.download import BlobDownload
from halimede.blobs.uris import ANY, SCHEME, node_of, party, read_url, url
from halimede.models import Cache, Fetched, FetchError, FetchReason
from halimede.models.errors import redact
from halimede.models.fetcher import Progress
from halimede.models.source_types import SourceOpener, Stream, TransferLimits

log = structlog.get_logger()

#: origins that may be away while the broker is there
REMOTE = frozenset({"http", "https", "s3"})

#: files of which it is known who gave them
REMEMBERED = 64

Fetch = Callable[..., Awaitable[Fetched]]


class BusOpener:
    """Opens ``bus://`` URLs: a ``SourceOpener``. ``sources`` (names on the wire) replace the URL's."""

    def __init__(self, client: BlobClient, sources: Sequence[str] = ()) -> None:
        self._client = client
        self._sources = sources
        self._gave: dict[str, list[str]] = {}

    @contextlib.asynccontextmanager
    async def __call__(self, url_: str, known: str, limits: TransferLimits, offset: int, /) -> AsyncIterator[Stream]:
        """Open a URL at an offset. Raises FetchError."""
        source, digest = read_url(url_)
        if known == digest:
            yield Stream(known, None, None)
            return
        sources = self._sources or ([] if source == ANY else [party(source)])
        reading = BlobDownload(self._client, digest, sources, limits)
        try:
            begins = await reading.open(offset)
            # views of what came in: whoever writes or hashes them needs no copy
            blocks = cast("AsyncIterator[bytes]", reading.blocks())
            yield Stream(digest, reading.size, blocks, begins)
        finally:
            reading.close()
            gave = self._gave.pop(digest, []) if offset else []
            self._gave[digest] = [*dict.fromkeys([*gave, *reading.used])]
            while len(self._gave) > REMEMBERED:
                del self._gave[next(iter(self._gave))]

    def distrust(self, digest: str) -> str:
        """Ask those no more for a digest who gave other bytes under it; return who they are, empty for nobody."""
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
    """Call ``fetch`` (the fetcher, or what stands for it); where the origin is away, ask the bus for the digest.

    A ``bus://`` URL names its digest: it is required, whether ``sha256`` repeats it or is empty. Whoever gives other
    bytes is not asked again. Raises FetchError: that of the origin, when the bus does not help either.
    """
    openers = openers or {}

    async def off_the_bus(where: str, digest: str) -> Fetched:
        try:
            return await fetch(where, digest, cache, progress, openers=openers, **more)
        except FetchError as error:
            opener = openers.get(SCHEME)
            if error.reason is not FetchReason.DIGEST_MISMATCH or not isinstance(opener, BusOpener):
                raise
            who = opener.distrust(digest)
            if not who:
                raise
            text = f"what {who} gave as sha256:{digest} is something else: others are asked from now on"
            raise FetchError(FetchReason.DIGEST_MISMATCH, text, temporary=True) from error

    scheme = urlsplit(url_).scheme
    if scheme == SCHEME:
        digest = read_url(url_)[1]
        if sha256 not in {"", digest}:
            text = f"sha256 {sha256} is another than that of {url_}: correct one of the two"
            raise FetchError(FetchReason.DIGEST_MISMATCH, text)
        return await off_the_bus(url_, digest)
    try:
        return await fetch(url_, sha256, cache, progress, openers=openers, **more)
    except FetchError as error:
        away = error.temporary and error.reason is not FetchReason.CACHE_FAILED and scheme in REMOTE
        if not (away and sha256 and SCHEME in openers):
            raise
        log.warning("origin is away, the bus is asked", url=redact(url_), reason=error.reason, digest=sha256)
        try:
            return await off_the_bus(url(ANY, sha256), sha256)
        except FetchError as second:
            log.info("the bus does not help", digest=sha256, reason=second.reason, message=str(second))
            raise error from second
