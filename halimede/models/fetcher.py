"""Bring one model to this node: from the cache if it is there, else from its origin, verified before it has a name."""

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

#: what is wrong with the content itself: a part of it is no beginning of what is wanted
UNUSABLE = frozenset({FetchReason.TOO_LARGE, FetchReason.EMPTY_FILE, FetchReason.DIGEST_MISMATCH})

#: gets the bytes that are here, and how many there will be (None: the origin does not say). The first call, before
#: anything has come, says how much was here; where the origin begins anew, the count does
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

    With ``sha256`` (64 hexadecimal digits) a cached file is taken without asking the origin. With an empty one the
    origin is asked whether the content has changed; when it cannot be reached, or has nothing there any more, and the
    cache has what it gave before, that is returned with ``fresh=False``: a node goes on serving without its network.
    However many tasks and processes of a node ask for one model at a time, it is downloaded once. Credentials are an
    exception: what they opened is given to others, digest or not, only after an origin has sent it to them as well.

    What is unfinished is gone on with by the next one, whatever ended this one. ``policy`` says which addresses may be
    connected to (default: what HALIMEDE_FETCH_ALLOW says); ``openers`` open further schemes.
    """
    if sha256 and not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise InvalidFieldError("sha256", sha256, "write 64 lower-case hexadecimal digits")
    policy = AddressPolicy.from_environment() if policy is None else policy
    download = _Download(url, asker(url), sha256, cache, progress, limits or TransferLimits(), policy, openers or {})
    try:
        return await (download.named() if sha256 else download.latest())
    except OSError as error:
        raise disk_error(f"the model cache {cache.root}", error) from error


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
        """The name of lock and part file: the same for all who want the same, if one's download serves the other."""
        if self.sha256 and not self.asker.credentials:
            return self.sha256
        return hashlib.sha256(f"{self.asker.key}{self.sha256}".encode()).hexdigest()

    async def named(self) -> Fetched:
        """Bring content that is known by its digest."""
        if found := await self._given():
            return found
        async with self.cache.lock(self.name, self.limits.total_s):
            # whoever held the lock before may have brought it
            return await self._given() or await self._from_origin("", None)

    async def _given(self) -> Fetched | None:
        return await self.cache.find(self.sha256) if self.cache.may_have(self.asker.key, self.sha256) else None

    async def latest(self) -> Fetched:
        """Bring whatever the origin has now, or the last that it had if it cannot be asked."""
        async with self.cache.lock(self.name, self.limits.total_s):
            record = self.cache.recall(self.asker.key)
            cached = await self.cache.find(record.digest) if record else None
            try:
                return await self._from_origin(record.mark if record and cached else "", cached)
            except FetchError as error:
                if not (cached and (error.temporary or error.reason is FetchReason.NOT_FOUND)):
                    raise
                log.warning("origin failed: cached model used", url=redact(self.url), reason=error.reason)
                return Fetched(cached.path, cached.digest, cached.size, fresh=False)

    async def _from_origin(self, known: str, cached: Fetched | None) -> Fetched:
        part = PartialDownload(self.cache, self.name, self.asker.key, decided=bool(self.sha256))
        try:
            async with asyncio.timeout(self.limits.total_s), part:
                if self.sha256 and part.digest == self.sha256:  # the last one was ended with the whole of it here
                    fetched, mark = await self._commit(part), part.mark
                elif (stream := await self._read(part, known)).blocks is None and cached:
                    part.discard()  # the beginning of what the origin had in between
                    return cached
                else:
                    fetched, mark = await self._commit(part), stream.mark
        except TimeoutError:
            text = f"{redact(self.url)} was not complete after {self.limits.total_s:g} s"
            raise FetchError(FetchReason.TIMEOUT, text, temporary=True) from None
        self.cache.grant(self.asker.key, fetched.digest)
        if not self.sha256:  # without a mark too: it is read anew each time, but known when the origin is away
            self.cache.remember(self.asker.key, UrlRecord(fetched.digest, mark))
        log.info("model fetched", url=redact(self.url), digest=fetched.digest, size=fetched.size)
        return fetched

    async def _read(self, part: PartialDownload, known: str) -> Stream:
        """Read what is missing; once more from the beginning if what was resumed turns out to be something else."""
        resumed = part.size
        try:
            stream = await self._append(part, SourceRequest(known, part.size, part.mark))
            if self.sha256 and part.digest != self.sha256 and resumed and stream.offset:
                log.warning("partial download discarded: it does not match", url=redact(self.url))
                stream = await self._append(part, SourceRequest(known))
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
            await part.begin(stream.mark, stream.offset)
            self._report(part, stream)  # what is here already has not come now
            async for block in not_slower(stream.blocks, limits, shown, loop.time):
                if part.size + len(block) > limits.max_bytes:
                    raise too_large
                await part.write(block)
                self._report(part, stream)
            if stream.size is not None and part.size != stream.size:
                text = f"{shown} broke off after {part.size} of {stream.size} bytes"
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
