"""Sources and askers on a bus in memory: files of chance bytes, and whoever has them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from dataclasses import dataclass, field
from pathlib import Path

from halimede.blobs import BlobClient, BlobServer, BusOpener, FileProvider, of_cache
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.models import Cache
from halimede.models.source_types import TransferLimits


def some_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def keep(cache: Cache, data: bytes) -> str:
    digest = digest_of(data)
    path = cache.path(digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return digest


@dataclass
class World:
    """A broker, and who is on it."""

    folder: Path
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    def cache(self, name: str) -> Cache:
        return Cache(self.folder / name)

    async def bus(self, client_id: str) -> MemoryBus:
        bus = await self.stack.enter_async_context(MemoryBus(client_id, self.broker))
        await bus.wait_connected(10)
        return bus

    async def source(self, name: str, *files: bytes) -> Giver:
        cache = self.cache(name)
        for data in files:
            keep(cache, data)
        bus = await self.bus(f"{name}-blobs")
        source = BlobServer(bus, name, FileProvider([of_cache(cache)]))
        await source.start()
        giver = Giver(source, bus, cache, asyncio.create_task(source.run()))
        self.stack.push_async_callback(giver.stop)
        return giver

    async def client(self, name: str = "lc.asker") -> BlobClient:
        client = BlobClient(await self.bus(f"{name}-client"), name)
        await client.start()
        return client


@dataclass
class Giver:
    source: BlobServer
    bus: MemoryBus
    cache: Cache
    work: asyncio.Task[None]

    async def stop(self) -> None:
        """Fall silent, and stay on the bus."""
        self.work.cancel()
        await asyncio.wait([self.work])


async def read(client: BlobClient, url: str, offset: int = 0, limits: TransferLimits | None = None) -> bytes:
    async with BusOpener(client)(url, "", limits or TransferLimits(), offset) as stream:
        assert stream.blocks is not None
        assert stream.offset == offset
        return b"".join([bytes(block) async for block in stream.blocks])
