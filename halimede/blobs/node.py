"""A client that serves and requests files on its own connection, so that files delay no other message."""

from __future__ import annotations

import asyncio

import structlog

from halimede.blobs.admin import BlobAdmin, ManagedCache
from halimede.blobs.client import BlobClient
from halimede.blobs.file_provider import FileProvider, of_cache
from halimede.blobs.opener import BusOpener
from halimede.blobs.server import BlobServer
from halimede.bus.port import Bus
from halimede.errors import RefusedError, first_error

log = structlog.get_logger()


class BlobNode:
    """Serves and requests files. Takes a bus that is not entered yet; ``run`` it until cancelled.

    Attributes:
        opener: the fetcher's opener for ``bus://``. While this does not run, it fails as when the broker is away.

    """

    def __init__(self, bus: Bus, name: str, store: ManagedCache) -> None:
        self.bus = bus
        self.client = BlobClient(bus, name)
        self.source = BlobServer(bus, name, FileProvider(of_cache(store.cache)))
        self.opener = BusOpener(self.client)
        self._desk = BlobAdmin(bus, name, store, self.client)

    async def run(self) -> None:
        """Give, ask and keep until cancelled."""
        async with self.bus:
            try:
                for part in (self.client, self.source, self._desk):
                    await part.start()
            except RefusedError as error:
                log.warning("no blobs over the bus: the broker's access rules are older than this", error=str(error))
                await asyncio.get_running_loop().create_future()
            with first_error():
                async with asyncio.TaskGroup() as group:
                    group.create_task(self.source.run(), name="blob source")
                    group.create_task(self._desk.run(), name="blob desk")
