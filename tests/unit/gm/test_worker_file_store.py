"""GM's store of files of workers: what it has room for, and what it drops."""

from __future__ import annotations

import hashlib
from pathlib import Path

from halimede.blobs.admin import ManagedCache
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.models import Cache
from services.gm.worker_file_store import WorkerFileStore


async def test_a_file_of_workers_that_nothing_names_leaves_its_store_and_would_be_fetched_again(tmp_path: Path) -> None:
    cache, files = Cache(tmp_path), WorkerFileStore(lambda _: None)
    (tmp_path / "part").write_bytes(b"model")
    digest = hashlib.sha256(b"model").hexdigest()
    cache.keep(tmp_path / "part", digest)
    files.open(MemoryBus("gm-blobs", MemoryBroker()), ManagedCache(cache, 1000))
    files.states[digest] = ""
    await files.drop(digest)
    assert (await cache.find(digest), files.states) == (None, {})
