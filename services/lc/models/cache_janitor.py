"""Keeps the node's model cache within its limit: removes unused models, never used ones.

The file of a deleted Model is removed at once. A replaced one stays, so that a rollback needs no download, until its
space is needed: then the least recently used one is removed first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from halimede.models import Cache
from halimede.models.cache import in_thread
from services.lc.planning.resource_state import Preparation

log = structlog.get_logger()

#: the limit of the cache in bytes
CACHE_BYTES = 20_000_000_000
#: seconds from a change to the eviction: several changes may come together
SETTLE_S = 1.0
#: seconds between two attempts to remove a model that a worker still uses
RETRY_S = 5.0
#: seconds between two evictions without a change here: pods and operators fill the cache, too
EVICT_PERIOD_S = 600.0


class CacheChanges:
    """The changes of a cache since the last eviction. ``unneeded``: the digests of files that no Model needs."""

    def __init__(self, cache: Cache) -> None:
        self.unneeded: set[str] = set()
        self.changed = asyncio.Event()
        self._cache = cache

    def record_release(self, preparation: Preparation, *, for_good: bool) -> None:
        """Record that a file is no longer needed in this form (``for_good``: not at all)."""
        if for_good and preparation.path and (digest := self._cache.digest(preparation.path)):
            self.unneeded.add(digest)
        self.changed.set()

    def record_addition(self) -> None:
        """Record that a file was added."""
        self.changed.set()


class CacheJanitor:
    """Evicts models from the cache, except ``required`` ones and those that workers run (None: unknown now).

    ``missing`` is called with the path of a required file that was removed all the same: a file that became required
    after the removal had begun in a thread, and was still in the cache then. It has to be fetched again.
    """

    def __init__(
        self,
        cache: Cache,
        changes: CacheChanges,
        required: Callable[[], Collection[Path]],
        running: Callable[[], Collection[Path | str] | None],
        missing: Callable[[Path], None],
        *,
        max_bytes: int = CACHE_BYTES,
    ) -> None:
        self._cache = cache
        self._changes = changes
        self._required = required
        self._running = running
        self._missing = missing
        self._max_bytes = max_bytes

    async def run(self) -> None:
        """Evict after each change, and periodically, until cancelled."""
        changed = self._changes.changed
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVICT_PERIOD_S):
                    await changed.wait()
            changed.clear()
            await asyncio.sleep(SETTLE_S)
            if not await self._tidy():
                await asyncio.sleep(RETRY_S)
                changed.set()

    async def _tidy(self) -> bool:
        """Remove unneeded content; return whether all of it could be removed."""
        paths = self._running()
        if paths is None:
            return False
        running, required, unneeded = self._digests(paths), self._digests(self._required()), self._changes.unneeded
        unneeded -= required  # another Model has the same content
        removed: list[str] = []
        try:
            for digest in sorted(unneeded - running):
                if await in_thread(self._cache.forget, digest):  # otherwise it is in use, and tried again
                    unneeded.discard(digest)
                    removed.append(digest)
            removed += await in_thread(self._cache.evict, running | required, self._max_bytes)
        except OSError as error:
            log.warning("cache space not freed", error=error.strerror)
            return False
        finally:
            self._report(removed)
        return not unneeded

    def _report(self, removed: Collection[str]) -> None:
        """Log what was removed, and report each wanted file among it as missing."""
        for digest in removed:
            log.info("unused model removed", digest=digest)
        for path in list(self._required()):
            if self._cache.digest(path) in removed:
                self._missing(path)

    def _digests(self, models: Collection[Path | str]) -> set[str]:
        digests = (self._cache.digest(model) if isinstance(model, Path) else model for model in models)
        return {digest for digest in digests if digest}
