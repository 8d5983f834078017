"""Brings one model to this node: from the cache, else from its origin; verifies it before it is cached."""

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
from halimede.models.source_registry import asker, open_source
from halimede.models.source_types import Requester, SourceOpener, SourceRequest, Stream, TransferLimits, not_slower

log = structlog.get_logger()

#: failures of the content itself: a partial download of it cannot be continued
UNUSABLE = frozenset({FetchReason.TOO_LARGE, FetchReason.EMPTY_FILE, FetchReason.DIGEST_MISMATCH})

#: called with the bytes present, and the total (None: the origin does not report it). The first call, before any byte
#: has arrived, has the bytes that were present. If the origin starts again from 0, the count does as well
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
    """Return the model of ``url`` as a file of ``cache``; raise FetchError.

    With ``sha256`` (64 hexadecimal digits) a cached file is used without a request to the origin. Without it, the
    origin is asked whether the content has changed. If the origin cannot be reached, or no longer has the content, and
    the cache has its earlier content, that is returned with ``fresh=False``: a node works on without its network. If
    several tasks and processes of a node request one model at a time, it is downloaded once. Content that needed
    credentials is an exception: another requester receives it, with a digest or not, only after an origin has sent it
    to that requester as well.

    The next call resumes a partial download, however it ended. ``policy`` has the addresses that may be connected to
    (default: those of HALIMEDE_FETCH_ALLOW); ``openers`` open further schemes.
    """
    if sha256 and not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise InvalidFieldError("sha256", sha256, "write 64 lower-case hexadecimal digits")
    policy = AddressPolicy.from_environment() if policy is None else policy
    download = _Download(url, asker(url), sha256, cache, progress, limits or TransferLimits(), policy, openers or {})
    try:
        return await (download.named() if sha256 else download.latest())
    except OSError as error:
        raise disk_error(f"the model cache {cache.root}", error) from error


async def probe(
    url: str, *, policy: AddressPolicy | None = None, openers: Mapping[str, SourceOpener] | None = None
) -> None:
    """Request a URL without reading its content; raise FetchError.

    An S3 URL that ends with / names a folder, which has no content of its own: only its store must answer.
    """
    policy = AddressPolicy.from_environment() if policy is None else policy
    try:
        async with open_source(url, SourceRequest(), TransferLimits(), policy, openers or {}):
            pass
    except FetchError as error:
        folder = url.startswith("s3://") and url.endswith("/")
        if not folder or error.reason is not FetchReason.NOT_FOUND:
            raise


@dataclass(frozen=True, slots=True)
class _Download:
    url: str
    asker: Requester
    sha256: str
    cache: Cache
    progress: Progress | None
    limits: TransferLimits
    policy: AddressPolicy
    openers: Mapping[str, SourceOpener]

    @property
    def name(self) -> str:
        """The name of lock and partial file: equal if one requester's download serves the other as well."""
        if self.sha256 and not self.asker.credentials:
            return self.sha256
        return hashlib.sha256(f"{self.asker.key}{self.sha256}".encode()).hexdigest()

    async def named(self) -> Fetched:
        """Return the content of the given digest."""
        if fetched := await self._given():
            return fetched
        async with self.cache.lock(self.name, self.limits.total_s):
            # the previous holder of the lock may have downloaded it
            return await self._given() or await self._from_origin("", None)

    async def _given(self) -> Fetched | None:
        return await self.cache.find(self.sha256) if self.cache.may_have(self.asker.key, self.sha256) else None

    async def latest(self) -> Fetched:
        """Return the origin's present content, or its last cached content if the origin cannot be reached."""
        async with self.cache.lock(self.name, self.limits.total_s):
            record = self.cache.recall(self.asker.key)
            cached = await self.cache.find(record.digest) if record else None
            try:
                return await self._from_origin(record.validator if record and cached else "", cached)
            except FetchError as error:
                if not (cached and (error.temporary or error.reason is FetchReason.NOT_FOUND)):
                    raise
                log.debug("cached model used", url=redact(self.url), reason=error.reason)
                return Fetched(cached.path, cached.digest, cached.size, fresh=False)

    async def _from_origin(self, if_none_match: str, cached: Fetched | None) -> Fetched:
        part = PartialDownload(self.cache, self.name, self.asker.key, decided=bool(self.sha256))
        try:
            async with asyncio.timeout(self.limits.total_s), part:
                if self.sha256 and part.digest == self.sha256:  # the last download ended with the complete content
                    fetched, validator = await self._commit(part), part.validator
                elif (stream := await self._read(part, if_none_match)).blocks is None and cached:
                    part.discard()  # the start of other content, which the origin had in between
                    return cached
                else:
                    fetched, validator = await self._commit(part), stream.validator
        except TimeoutError:
            text = f"{redact(self.url)} was not complete after {self.limits.total_s:g} s"
            raise FetchError(FetchReason.TIMEOUT, text, temporary=True) from None
        self.cache.grant(self.asker.key, fetched.digest)
        if not self.sha256:  # also without a validator: then it is only used when the origin is unreachable
            self.cache.remember(self.asker.key, UrlRecord(fetched.digest, validator))
        log.debug("file fetched", url=redact(self.url), digest=fetched.digest, size=fetched.size)
        return fetched

    async def _read(self, part: PartialDownload, if_none_match: str) -> Stream:
        """Download the missing part; start again from the beginning, once, if the resumed content is different."""
        resumed = part.size
        try:
            stream = await self._append(part, SourceRequest(if_none_match, part.size, part.validator))
            if self.sha256 and part.digest != self.sha256 and resumed and stream.offset:
                log.warning("partial download discarded", url=redact(self.url))
                stream = await self._append(part, SourceRequest(if_none_match))
            if stream.blocks is not None:
                self._verify(part)
        except FetchError as error:
            if error.reason in UNUSABLE:
                part.discard()
            raise
        return stream

    async def _append(self, part: PartialDownload, ask: SourceRequest) -> Stream:
        shown, limits, loop = redact(self.url), self.limits, asyncio.get_running_loop()
        too_large = FetchError(FetchReason.TOO_LARGE, f"{shown} is larger than the limit of {limits.max_bytes} bytes")
        async with open_source(self.url, ask, limits, self.policy, self.openers) as stream:
            if stream.blocks is None:
                return stream
            if stream.size is not None and stream.size > limits.max_bytes:
                raise too_large
            await part.begin(stream.validator, stream.offset)
            self._report(part, stream)  # bytes that were present before this download
            async for block in not_slower(stream.blocks, limits, shown, loop.time):
                if part.size + len(block) > limits.max_bytes:
                    raise too_large
                await part.write(block)
                self._report(part, stream)
            if stream.size is not None and part.size != stream.size:
                text = f"{shown} was interrupted after {part.size} of {stream.size} bytes"
                raise FetchError(FetchReason.INTERRUPTED, text, temporary=True)
            return stream

    def _report(self, part: PartialDownload, stream: Stream) -> None:
        if self.progress:
            self.progress(part.size, stream.size)

    def _verify(self, part: PartialDownload) -> None:
        shown = redact(self.url)
        if part.size == 0:
            raise FetchError(FetchReason.EMPTY_FILE, f"{shown} is empty: a model file was expected")
        if self.sha256 and part.digest != self.sha256:
            text = f"{shown} has sha256 {part.digest}, not {self.sha256}: correct one of the two"
            raise FetchError(FetchReason.DIGEST_MISMATCH, text)

    async def _commit(self, part: PartialDownload) -> Fetched:
        if self.asker.credentials:
            await in_thread(self.cache.guard, part.digest)
        return await part.commit()
