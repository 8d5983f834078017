"""The node's memory over restarts, on real SQLite files."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from halimede.bus.ordering import MAX_INTEGER, SequenceNumber
from halimede.errors import HalimedeError
from halimede.names import Key
from services.lc import store as store_module
from services.lc.deferred_writer import is_disk_full
from services.lc.paths import Worker
from services.lc.store import NodeResource, NodeStore, ProcessRecord, ResourceVersion
from tests.unit.gm.test_store import overwrite, overwrite_log, overwrite_pages

KEY, OTHER = Key("models", "default", "small"), Key("models", "default", "big")
RECORD = ProcessRecord("default", "w", "default/jointinferenceservices/s", "u1", "edge", "hash", 7, 99, "boot")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "nodes" / "edge0" / "store.db"


def execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)


def held(uid: str = "u1", generation: int = 1, key: Key = KEY) -> NodeResource:
    return NodeResource(key, uid, generation, {"spec": {"url": "/ä"}, "n": 1.5})


def test_what_was_stored_is_there_after_a_restart(path: Path) -> None:
    with NodeStore(path) as store:
        assert store.gm_epoch == 0
        store.put(held(generation=4))
        store.put_process(RECORD)
        for epoch in (7, 3):
            store.record_gm_epoch(epoch)
            assert store.gm_epoch == 7, "it never falls"
    with NodeStore(path) as store:
        assert (store.resources, store.processes()) == ({KEY: held(generation=4)}, [RECORD])
        assert (store.gm_epoch, store.complete) == (7, True)
        store.process_ended(Worker("default", "w"))
        assert store.processes() == []


def test_an_epoch_that_no_clock_explains_is_forgotten_at_the_next_start(path: Path) -> None:
    with NodeStore(path) as store:
        store.put(held(), SequenceNumber(2**48, 5))
        store.record_gm_epoch(2**48)
    execute(path, f"REPLACE INTO numbers VALUES ('presence epoch', {2**48})")
    with NodeStore(path) as store:
        assert store.gm_epoch == 0
        assert not store.message_order.has_later(KEY, SequenceNumber(1, 1))
        assert time.time() <= store.next_presence_epoch() < 2**32


def test_presence_epochs_grow_within_a_run_and_over_restarts(path: Path) -> None:
    seen = []
    for _ in range(3):
        with NodeStore(path) as store:
            seen += [store.next_presence_epoch() for _ in range(150)]
    assert seen == sorted(set(seen))


def test_presence_epochs_grow_when_the_store_is_lost(path: Path) -> None:
    with NodeStore(path) as store:
        before = store.next_presence_epoch()
    path.unlink()
    with NodeStore(path) as store:
        assert store.next_presence_epoch() >= before


def test_another_uid_of_the_same_name_buries_the_old_one_for_good(path: Path) -> None:
    with NodeStore(path) as store:
        store.put(held("u1"))
        store.put(held("u2"))
        assert store.resources[KEY].uid == "u2"
        store.put_tombstone(ResourceVersion("u1", 5), KEY)
        assert (store.tombstone("u1"), store.tombstone("u2")) == (MAX_INTEGER, None)


def test_tombstones_are_bounded_and_the_newest_stay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_TOMBSTONES", 3)
    with NodeStore(path) as store:
        for i in range(5):
            store.put_tombstone(ResourceVersion(f"u{i}", 1), KEY)
        store.put_tombstone(ResourceVersion("u2", 2), KEY)
        assert [i for i in range(5) if store.tombstone(f"u{i}")] == [2, 3, 4]


def test_a_dropped_resource_leaves_a_farewell_until_that_is_done(path: Path) -> None:
    with NodeStore(path) as store:
        store.put(held())
        store.drop(KEY)
        assert store.resources == {}
    with NodeStore(path) as store:
        assert set(store.uncleared) == {KEY}
        store.remove_uncleared(KEY)
    with NodeStore(path) as store:
        assert set(store.uncleared) == set()


def test_a_resource_that_comes_back_needs_no_farewell(path: Path) -> None:
    with NodeStore(path) as store:
        store.add_uncleared(KEY)
        store.put(held())
        assert set(store.uncleared) == set()
    with NodeStore(path) as store:
        assert set(store.uncleared) == set()


def fill_with_text(path: Path) -> None:
    path.write_bytes(b"this is no database" * 1000)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def spoil_json(path: Path) -> None:
    execute(path, "UPDATE resources SET body = '{'")


def change_schema(path: Path) -> None:
    path.unlink()
    execute(path, "CREATE TABLE resources (id INTEGER PRIMARY KEY, title TEXT)")


@pytest.mark.parametrize("damage", [fill_with_text, overwrite_pages, truncate, spoil_json, change_schema])
def test_a_damaged_file_is_put_aside_and_the_node_starts_empty(damage: Callable[[Path], None], path: Path) -> None:
    with NodeStore(path) as store:
        for i in range(200):
            store.put(held(key=Key("models", "default", f"m{i}")))
    damage(path)
    with NodeStore(path) as store:
        assert store.resources == {}
        assert not store.complete
        assert "store.db.corrupt-1" in store.put_aside
        store.put(held())
    assert path.with_name("store.db.corrupt-1").exists()
    with NodeStore(path) as store:
        assert store.resources == {KEY: held()}
        assert not store.complete, "started again before GM has spoken, it knows no more"
        assert store.put_aside == ""
        store.complete = True
    with NodeStore(path) as store:
        assert store.complete


def test_only_a_node_that_never_ran_a_worker_is_complete_from_the_start(path: Path) -> None:
    with NodeStore(path) as store:
        assert store.complete
        first = store.identity
    (path.parent / "workers").mkdir()
    for part in path.parent.glob("store.db*"):
        part.unlink()
    with NodeStore(path) as store:
        assert not store.complete
        assert store.identity != first
        first = store.identity
    with NodeStore(path) as store:
        assert store.identity == first


def test_a_folder_that_cannot_be_used_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "store.db").mkdir()
    with pytest.raises(HalimedeError, match=r"store\.db cannot be used"), NodeStore(tmp_path / "store.db"):
        pass


def test_a_store_of_a_newer_version_is_left_as_it_is(path: Path) -> None:
    with NodeStore(path):
        pass
    execute(path, "PRAGMA user_version = 99")
    with pytest.raises(HalimedeError, match="newer"), NodeStore(path):
        pass
    assert not path.with_name("store.db.corrupt-1").exists()


def remove(path: Path) -> None:
    for part in path.parent.iterdir():
        part.unlink()


@pytest.mark.parametrize("look", [True, False], ids=["found by a look", "found by a write"])
@pytest.mark.parametrize("damage", [remove, overwrite, overwrite_log, overwrite_pages], ids=lambda each: each.__name__)
def test_a_store_that_is_lost_while_in_use_is_begun_anew_with_all_that_is_known(
    path: Path, damage: Callable[[Path], None], look: bool
) -> None:
    with NodeStore(path) as store:
        store.put(held(), SequenceNumber(3, 5))
        store.put_tombstone(ResourceVersion("u0", 4), KEY, SequenceNumber(3, 6))
        store.add_uncleared(Key("models", "default", "gone"))
        store.put_process(RECORD)
        store.record_gm_epoch(7)
        before = (store.identity, store.next_presence_epoch())
        assert store.trouble() == ""
        damage(path)
        if look or damage is not remove:  # SQLite's cache hides from a write what was overwritten
            assert "store.db.corrupt-1" in store.trouble()
        store.put(held("u2", key=Key("models", "default", "big")), SequenceNumber(3, 7))
        assert "store.db.corrupt-1" in store.put_aside
        store.check()
    with NodeStore(path) as store:
        assert set(store.resources) == {KEY, Key("models", "default", "big")}
        assert (store.tombstone("u0"), store.gm_epoch, store.identity) == (4, 7, before[0])
        assert store.next_presence_epoch() > before[1]
        assert store.message_order.has_later(KEY, SequenceNumber(3, 5))
        assert store.complete
        assert set(store.uncleared) == {Key("models", "default", "gone")}
        if damage is remove:
            assert store.processes() == [RECORD]


def test_what_a_lost_store_cannot_keep_is_not_held(path: Path) -> None:
    with NodeStore(path) as store:
        store.put(held())
        shutil.rmtree(path.parent)
        path.parent.write_text("in the way")
        for _ in range(2):
            with pytest.raises(sqlite3.Error):
                store.put(held("u2", key=Key("models", "default", "big")))
            assert "cannot be written" in store.trouble()
        assert set(store.resources) == {KEY}
        path.parent.unlink()
        store.trouble()
        store.put(held("u2", key=Key("models", "default", "big")))
    with NodeStore(path) as store:
        assert len(store.resources) == 2


def test_the_check_of_an_idle_store_writes_nothing_to_its_disk(path: Path) -> None:
    with NodeStore(path) as store:
        store.put(held())
        files = (path, path.with_name("store.db-wal"))
        before = [(file.read_bytes(), file.stat().st_mtime_ns) for file in files]
        for _ in range(10):
            assert store.trouble() == ""
        assert [(file.read_bytes(), file.stat().st_mtime_ns) for file in files] == before


@pytest.mark.parametrize(
    ("disk", "words"),
    [
        ({"f_bfree": 3, "f_bavail": 3}, "cannot be written: database or disk is full"),
        ({"f_flag": os.ST_RDONLY}, "cannot be written: its file system is read-only"),
        ({"f_blocks": 0, "f_bfree": 0, "f_bavail": 0}, ""),
    ],
    ids=["full", "read-only", "without a size"],
)
def test_the_check_of_an_idle_store_finds_a_disk_that_refuses_writes(
    path: Path, monkeypatch: pytest.MonkeyPatch, disk: dict[str, int], words: str
) -> None:
    writable = {"f_blocks": 1000, "f_bfree": 900, "f_bavail": 900, "f_frsize": 4096, "f_flag": 0}
    with NodeStore(path) as store:
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**{**writable, **disk}))
        assert words in store.trouble()
        assert bool(store.trouble()) is bool(words)
        monkeypatch.undo()
        assert store.trouble() == ""


def test_an_error_that_room_would_not_mend_is_not_taken_for_a_full_disk() -> None:
    for code, full in (
        (sqlite3.SQLITE_FULL, True),
        (sqlite3.SQLITE_IOERR_WRITE, True),
        (sqlite3.SQLITE_IOERR_FSYNC, False),
        (sqlite3.SQLITE_IOERR_SHORT_READ, False),
    ):
        error = sqlite3.OperationalError()
        error.sqlite_errorcode = code
        assert is_disk_full(error) is full


def test_a_second_damaged_file_is_kept_beside_the_first(path: Path) -> None:
    for number in (1, 2):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no database %d" % number * 1000)
        with NodeStore(path):
            pass
        assert path.with_name(f"store.db.corrupt-{number}").read_bytes().startswith(b"no database %d" % number)
