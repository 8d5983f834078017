"""The room that a node's models take: what is deleted goes, what is in use stays, and the bound is kept."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from halimede.models import Cache, fetch
from halimede.names import Key
from services.lc.models.cache_janitor import EVICT_PERIOD_S, RETRY_S, SETTLE_S, CacheChanges, CacheJanitor
from services.lc.planning.resource_state import Preparation, RequiredFile
from tests.simulated import eventually

pytestmark = pytest.mark.simulated


class Node:
    """A cache with models of 1,000 bytes each, what is wanted of them, and what runs."""

    def __init__(self, folder: Path, most: int = 10_000) -> None:
        self.folder = folder
        self.cache = Cache(folder / "cache")
        self.wanted: dict[str, Path] = {}
        self.running: Collection[Path | str] | None = ()
        self.missing: list[Path] = []
        self.changes = CacheChanges(self.cache)
        self.janitor = CacheJanitor(
            self.cache,
            self.changes,
            lambda: list(self.wanted.values()),
            lambda: self.running,
            self.missing.append,
            max_bytes=most,
        )

    async def bring(self, name: str) -> Preparation:
        source = self.folder / name
        source.write_bytes(name.encode().ljust(1000))
        fetched = await fetch(str(source), "", self.cache)
        self.wanted[name] = fetched.path
        self.changes.record_addition()
        want = RequiredFile(Key("models", "default", name), "u1", 1, str(source))
        return Preparation(want, "Ready", "", path=fetched.path)

    def there(self, name: str) -> bool:
        return self.cache.path(hashlib.sha256(name.encode().ljust(1000)).hexdigest()).exists()

    def leave(self, preparation: Preparation, *, for_good: bool) -> None:
        del self.wanted[preparation.required.key.name]
        self.changes.record_release(preparation, for_good=for_good)

    @asynccontextmanager
    async def tidied(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.janitor.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


async def settle(seconds: float = 0.0) -> None:
    """Long enough for one round, whose file work is done in a thread."""
    await asyncio.sleep(SETTLE_S + seconds + 1)
    for _ in range(50):
        await asyncio.sleep(0.01)


async def test_a_deleted_model_goes_at_once_and_a_replaced_one_stays(tmp_path: Path) -> None:
    node = Node(tmp_path)
    deleted, replaced = await node.bring("deleted"), await node.bring("replaced")
    async with node.tidied():
        node.leave(deleted, for_good=True)
        node.leave(replaced, for_good=False)
        await eventually(lambda: not node.there("deleted"))
        assert node.there("replaced")


@pytest.mark.parametrize("removal", ["remove", "evict"])
async def test_what_is_wanted_again_while_it_is_removed_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removal: str
) -> None:
    """Given a training that is deleted and applied again, the archive of its class is needed again within a second."""
    node = Node(tmp_path, most=0 if removal == "evict" else 10_000)
    model = await node.bring("model")
    remove = getattr(node.cache, removal)

    def found_meanwhile(*given: Any) -> Any:
        node.wanted["model"] = model.path
        return remove(*given)

    monkeypatch.setattr(node.cache, removal, found_meanwhile)
    async with node.tidied():
        node.leave(model, for_good=removal == "remove")
        await eventually(lambda: node.missing)
    assert node.missing == [model.path]
    assert not model.path.exists()


async def test_what_a_worker_runs_stays_until_it_does_not(tmp_path: Path) -> None:
    node = Node(tmp_path)
    model = await node.bring("model")
    node.running = [model.path]
    async with node.tidied():
        node.leave(model, for_good=True)
        await settle()
        assert node.there("model")
        node.running = [model.path.name]
        await settle(RETRY_S)
        assert node.there("model")
        node.running = None
        await settle(RETRY_S)
        assert node.there("model"), "it is not known what runs"
        node.running = ()
        await eventually(lambda: not node.there("model"))


async def test_what_another_model_still_wants_stays(tmp_path: Path) -> None:
    node = Node(tmp_path)
    model = await node.bring("model")
    async with node.tidied():
        node.wanted["other"] = node.wanted["model"]
        node.leave(model, for_good=True)
        await settle(RETRY_S)
        assert node.there("model")


async def test_over_the_bound_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    node = Node(tmp_path, most=2500)
    brought = [await node.bring(name) for name in ("first", "second", "third")]
    async with node.tidied():
        await settle()
        assert all(map(node.there, ("first", "second", "third"))), "what is wanted stays, whatever its size"
        node.leave(brought[0], for_good=False)
        node.leave(brought[1], for_good=False)
        await eventually(lambda: not node.there("first"))
        await settle()
        assert node.there("second")
        assert node.there("third")


async def test_what_others_have_brought_is_bounded_too(tmp_path: Path) -> None:
    node = Node(tmp_path, most=1500)
    async with node.tidied():
        for name in ("first", "second"):
            (tmp_path / name).write_bytes(name.encode().ljust(1000))
            await fetch(str(tmp_path / name), "", node.cache)
        await settle()
        assert node.there("first")
        await asyncio.sleep(EVICT_PERIOD_S)
        await eventually(lambda: not node.there("first"))
        assert node.there("second")
