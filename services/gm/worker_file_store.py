"""Files that workers offer on the topics of their training, brought into GM's own store of files.

A pull continues until the file is in the store, or the worker has it no longer. The store then serves it to nodes like
a file that an operator has put there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from halimede import topics
from halimede.blobs.admin import ManagedCache, StoreFullError
from halimede.blobs.channel import BlobChannel
from halimede.blobs.client import BlobClient
from halimede.blobs.download import BusOpener
from halimede.blobs.uris import GM
from halimede.bus import Bus
from halimede.errors import BusError
from halimede.models import FetchError
from halimede.models.cache import in_thread
from halimede.names import Key

log = structlog.get_logger()
#: pulls at a time; more wait. Files whose state is remembered
MOST, REMEMBERED = 8, 256
#: seconds until a failed pull may be tried again
AGAIN_S = 5.0
#: why a store cannot have a file until its operator removes others
FULL = "the store of files is full"


@dataclass(frozen=True, slots=True)
class WorkerFile:
    """A file of a worker: where it offers it, the digest, and the size that it reports."""

    namespace: str
    job: str
    source: str
    digest: str
    size: int


class WorkerFileStore:
    """Pulls files. ``changed`` is called with the resource that needs one when the state of its pull has changed.

    Without a store, each pull fails.
    """

    def __init__(self, changed: Callable[[Key], None]) -> None:
        #: of each file that was asked for: empty if the store has it, else why it has not
        self.states: dict[str, str] = {}
        self._changed = changed
        self._store: tuple[Bus, ManagedCache] | None = None
        self._waiting: asyncio.Queue[tuple[Key, WorkerFile]] = asyncio.Queue(MOST * 8)
        self._pulling: set[str] = set()

    def open(self, bus: Bus, cache: ManagedCache) -> None:
        """Use a store, and the connection of its server."""
        self._store = bus, cache

    def pull(self, key: Key, file: WorkerFile) -> None:
        """Bring a file, unless it is being brought. The caller repeats the call until ``states`` has it."""
        if file.digest in self._pulling or self._waiting.full():
            return
        self._pulling.add(file.digest)
        self._waiting.put_nowait((key, file))

    async def drop(self, digest: str) -> None:
        """Remove a file that no resource names any more, unless it is in use or is being brought."""
        if self._store is None or digest in self._pulling:
            return
        self.states.pop(digest, None)
        removed = await in_thread(self._store[1].cache.forget, digest)
        log.info("file of a worker removed" if removed else "file of a worker is in use, and stays", digest=digest)

    async def run(self) -> None:
        """Bring files until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(MOST):
                group.create_task(self._work(), name=f"worker files {number}")

    async def _work(self) -> None:
        while True:
            key, file = await self._waiting.get()
            try:
                outcome = await self._fetch(file)
            except (FetchError, BusError, OSError) as error:
                outcome = str(error)
                log.info("file of a worker not fetched", source=file.source, digest=file.digest, error=outcome)
            self.states.pop(file.digest, None)
            self.states[file.digest] = outcome
            if len(self.states) > REMEMBERED:
                del self.states[next(iter(self.states))]
            self._changed(key)
            if outcome:
                await asyncio.sleep(AGAIN_S)
            self._pulling.discard(file.digest)
            if outcome:
                self._changed(key)

    async def _fetch(self, file: WorkerFile) -> str:
        """Bring one file; return why the store cannot have it, empty if it has it. Raises FetchError, BusError."""
        if self._store is None:
            return "this global manager has no store of files"
        bus, managed = self._store
        names = {"ns": file.namespace, "job": file.job}
        channel = BlobChannel(topics.TRAINING_REQUEST, topics.TRAINING_CHUNK, names, has_queries=False)
        client = BlobClient(bus, GM, channel)
        await client.start()
        try:
            await managed.store(BusOpener(client, [file.source], ask_all=False), file.digest, file.size)
        except StoreFullError as error:
            return f"{FULL}: {error}"
        finally:
            await bus.unsubscribe(channel.chunks_for(GM))
        return ""
