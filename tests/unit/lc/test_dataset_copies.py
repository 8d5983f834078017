"""Copies of a Dataset of another node: only changes travel, a copy is replaced as a whole, and any end is survived."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections import Counter, namedtuple
from pathlib import Path

import msgspec
import pytest

from halimede.datasets import DatasetError
from halimede.datasets.listing import ListedFile, Listing, write_listing
from halimede.models import Cache, Fetched, FetchError, FetchReason
from halimede.names import Key
from services.lc.dataset_copies import DATA, DatasetCopies, SharedFiles
from services.lc.planning.resource_state import RequiredFile

pytestmark = pytest.mark.simulated

KEY = Key("datasets", "default", "frames")
Disk = namedtuple("Disk", "total used free")


class Source:
    """The node that has the data, and the copies of another one."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "source"
        self.data.mkdir()
        self.files: dict[str, Path] = {}
        self.fetched = Counter[str]()
        self.bytes = 0
        self.told: list[tuple[int, int]] = []
        self.absent: Counter[str] = Counter()
        self.root = folder / "copies"
        self.shared = SharedFiles()
        self.copies = DatasetCopies(self.root, self._fetch, lambda _want, _digest: 1, self.shared)
        self._listing = folder / "source.listing"

    def write(self, **files: str) -> None:
        for name, text in files.items():
            path = self.data / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def listed(self, path: Path | None = None) -> RequiredFile:
        digest = write_listing(path or self.data, self._listing, lambda *_: None)
        found = {hashlib.sha256(p.read_bytes()).hexdigest(): p for p in self.data.rglob("*") if p.is_file()}
        self.files = {**found, digest: self._listing}
        return RequiredFile(KEY, "u", 1, f"bus://edge0/sha256/{digest}", sha256=digest, format="txt", source="edge0")

    async def _fetch(self, want: RequiredFile, digest: str, cache: Cache) -> Fetched:
        assert want.source == "edge0"
        await asyncio.sleep(0.01)
        if self.absent[digest] > 0 or digest not in self.files:
            self.absent[digest] -= 1
            raise FetchError(FetchReason.NOT_FOUND, "not yet", temporary=True)
        path = cache.path(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.files[digest], path)
        self.fetched[self.files[digest].name] += 1
        self.bytes += path.stat().st_size
        return Fetched(path, digest, path.stat().st_size)

    async def bring(self, want: RequiredFile) -> dict[str, str]:
        """Copy; return the copied files with their content."""
        self.fetched.clear()
        path = await self.copies.update(want, lambda files, size, _: self.told.append((files, size)))
        if path.is_file():
            return {path.name: path.read_text()}
        return {str(p.relative_to(path)): p.read_text() for p in path.rglob("*") if p.is_file()}


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


async def test_a_copy_has_all_files_and_only_a_changed_one_comes_again(source: Source) -> None:
    source.write(a="1", sub__b="2", empty="", same="1")
    assert await source.bring(source.listed()) == {"a": "1", "sub/b": "2", "empty": "", "same": "1"}
    assert source.fetched.total() == 3  # the listing, and each content once
    assert source.told[-1] == (4, 3)
    source.write(sub__b="changed")
    (source.data / "a").rename(source.data / "moved")
    assert await source.bring(source.listed()) == {"moved": "1", "sub/b": "changed", "empty": "", "same": "1"}
    assert set(source.fetched) == {"b", "source.listing"}
    (source.data / "same").unlink()
    assert set(await source.bring(source.listed())) == {"moved", "sub/b", "empty"}
    assert set(source.fetched) == {"source.listing"}


async def test_a_copy_that_is_complete_is_not_touched_and_a_damaged_file_is_brought_again(source: Source) -> None:
    source.write(a="1", b="2")
    want = source.listed()
    await source.bring(want)
    before = (source.root / "default/frames" / DATA).resolve().stat().st_mtime_ns
    await source.bring(want)
    assert not source.fetched
    assert (source.root / "default/frames" / DATA).resolve().stat().st_mtime_ns == before
    damaged = source.root / "default/frames" / DATA / "a"
    damaged.chmod(0o644)
    damaged.write_text("x")
    assert await source.bring(want) == {"a": "1", "b": "2"}
    assert set(source.fetched) == {"a"}


async def test_the_present_copy_stays_until_the_next_one_is_complete(source: Source) -> None:
    source.write(a="1", b="2")
    await source.bring(source.listed())
    source.write(a="3", b="4")
    want = source.listed()
    source.absent[hashlib.sha256(b"4").hexdigest()] = 10**6
    task = asyncio.create_task(source.bring(want))
    await asyncio.sleep(30)
    present = source.root / "default/frames" / DATA
    assert (present / "a").read_text() + (present / "b").read_text() == "12"
    task.cancel()
    await asyncio.wait([task])
    source.absent.clear()
    # what had come is here, and nothing else is brought
    assert await source.bring(want) == {"a": "3", "b": "4"}
    assert set(source.fetched) == {"b"}


async def test_a_dataset_of_one_file_is_copied_as_one(source: Source) -> None:
    source.write(train="1", other="2")
    assert await source.bring(source.listed(source.data / "train")) == {"train": "1"}


async def test_received_files_are_shared_at_once_and_changed_ones_are_not(source: Source) -> None:
    source.write(a="1", b="2")
    want = source.listed()
    one, two = (hashlib.sha256(text).hexdigest() for text in (b"1", b"2"))
    source.absent[two] = 10**6
    task = asyncio.create_task(source.bring(want))
    await asyncio.sleep(5)
    assert await source.shared.find(want.sha256)
    found = await source.shared.find(one)
    assert found.read_text() == "1"
    assert await source.shared.find(two) is None
    source.absent.clear()
    await task
    found = await source.shared.find(two)
    os.utime(found, (1, 1))
    assert await source.shared.find(two) is None
    source.shared.drop(KEY)
    assert await source.shared.find(one) is None


async def test_a_copy_without_room_says_how_much_is_missing_and_takes_none(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.write(a="1" * 1000)
    want = source.listed()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(10**9, 10**9, 10**6))
    with pytest.raises(FetchError, match=r"MB of files do not fit into 0 MB below .*: free space there") as caught:
        await source.bring(want)
    assert (caught.value.reason, caught.value.temporary) == (FetchReason.DISK_FULL, True)
    assert set(source.fetched) == {"source.listing"}
    monkeypatch.undo()
    assert await source.bring(want) == {"a": "1" * 1000}


async def test_a_listing_that_leads_out_of_the_folder_is_refused(source: Source, tmp_path: Path) -> None:
    evil = msgspec.json.encode(Listing(files=[ListedFile("../../evil", 1, hashlib.sha256(b"1").hexdigest())]))
    source.write(a="1")
    source.listed()
    digest = hashlib.sha256(evil).hexdigest()
    source.files[digest] = tmp_path / "evil.listing"
    source.files[digest].write_bytes(evil)
    want = RequiredFile(KEY, "u", 1, "", sha256=digest, source="edge0")
    with pytest.raises(DatasetError, match="only paths below a folder are"):
        await source.bring(want)
    assert not list(tmp_path.rglob("evil"))


async def test_copies_of_datasets_that_are_gone_are_removed(source: Source) -> None:
    source.write(a="1")
    await source.bring(source.listed())
    source.copies.tidy([KEY])
    assert (source.root / "default/frames" / DATA / "a").exists()
    source.copies.tidy([])
    assert not (source.root / "default/frames").exists()
