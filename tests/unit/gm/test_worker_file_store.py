"""GM's store of files of workers: what it has room for, and what it drops."""

from __future__ import annotations

from pathlib import Path

from halimede.blobs.admin import ManagedCache
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.models import Cache
from services.gm.worker_file_store import WorkerFileStore


async def test_a_file_that_nothing_names_leaves_the_store_and_would_be_fetched_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    part = tmp_path / "part"
    part.write_bytes(b"model")
    digest = "9372c470eeadd5ecd9c3c74c2b3cb633f8e2f2fad799250a0f70d652b6b825e4"
    cache.keep(part, digest)
    files = WorkerFileStore(lambda _: None)
    files.open(MemoryBus("gm-blobs", MemoryBroker()), ManagedCache(cache, 1000))
    files.states[digest] = ""
    await files.drop(digest)
    assert (await cache.find(digest), files.states) == (None, {})
