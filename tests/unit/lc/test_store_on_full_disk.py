"""A node's store on a full disk: what is new is known at once, and written as soon as there is room."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from halimede.bus.ordering import SequenceNumber
from halimede.names import Key
from services.lc import deferred_writer
from services.lc.store import NodeResource, NodeStore, ResourceVersion
from tests.unit.lc.test_store import KEY, OTHER, RECORD


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "nodes" / "edge0" / "store.db"


def large(key: Key = KEY, generation: int = 1, uid: str = "u1") -> NodeResource:
    return NodeResource(key, uid, generation, {"kind": "Model", "spec": {"url": "x" * 20_000}})


@contextmanager
def full(store: NodeStore) -> Iterator[None]:
    """SQLite may take no more pages than it has, and says what it says on a full disk."""
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    yield
    store._db.execute("PRAGMA max_page_count = 100000")


def test_what_is_new_on_a_full_disk_is_known_and_written_later(path: Path) -> None:
    with NodeStore(path) as store:
        store.put(large(OTHER, uid="o"), SequenceNumber(1, 1))
        with full(store):
            store.put(large(), SequenceNumber(1, 2))
            store.put(large(generation=2), SequenceNumber(1, 3))
            store.put_tombstone(ResourceVersion("o", 7), OTHER, SequenceNumber(1, 4))
            store.drop(OTHER)
            store.record_gm_epoch(9)
            store.complete = False
            store.put_process(RECORD)
            _has_what_is_new(store)
            with pytest.raises(sqlite3.OperationalError, match="full"):
                store.check()
        with NodeStore(path) as another:  # as an LC that was killed finds it
            assert another.resources == {OTHER: large(OTHER, uid="o")}
        store.check()
    with NodeStore(path) as store:
        _has_what_is_new(store)
        assert store.processes() == [RECORD]


def _has_what_is_new(store: NodeStore) -> None:
    assert store.resources == {KEY: large(generation=2)}
    assert (store.tombstone("o"), store.gm_epoch, store.complete) == (7, 9, False)
    assert (store.uncleared, store.message_order.has_later(KEY, SequenceNumber(1, 2))) == ({OTHER}, True)


def test_the_next_write_that_finds_room_takes_all_with_it(path: Path) -> None:
    with NodeStore(path) as store:
        with full(store):
            store.put(large())
        store.put(large(OTHER))
    with NodeStore(path) as store:
        assert set(store.resources) == {KEY, OTHER}


def test_what_is_owed_to_a_full_disk_has_a_bound(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred_writer, "MAX_DEFERRED", 4)
    with NodeStore(path) as store, full(store):
        store.put(large())
        store.put(large(generation=2))
        with pytest.raises(sqlite3.OperationalError):
            store.put(large(generation=3))
        assert store.resources == {KEY: large(generation=2)}
