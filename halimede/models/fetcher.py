"""Bring one model to this node: from the cache if it is there, else from its origin, verified before it has a name."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import structlog

from halimede.errors import InvalidFieldError
from halimede.models.cache import Cache, Fetched, UrlRecord, in_thread
from halimede.models.errors import FetchError, Reason, redact
from halimede.models.sources import asker, open_source
from halimede.models.stream import Asker, Limits, Stream

log = structlog.get_logger()

#: gets the bytes that are here, and how many there will be (None: the origin does not say)
Progress = Callable[[int, int | None], None]


async def fetch(
    url: str, sha256: str, cache: Cache, progress: Progress | None = None, *, limits: Limits | None = None
) -> Fetched:
    """Return the model of ``url`` as a file of ``cache``; raise FetchError.

    With ``sha256`` (64 hexadecimal digits) a cached file is taken without asking the origin. With an empty one the
    origin is asked whether the content has changed; when it cannot be reached, or has nothing there any more, and the
    cache has what it gave before, that is returned with ``fresh=False``: a node goes on serving without its network.
    However many tasks and processes of a node ask for one model at a time, it is downloaded once. Credentials are an
    exception: what they opened is given to others, digest or not, only after an origin has sent it to them as well.
    """
    if sha256 and not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise InvalidFieldError("sha256", sha256, "write 64 lower-case hexadecimal digits")
    download = _Download(url, asker(url), sha256, cache, progress, limits or Limits())
    try:
        return await (download.named() if sha256 else download.latest())
    except OSError as error:
        text = f"the model cache {cache.root} cannot be used: {error.strerror or type(error).__name__}"
        raise FetchError(Reason.CACHE_FAILED, text, temporary=True) from error


@dataclass(frozen=True, slots=True)
class _Download:
    url: str
    asker: Asker
    sha256: str
    cache: Cache
    progress: Progress | None
    limits: Limits

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
                if not (cached and (error.temporary or error.reason is Reason.NOT_FOUND)):
                    raise
                log.warning("origin did not give it, cached model is used", url=redact(self.url), reason=error.reason)
                return Fetched(cached.path, cached.digest, cached.size, fresh=False)

    async def _from_origin(self, known: str, cached: Fetched | None) -> Fetched:
        try:
            async with asyncio.timeout(self.limits.total_s), open_source(self.url, known, self.limits) as stream:
                if stream.blocks is None and cached:
                    return cached
                fetched = await self._store(stream)
        except TimeoutError:
            text = f"{redact(self.url)} was not complete after {self.limits.total_s:g} s"
            raise FetchError(Reason.TIMEOUT, text, temporary=True) from None
        self.cache.grant(self.asker.key, fetched.digest)
        if not self.sha256:  # without a mark too: it is read anew each time, but known when the origin is away
            self.cache.remember(self.asker.key, UrlRecord(fetched.digest, stream.mark))
        log.info("model fetched", url=redact(self.url), digest=fetched.digest, size=fetched.size)
        return fetched

    async def _store(self, stream: Stream) -> Fetched:
        shown = redact(self.url)
        async with self.cache.part(self.name) as part:
            async for block in self._bounded(stream):
                await part.write(block)
                if self.progress:
                    self.progress(part.size, stream.size)
            if part.size == 0:
                raise FetchError(Reason.EMPTY_FILE, f"{shown} is empty: a model file was expected")
            if self.sha256 and part.digest != self.sha256:
                text = f"{shown} has sha256 {part.digest}, not {self.sha256}: correct one of the two"
                raise FetchError(Reason.DIGEST_MISMATCH, text)
            if self.asker.credentials:
                await in_thread(self.cache.guard, part.digest)
            return await part.commit()

    async def _bounded(self, stream: Stream) -> AsyncIterator[bytes]:
        limit, total = self.limits.max_bytes, 0
        error = FetchError(Reason.TOO_LARGE, f"{redact(self.url)} is larger than the limit of {limit} bytes")
        if stream.size is not None and stream.size > limit:
            raise error
        if stream.blocks is None:
            return
        async for block in stream.blocks:
            total += len(block)
            if total > limit:
                raise error
            yield block
