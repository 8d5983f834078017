"""Brings files that workers offer over the bus, such as trained models, into GM's own store (``WorkerFileStore``).

A pull is the transfer of one file. The store then serves the file to nodes, like a file that an operator has put there.
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
#: pulls at a time; most files whose state is remembered
PARALLEL_PULLS, REMEMBERED_FILES = 8, 256
#: seconds until a failed pull may be tried again
AGAIN_S = 5.0
#: the beginning of the reason why a store cannot have a file until its operator removes others
FULL = "the store of files is full"


@dataclass(frozen=True, slots=True)
class WorkerFile:
    """A file that a worker of a training offers.

    Attributes:
        namespace: of the training.
        job: name of the training.
        source: name of the worker.
        digest: SHA-256 of the content, 64 hexadecimal digits.
        size: bytes, as the worker reports.

    """

    namespace: str
    job: str
    source: str
    digest: str
    size: int


class WorkerFileStore:
    """Pulls files into the store that ``open`` sets; before that, each pull fails. The caller runs ``run``.

    ``changed`` is called with the resource that needs a file when the file's pull has ended, and after a failure again
    when the pull may be repeated.
    """

    def __init__(self, changed: Callable[[Key], None]) -> None:
        #: by digest, of the last files that were pulled: empty if the store has the file, else why it has not
        self.states: dict[str, str] = {}
        self._changed = changed
        self._store: tuple[Bus, ManagedCache] | None = None
        self._waiting: asyncio.Queue[tuple[Key, WorkerFile]] = asyncio.Queue(PARALLEL_PULLS * 8)
        #: digests of the files whose pull waits, runs, or may not be repeated yet
        self._pulling: set[str] = set()

    def open(self, bus: Bus, cache: ManagedCache) -> None:
        """Use a store of files, and the connection over which it serves them."""
        self._store = bus, cache

    def pull(self, key: Key, file: WorkerFile) -> None:
        """Queue the pull of a file that the resource ``key`` needs, unless the file is queued or the queue is full.

        The caller repeats the call until ``states`` has an empty text for the file.
        """
        if file.digest in self._pulling or self._waiting.full():
            return
        self._pulling.add(file.digest)
        self._waiting.put_nowait((key, file))

    async def drop(self, digest: str) -> None:
        """Remove the file of a digest that no resource names any more, unless it is in use or being pulled."""
        if self._store is None or digest in self._pulling:
            return
        self.states.pop(digest, None)
        removed = await in_thread(self._store[1].cache.remove, digest)
        log.info("file of a worker removed" if removed else "file of a worker is in use, and stays", digest=digest)

    async def run(self) -> None:
        """Carry out queued pulls, several at a time, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(PARALLEL_PULLS):
                group.create_task(self._work(), name=f"worker files {number}")

    async def _work(self) -> None:
        """Carry out one pull after the other."""
        while True:
            key, file = await self._waiting.get()
            try:
                outcome = await self._fetch(file)
            except (FetchError, BusError, OSError) as error:
                outcome = str(error)
                log.info("file of a worker not fetched", source=file.source, digest=file.digest, error=outcome)
            self.states.pop(file.digest, None)
            self.states[file.digest] = outcome
            if len(self.states) > REMEMBERED_FILES:
                del self.states[next(iter(self.states))]
            self._changed(key)
            if outcome:
                await asyncio.sleep(AGAIN_S)
            self._pulling.discard(file.digest)
            if outcome:
                self._changed(key)

    async def _fetch(self, file: WorkerFile) -> str:
        """Pull one file; return why the store cannot have it, empty if it has it.

        Raises FetchError if the transfer fails or has a wrong digest, BusError without a broker.
        """
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
