"""Brings one file to this node's cache: from the cache itself, else from its origin, the place that its URL names.

``fetch`` verifies the content before it is cached. ``probe`` only asks whether an origin answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from halimede.errors import InvalidFieldError
from halimede.models.address_policy import AddressPolicy
from halimede.models.cache import Cache, Fetched, UrlRecord, in_thread
from halimede.models.errors import FetchError, FetchReason, disk_error, redact
from halimede.models.partial_download import PartialDownload
from halimede.models.source_registry import open_source, requester_of
from halimede.models.source_types import (
    Requester,
    SourceOpener,
    SourceRequest,
    Stream,
    TransferLimits,
    with_minimum_rate,
)

log = structlog.get_logger()

#: failures of the content itself: a partial download of it cannot be continued
CONTENT_FAILURES = frozenset({FetchReason.TOO_LARGE, FetchReason.EMPTY_FILE, FetchReason.DIGEST_MISMATCH})

#: called with the bytes that are present, and with those of the whole content (None: the origin does not report them).
#: The first call, before any byte arrives, has those of an earlier download. The count may start again from 0
Progress = Callable[[int, int | None], None]


async def fetch(
    url: str,
    sha256: str,
    cache: Cache,
    progress: Progress | None = None,
    *,
    limits: TransferLimits | None = None,
    policy: AddressPolicy | None = None,
    openers: Mapping[str, SourceOpener] | None = None,
) -> Fetched:
    """Return the content of ``url`` as a file of ``cache``. Raises FetchError, InvalidFieldError for a bad ``sha256``.

    With ``sha256`` (64 hexadecimal digits) a cached file is used without a request to the origin. If it is empty, the
    origin is asked whether the content has changed. If the origin cannot be reached, or no longer has the content, the
    earlier content in the cache is returned with ``fresh=False``: a node works on without its network.

    If several tasks and processes of a node request one content at a time, it is downloaded once. Content that needed
    credentials is an exception: each requester receives it only after an origin has sent it to that requester.

    ``progress``: told how much is present; None: nothing is. ``limits``: None: the defaults. ``policy``: the addresses
    that may be connected to; None: public ones and those of HALIMEDE_FETCH_ALLOW. ``openers``: of further schemes. The
    next call resumes a partial download if its result can be verified (``partial_download``), unless its content was
    wrong or the disk full.
    """
    if sha256 and not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise InvalidFieldError("sha256", sha256, "write 64 lower-case hexadecimal digits")
    policy = AddressPolicy.from_environment() if policy is None else policy
    download = _Download(
        url, requester_of(url), sha256, cache, progress, limits or TransferLimits(), policy, openers or {}
    )
    try:
        return await (download.fetch_digest() if sha256 else download.fetch_latest())
    except OSError as error:
        raise disk_error(f"the model cache {cache.root}", error) from error


async def probe(
    url: str, *, policy: AddressPolicy | None = None, openers: Mapping[str, SourceOpener] | None = None
) -> None:
    """Request a URL without reading its content. Raises FetchError if the origin does not have it.

    An S3 URL that ends with / names a folder, which has no content of its own: there only the store has to answer.
    """
    policy = AddressPolicy.from_environment() if policy is None else policy
    try:
        async with open_source(url, SourceRequest(), TransferLimits(), policy, openers or {}):
            pass
    except FetchError as error:
        is_folder = url.startswith("s3://") and url.endswith("/")
        if not is_folder or error.reason is not FetchReason.NOT_FOUND:
            raise


@dataclass(frozen=True, slots=True)
class _Download:
    """One call of ``fetch``, with its parameters; ``requester``: who requests the URL."""

    url: str
    requester: Requester
    sha256: str
    cache: Cache
    progress: Progress | None
    limits: TransferLimits
    policy: AddressPolicy
    openers: Mapping[str, SourceOpener]

    @property
    def name(self) -> str:
        """The name of the lock and of the partial file: the same for requesters that may share a download."""
        if self.sha256 and not self.requester.credentials:
            return self.sha256
        return hashlib.sha256(f"{self.requester.key}{self.sha256}".encode()).hexdigest()

    async def fetch_digest(self) -> Fetched:
        """Return the content with the given digest. Raises FetchError, OSError."""
        if fetched := await self._find_cached():
            return fetched
        async with self.cache.lock(self.name, self.limits.total_s):
            # the previous holder of the lock may have downloaded it
            return await self._find_cached() or await self._fetch_from_origin("", None)

    async def _find_cached(self) -> Fetched | None:
        """Return the cached file of the given digest, None if it is not cached, or guarded from this requester."""
        return await self.cache.find(self.sha256) if self.cache.may_have(self.requester.key, self.sha256) else None

    async def fetch_latest(self) -> Fetched:
        """Return the origin's present content, or its cached content if the origin cannot be reached or has none.

        Raises FetchError, OSError.
        """
        async with self.cache.lock(self.name, self.limits.total_s):
            record = self.cache.recall(self.requester.key)
            cached = await self.cache.find(record.digest) if record else None
            try:
                return await self._fetch_from_origin(record.validator if record and cached else "", cached)
            except FetchError as error:
                if not (cached and (error.temporary or error.reason is FetchReason.NOT_FOUND)):
                    raise
                log.debug("cached model used", url=redact(self.url), reason=error.reason)
                return Fetched(cached.path, cached.digest, cached.size, fresh=False)

    async def _fetch_from_origin(self, if_none_match: str, cached: Fetched | None) -> Fetched:
        """Download the content; return ``cached`` if its validator, ``if_none_match``, is still the origin's.

        Records the grant of downloaded content, and without ``sha256`` the URL's digest. Raises FetchError, OSError.
        """
        part = PartialDownload(self.cache, self.name, self.requester.key, has_digest=bool(self.sha256))
        try:
            async with asyncio.timeout(self.limits.total_s), part:
                if self.sha256 and part.digest == self.sha256:  # the last download ended with the complete content
                    fetched, validator = await self._commit(part), part.validator
                elif (stream := await self._download(part, if_none_match)).blocks is None and cached:
                    part.discard()  # the start of other content, which the origin had in between
                    return cached
                else:
                    fetched, validator = await self._commit(part), stream.validator
        except TimeoutError:
            text = f"{redact(self.url)} was not complete after {self.limits.total_s:g} s"
            raise FetchError(FetchReason.TIMEOUT, text, temporary=True) from None
        self.cache.grant(self.requester.key, fetched.digest)
        if not self.sha256:  # also without a validator: then it is only used when the origin is unreachable
            self.cache.remember(self.requester.key, UrlRecord(fetched.digest, validator))
        log.debug("file fetched", url=redact(self.url), digest=fetched.digest, size=fetched.size)
        return fetched

    async def _download(self, part: PartialDownload, if_none_match: str) -> Stream:
        """Append the missing bytes to ``part`` and verify the digest; start again, once, if resumed bytes were wrong.

        Returns the stream, read to its end. Raises FetchError.
        """
        resumed = part.size
        try:
            stream = await self._append(part, SourceRequest(if_none_match, part.size, part.validator))
            if self.sha256 and part.digest != self.sha256 and resumed and stream.offset:
                log.warning("partial download discarded", url=redact(self.url))
                stream = await self._append(part, SourceRequest(if_none_match))
            if stream.blocks is not None:
                self._verify(part)
        except FetchError as error:
            if error.reason in CONTENT_FAILURES:
                part.discard()
            raise
        return stream

    async def _append(self, part: PartialDownload, request: SourceRequest) -> Stream:
        """Append to ``part`` what the origin sends; return the stream, read to its end. Raises FetchError."""
        shown, limits, loop = redact(self.url), self.limits, asyncio.get_running_loop()
        too_large = FetchError(FetchReason.TOO_LARGE, f"{shown} is larger than the limit of {limits.max_bytes} bytes")
        async with open_source(self.url, request, limits, self.policy, self.openers) as stream:
            if stream.blocks is None:
                return stream
            if stream.size is not None and stream.size > limits.max_bytes:
                raise too_large
            await part.begin(stream.validator, stream.offset)
            self._report(part, stream)  # bytes that were present before this download
            async for block in with_minimum_rate(stream.blocks, limits, shown, loop.time):
                if part.size + len(block) > limits.max_bytes:
                    raise too_large
                await part.write(block)
                self._report(part, stream)
            if stream.size is not None and part.size != stream.size:
                text = f"{shown} was interrupted after {part.size} of {stream.size} bytes"
                raise FetchError(FetchReason.INTERRUPTED, text, temporary=True)
            return stream

    def _report(self, part: PartialDownload, stream: Stream) -> None:
        """Tell ``progress``, if there is one, how much is present."""
        if self.progress:
            self.progress(part.size, stream.size)

    def _verify(self, part: PartialDownload) -> None:
        """Raise FetchError for an empty file, and for another digest than the given one."""
        shown = redact(self.url)
        if part.size == 0:
            raise FetchError(FetchReason.EMPTY_FILE, f"{shown} is empty: a model file was expected")
        if self.sha256 and part.digest != self.sha256:
            text = f"{shown} has sha256 {part.digest}, not {self.sha256}: correct one of the two"
            raise FetchError(FetchReason.DIGEST_MISMATCH, text)

    async def _commit(self, part: PartialDownload) -> Fetched:
        """Move the complete content into the cache, guarded if it needed credentials; return it there."""
        if self.requester.credentials:
            await in_thread(self.cache.guard, part.digest)
        return await part.commit()
