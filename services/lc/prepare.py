"""Brings what services need to this node ahead of time: Models by the one fetcher; Datasets only have to exist.

Level-triggered: ``want`` says what should be here, and one task for each want tries until it is, faster where waiting
helps, slower where someone has to act. Nothing is ever given up for good: a missing file heals when it appears.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from halimede.api import dataset
from halimede.models import Cache, Fetched, FetchError, Reason, fetch, local_path
from halimede.names import Key
from halimede.tracing.times import Distribution
from services.lc.plan import Phase, Preparation, Want

log = structlog.get_logger()

#: seconds: back-off of temporary failures, and between two looks at what someone has to mend
FIRST_DELAY, LONGEST_DELAY, MENDED_DELAY = 1.0, 60.0, 15.0
#: downloads side by side
PARALLEL = 2
#: seconds between two reports of a download's progress
PROGRESS_S = 2.0

Fetch = Callable[..., Awaitable[Fetched]]


@dataclass(slots=True)
class Downloads:
    """What was brought to this node since the start: bytes that came, time of each download, failures by reason."""

    bytes: int = 0
    times: Distribution = field(default_factory=Distribution)
    failures: Counter[str] = field(default_factory=Counter)


class Preparer:
    """What is on its way to this node. ``changed`` is called with a key whenever its preparation gets further."""

    def __init__(
        self, cache: Cache, tasks: asyncio.TaskGroup, changed: Callable[[Key], None], fetch_: Fetch = fetch
    ) -> None:
        self.preparations: dict[Key, Preparation] = {}
        self.downloads = Downloads()
        self._cache = cache
        self._tasks = tasks
        self._changed = changed
        self._fetch = fetch_
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(PARALLEL)

    def want(self, wanted: Mapping[Key, Want]) -> None:
        """Prepare exactly this from now on; what is no longer wanted is left where it is."""
        for key in [key for key, known in self.preparations.items() if known.want != wanted.get(key)]:
            del self.preparations[key]
            self._running.pop(key).cancel()
        for key, want in wanted.items():
            if key not in self.preparations:
                self._begin(Preparation(want))

    def missing(self, path: Path) -> None:
        """Prepare again what was ready at a path where nothing is any more: someone has cleared the cache."""
        for key, known in list(self.preparations.items()):
            if known.phase == "Ready" and known.path == path:
                log.warning("a prepared file is gone", key=str(key), path=str(path))
                message = f"{path} is gone: it is brought to this node again"
                self._begin(Preparation(known.want, reason="ModelMissing", message=message))
                self._changed(key)

    def _begin(self, preparation: Preparation) -> None:
        want = preparation.want
        self.preparations[want.key] = preparation
        self._running[want.key] = self._tasks.create_task(self._prepare(want), name=f"prepare {want.key}")

    async def _prepare(self, want: Want) -> None:
        backoff = FIRST_DELAY
        while (delay := await self._attempt(want, backoff)) is not None:
            await asyncio.sleep(delay)
            backoff = min(backoff * 2, LONGEST_DELAY)

    async def _attempt(self, want: Want, backoff: float) -> float | None:
        """Try once; return the seconds to wait before the next time, None if there need be none."""
        try:
            async with self._places:
                path = await self._bring(want)
        except FetchError as error:
            log.warning("preparation failed", key=str(want.key), reason=error.reason, message=str(error))
            self.downloads.failures[error.reason.value] += 1
            phase: Phase = "Pending" if error.temporary else "Failed"
            self._set(Preparation(want, phase, error.reason.value, str(error)))
            return backoff if error.temporary else MENDED_DELAY
        except Exception as error:  # noqa: BLE001  # one model that breaks a library must not end the node's other work
            log.warning("preparation broke", key=str(want.key), error=type(error).__name__)
            self.downloads.failures["Internal"] += 1
            self._set(Preparation(want, "Failed", "Internal", f"the download broke: {type(error).__name__}"))
            return LONGEST_DELAY
        self._set(Preparation(want, "Ready", "", path=path))
        return None

    async def _bring(self, want: Want) -> Path | None:
        if want.key.plural == dataset.PLURAL:
            return _existing(want.url)
        loop = asyncio.get_running_loop()
        began = told = loop.time()
        came = 0

        def progress(done: int, total: int | None) -> None:
            nonlocal told, came
            self.downloads.bytes += done - came
            came = done
            if loop.time() - told >= PROGRESS_S:
                told = loop.time()
                whole = f" of {total / 1e6:.0f}" if total else ""
                message = f"{done / 1e6:.0f}{whole} MB are here"
                self._set(replace(self.preparations[want.key], reason="Downloading", message=message))

        try:
            return (await self._fetch(want.url, want.sha256, self._cache, progress)).path
        finally:
            if came:  # else it was in the cache
                self.downloads.times.record((loop.time() - began) * 1000)

    def _set(self, preparation: Preparation) -> None:
        key = preparation.want.key
        if self.preparations[key] != preparation:
            self.preparations[key] = preparation
            self._changed(key)


def _existing(url: str) -> Path | None:
    """Return where a Dataset is; one that is not local is taken as it is. Raises FetchError."""
    path = local_path(url)
    if path is None or path.exists():
        return path
    raise FetchError(Reason.NOT_FOUND, f"{path} does not exist on this node")
