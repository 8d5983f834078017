"""Room in the cache: the longest unused goes, what anybody uses stays, and making room needs none."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from halimede.models import Cache, Fetched, FetchError, FetchReason, fetch
from halimede.models.archive import unpack
from halimede.models.cache import CacheEntry, eviction_order, in_thread
from tests.small_disk import fill, small_disk
from tests.unit.models.archives import FILES, stored, tar
from tests.waiting import patience

KIB = 1024
HOLDER = """
import sys, time
from pathlib import Path
from halimede.models import Cache
with Cache(Path(sys.argv[1])).pin(sys.argv[2]):
    print("held", flush=True)
    time.sleep(600)
"""


def filled(cache: Cache, number: int) -> list[Fetched]:
    """Models of 10 KiB, each used a second after the one before it."""
    models = [stored(cache, bytes([i]) * 10 * KIB) for i in range(number)]
    for age, model in enumerate(reversed(models)):
        used(cache, model, age)
    return models


def used(cache: Cache, model: Fetched, seconds_ago: float) -> None:
    at = 1_700_000_000 - seconds_ago
    os.utime(cache.root / "index" / f"used-{model.digest}", (at, at))


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.tuples(st.integers(0, 9), st.integers(0, 9))), st.data())
def test_the_order_is_that_of_use_without_what_is_in_use(
    sizes: dict[str, tuple[int, int]], data: st.DataObject
) -> None:
    in_use = data.draw(st.sets(st.sampled_from(sorted(sizes) or ["x"])))
    entries = [CacheEntry(digest, size, at) for digest, (size, at) in sizes.items()]
    chosen = eviction_order(entries, in_use)
    assert {entry.digest for entry in chosen} == sizes.keys() - in_use
    assert [entry.used_ns for entry in chosen] == sorted(entry.used_ns for entry in chosen)


def test_the_longest_unused_go_until_there_is_room(cache: Cache) -> None:
    models = filled(cache, 5)
    assert cache.evict([], 60 * KIB) == []
    cache.touch(models[0].digest)
    assert cache.evict([models[1].digest], 25 * KIB) == [models[i].digest for i in (2, 3, 4)]
    assert cache.digests() == {models[0].digest: 10 * KIB, models[1].digest: 10 * KIB}
    assert cache.evict([models[0].digest, models[1].digest], 0) == []
    assert sorted(path.name for path in (cache.root / "index").iterdir() if "url" not in path.name) == sorted(
        name for i in (0, 1) for name in (f"file-{models[i].digest}.json", f"used-{models[i].digest}")
    )


async def test_what_was_found_again_is_used(cache: Cache) -> None:
    models = filled(cache, 3)
    await cache.find(models[0].digest)
    assert cache.evict([], 10 * KIB) == [models[1].digest, models[2].digest]


async def test_unpacked_folders_count_and_go_with_their_archive(cache: Cache) -> None:
    archive = stored(cache, tar(FILES))
    folder = await unpack(cache, archive)
    size = archive.size + sum(map(len, FILES.values()))
    assert cache.digests() == {archive.digest: size}
    assert cache.evict([], size) == []
    assert cache.evict([], size - 1) == [archive.digest]
    assert (folder.exists(), cache.digests(), list(folder.parent.iterdir())) == (False, {}, [])
    again = stored(cache, tar(FILES))
    await unpack(cache, again)
    assert cache.remove(again.digest)
    assert not folder.exists()
    assert cache.remove("f" * 64), "what is not there is gone"


async def test_what_another_process_uses_stays_until_it_ends(cache: Cache) -> None:
    (model,) = filled(cache, 1)
    words = [sys.executable, "-c", HOLDER, str(cache.root), model.digest]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert await asyncio.to_thread(process.stdout.readline) == b"held\n"
        assert (cache.evict([], 0), cache.remove(model.digest)) == ([], False)
        with cache.pin(model.digest):  # others may use it, too
            assert model.path.exists()
        process.kill()
    assert cache.evict([], 0) == [model.digest]
    with pytest.raises(FetchError) as caught, cache.pin(model.digest):
        pass
    assert (caught.value.reason, caught.value.temporary) == (FetchReason.CACHE_FAILED, True)


def test_what_is_being_fetched_stays(cache: Cache) -> None:
    (model,) = filled(cache, 1)
    lock = cache.root / "locks" / f"{model.digest}.lock"
    lock.parent.mkdir()
    with FileLock(lock):
        assert (cache.evict([], 0), cache.remove(model.digest)) == ([], False)
    assert cache.remove(model.digest)


def test_unfinished_downloads_take_room_and_stay(cache: Cache) -> None:
    models = filled(cache, 3)
    part = cache.root / "parts" / "x"
    part.write_bytes(bytes(15 * KIB))
    assert cache.evict([], 30 * KIB) == [models[0].digest, models[1].digest]
    assert part.exists()


async def test_many_fetch_unpack_and_evict_at_a_time(cache: Cache, tmp_path: Path) -> None:
    """Whoever uses what it has fetched finds it whole, or is told that it has just gone."""
    sources = []
    for i in range(6):
        content = tar(FILES | {"number": str(i).encode()})
        (tmp_path / f"{i}.tar.gz").write_bytes(content)
        sources.append((tmp_path / f"{i}.tar.gz", hashlib.sha256(content).hexdigest(), str(i).encode()))
    outcomes: list[bool] = []
    failures: list[FetchError] = []

    async def use(turn: int) -> None:
        path, digest, number = sources[turn % len(sources)]
        own = Cache(cache.root)
        try:
            fetched = await fetch(str(path), digest, own)
            with own.pin(digest):
                folder = await unpack(own, fetched)
                await asyncio.sleep(0.005)
                assert (folder / "number").read_bytes() == number
                assert (folder / "weights" / "model.data").read_bytes() == FILES["weights/model.data"]
            outcomes.append(True)
        except FetchError as error:
            failures.append(error)
            outcomes.append(False)

    async def evict() -> None:
        while len(outcomes) < 120:
            await asyncio.to_thread(Cache(cache.root).evict, [], 100 * KIB)
            await asyncio.sleep(0.002)

    evicting = [asyncio.create_task(evict()) for _ in range(2)]
    for turn in range(0, 120, 4):
        await asyncio.gather(*(use(turn + i) for i in range(4)))
    await asyncio.gather(*evicting)
    assert outcomes.count(True) > 60
    assert [error for error in failures if not error.temporary] == []
    cache.evict([], 0)
    assert cache.digests() == {}
    assert list((cache.root / "unpacked").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_making_room_needs_none(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", inodes=64) as disk:
        cache = Cache(disk / "cache")
        models = filled(cache, 3)
        fill(disk / "ballast")
        with contextlib.suppress(OSError):
            for i in range(64):
                (disk / f"inode{i}").touch()
        assert (os.statvfs(disk).f_bfree, os.statvfs(disk).f_ffree) == (0, 0)
        assert cache.evict([models[0].digest], 20 * KIB) == [models[1].digest]
        assert cache.remove(models[2].digest)


async def test_what_work_raises_after_its_caller_was_cancelled_is_not_reported_as_lost() -> None:
    begun, go = threading.Event(), threading.Event()
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def work() -> None:
        begun.set()
        go.wait(10)
        raise OSError(28, "No space left on device")

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(begun.wait, patience(10))
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []
