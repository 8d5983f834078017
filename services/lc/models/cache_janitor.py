"""Keeps the node's model cache within its limit (``CacheJanitor``): removes only files that nothing uses.

The file of a deleted Model is removed at once. A file that another version has replaced stays, so that a rollback needs
no download, until its space is needed: then the least recently used file is removed first.
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

#: the limit of the cache in bytes, by default
CACHE_BYTES = 20_000_000_000
#: seconds from a change to the eviction: several changes may come together
SETTLE_S = 1.0
#: seconds between two attempts to remove a model that a worker still uses
RETRY_S = 5.0
#: seconds between two evictions without a change here: pods and operators fill the cache, too
EVICT_PERIOD_S = 600.0


class CacheChanges:
    """The changes of a cache since the janitor's last turn, which ``Preparer`` records.

    Attributes:
        unneeded: digests of files that no Model needs any more.
        changed: set at each change.

    """

    def __init__(self, cache: Cache) -> None:
        self.unneeded: set[str] = set()
        self.changed = asyncio.Event()
        self._cache = cache

    def record_release(self, preparation: Preparation, *, for_good: bool) -> None:
        """Record that a file is not needed in this form any more; ``for_good``: its Model is not needed here at all."""
        if for_good and preparation.path and (digest := self._cache.digest(preparation.path)):
            self.unneeded.add(digest)
        self.changed.set()

    def record_addition(self) -> None:
        """Record that a file was added to the cache."""
        self.changed.set()


class CacheJanitor:
    """Removes files from a model cache.

    ``required``: returns the paths of files that Models need. ``running``: returns the files that workers use, by path
    or digest; None: not known now, and nothing is removed. ``missing`` is called with the path of a required file that
    was removed all the same, and has to be fetched again: it became required while the removal ran in a thread.
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
        """Remove files after each change, and periodically, until cancelled."""
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
        """Remove unneeded files, and others beyond the limit; return whether all unneeded ones could be removed."""
        paths = self._running()
        if paths is None:
            return False
        running, required, unneeded = self._digests(paths), self._digests(self._required()), self._changes.unneeded
        unneeded -= required  # another Model has the same content
        removed: list[str] = []
        try:
            for digest in sorted(unneeded - running):
                if await in_thread(self._cache.remove, digest):  # otherwise it is in use, and tried again
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
        """Log the digests of removed files, and report each required file among them as missing."""
        for digest in removed:
            log.info("unused model removed", digest=digest)
        for path in list(self._required()):
            if self._cache.digest(path) in removed:
                self._missing(path)

    def _digests(self, models: Collection[Path | str]) -> set[str]:
        """Return the digests of models, given by path in the cache or by digest."""
        digests = (self._cache.digest(model) if isinstance(model, Path) else model for model in models)
        return {digest for digest in digests if digest}
