"""The store: Kubernetes' rules of editing, in one SQLite file that outlives crashes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.api import parse
from halimede.messages import NodeStatus, Presence, Status
from halimede.names import Key
from services.gm.cluster.local import LocalCluster
from services.gm.cluster.port import ConflictError, Memory, NodeReport, StoredResource
from services.gm.cluster.sqlite_file import SCHEMA_VERSION, Database, StoreError
from services.gm.cluster.store import EVENT_SLACK, MAX_EVENTS, ResourceStore
from tests.integration.gm_world import model, service
from tests.properties import examples
from tests.unit.gm.workloads.world import neptune_form

SMALL = Key("models", "default", "small")


@contextmanager
def opened(path: Path) -> Iterator[ResourceStore]:
    with Database(path) as database:
        yield ResourceStore(database)


def edited(body: dict[str, Any], **metadata: Any) -> Any:
    return parse({**body, "metadata": {**body["metadata"], **metadata}})


def test_a_created_resource_has_an_identity_and_comes_back_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path / "store.db") as store:
        applied = store.apply(None, parse(model("small")))
        assert applied.outcome == "created"
        meta = applied.stored.resource.metadata
        assert (len(meta.uid), meta.generation, meta.namespace) == (36, 1, "default")
        assert meta.creation_timestamp
        store.write_statuses({SMALL: Status(phase="Ready")})
    with opened(tmp_path / "store.db") as store:
        assert store.load() == [StoredResource(applied.stored.resource, Status(phase="Ready"))]


def test_an_edit_of_something_that_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "store.db") as store:
        first = store.apply(None, parse(model("small"))).stored
        second = store.apply(first, edited(model("small", labels=["a"]), resourceVersion=first.resource_version)).stored
        with pytest.raises(ConflictError, match="get it again"):
            store.apply(second, edited(model("small", labels=["b"]), resourceVersion=first.resource_version))
        # the answer to the first edit was lost, and the client asks again
        again = edited(model("small", labels=["a"]), resourceVersion=first.resource_version)
        assert store.apply(second, again).outcome == "unchanged"
        with pytest.raises(ConflictError, match="gone"):
            store.apply(None, edited(model("small"), resourceVersion=first.resource_version))


def test_what_only_the_server_sets_cannot_be_set_by_an_edit(tmp_path: Path) -> None:
    with opened(tmp_path / "store.db") as store:
        first = store.apply(None, edited(model("small"), uid="mine", generation=77, creationTimestamp="1970")).stored
        assert first.uid != "mine"
        assert first.resource.metadata.generation == 1
        assert store.apply(first, edited(model("small"), uid="other")).outcome == "unchanged"


def test_two_groups_cannot_share_a_name(tmp_path: Path) -> None:
    with opened(tmp_path / "store.db") as store:
        first = store.apply(None, parse(service())).stored
        with pytest.raises(ConflictError, match=r"NameConflict: default/jointinferenceservices/helmet .* sedna\.io"):
            store.apply(first, parse(neptune_form()))


APPLIES = st.tuples(st.just("apply"), st.integers(0, 2), st.sampled_from(["", "a", "b"]))
OTHERS = st.tuples(st.sampled_from(["delete", "reopen"]), st.just(0), st.just(""))
STEPS = st.lists(st.one_of(APPLIES, OTHERS), max_size=25)


@examples(50)
@given(STEPS)
def test_identity_follows_the_history_of_edits_whatever_it_is(steps: list[tuple[str, int, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        store, have = stack.enter_context(opened(Path(folder) / "store.db")), None
        versions, uids = set[str](), set[str]()
        for what, label, text in steps:
            if what == "reopen":
                stack.close()
                store = stack.enter_context(opened(Path(folder) / "store.db"))
            elif what == "delete":
                if have:
                    marked = store.mark_deleted(have)
                    assert marked.deleting
                    assert store.mark_deleted(marked) is marked
                    with pytest.raises(ConflictError, match="being deleted"):
                        store.apply(marked, parse(model("small")))
                    store.remove(SMALL, have.uid, have.resource.metadata.generation)
                    have = None
            else:
                applied = store.apply(have, edited(model("small", labels=[str(label)]), annotations={"note": text}))
                _check(have, applied.outcome, applied.stored, versions, uids)
                have = applied.stored
            assert store.load() == ([have] if have else [])


def _check(old: StoredResource | None, outcome: str, new: StoredResource, versions: set[str], uids: set[str]) -> None:
    if outcome == "unchanged":
        assert old == new
        return
    assert new.resource_version not in versions
    versions.add(new.resource_version)
    if old is None:
        assert outcome == "created"
        assert new.uid not in uids
        assert new.resource.metadata.generation == 1
    else:
        respecified = old.resource.spec != new.resource.spec
        assert (new.uid, new.resource.metadata.creation_timestamp) == (
            old.uid,
            old.resource.metadata.creation_timestamp,
        )
        assert new.resource.metadata.generation == old.resource.metadata.generation + respecified
    uids.add(new.uid)


def test_a_repeated_event_is_counted_and_old_ones_go(tmp_path: Path) -> None:
    with opened(tmp_path / "store.db") as store:
        for _ in range(3):
            store.add_event("Warning", "Failed", "a", "exit 1")
            store.add_event("Normal", "Other", "b", "fine")
        events = store.events(0, "", 10)
        assert [(e.about, e.count) for e in events] == [("a", 3), ("b", 3)]
        seen = events[-1].sequence
        store.add_event("Warning", "Failed", "a", "exit 1")
        assert [e.count for e in store.events(seen, "a", 10)] == [4], "who follows sees it once more"
        for n in range(MAX_EVENTS + 2 * EVENT_SLACK):
            store.add_event("Normal", "Flood", "c", str(n))
        assert MAX_EVENTS <= len(store.events(0, "", 10**6)) <= MAX_EVENTS + EVENT_SLACK
        assert [e.message for e in store.events(0, "", 2)] == [str(n) for n in (MAX_EVENTS + 198, MAX_EVENTS + 199)]


def test_reports_and_nodes_are_remembered_and_unreadable_ones_left_out(tmp_path: Path) -> None:
    status = NodeStatus(phase="Ready", uid="u", observed_generation=1)
    report = NodeReport(SMALL, "edge0", status, live=False, edge=True)
    presence = Presence(node="edge0", epoch=3, online=True, labels={"a": "b"})
    with opened(tmp_path / "store.db") as store:
        store.remember([report], [presence])
        store.remember([report], [presence])
    with Database(tmp_path / "store.db") as database:
        database.connection.execute("INSERT INTO nodes VALUES ('x', '{}')")
        assert ResourceStore(database).recall() == Memory(reports=(report,), nodes=(presence,))
        ResourceStore(database).remove(SMALL, "u", 1)
        assert ResourceStore(database).recall().reports == ()


def test_the_epoch_rises_at_every_start_even_if_the_file_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gm" / "store.db"
    clock = 1000
    monkeypatch.setattr("time.time", lambda: clock)
    seen = []
    for lose in ("", "", "file", "", "folder", ""):
        with Database(path) as database:
            seen.append(database.epoch)
            assert database.lost, "whoever made a new store cannot know what was there before"
        if lose == "file":
            clock = 10  # set back: the copy of the epoch counts
            path.unlink()
        elif lose == "folder":
            clock = 2000
            shutil.rmtree(path.parent)
    assert seen == [1001, 1002, 1003, 1004, 1005, 2001]


@pytest.mark.parametrize("damage", ["garbage", "torn"])
def test_a_damaged_file_is_moved_aside_and_kept(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "store.db"
    for round_ in (1, 2):
        with opened(path) as store:
            for n in range(200):
                store.apply(None, parse(model(f"m{n}", labels=["x" * 100])))
        content = path.read_bytes()
        path.write_bytes(b"\x00" * 5000 if damage == "garbage" else content[: len(content) // 2])
        with opened(path) as store:
            assert store.load() == []
        assert (tmp_path / f"store.db.corrupt-{round_}").exists()


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with Database(path) as database:
        database.connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(StoreError, match="newer version"), Database(path):
        pass
    assert path.exists()


def test_a_resource_that_cannot_be_read_stops_the_start_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with Database(path) as database:
        store = ResourceStore(database)
        store.apply(None, parse(model("small")))
        database.connection.execute("UPDATE resources SET body = replace(body, 'sedna.io', 'other.io')")
        with pytest.raises(StoreError, match="default/models/small"):
            store.load()


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with Database(tmp_path / "store.db") as database:
        database.connection.execute("PRAGMA max_page_count = 1")
        store = ResourceStore(database)
        with pytest.raises(StoreError, match="cannot be written: database or disk is full"):
            store.apply(None, parse(model("small", labels=["x" * 100] * 1000)))
        assert database.connection.in_transaction is False


async def test_an_event_that_cannot_be_kept_stops_nothing(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path / "store.db") as cluster:
        cluster._database.connection.execute("PRAGMA max_page_count = 1")
        for number in range(1000):
            await cluster.record("Normal", "Flood", f"node/{number}", "x" * 1000)
        assert len(cluster.events(0, "", 10_000)) < 1000


def refuse(cluster: LocalCluster, *, refuse: bool) -> None:
    """Make SQLite refuse writes, as it does on a full disk."""
    cluster._database.connection.execute(f"PRAGMA query_only = {int(refuse)}")


async def test_statuses_go_on_from_memory_while_the_store_cannot_be_written_and_are_written_after(
    tmp_path: Path,
) -> None:
    async with LocalCluster(tmp_path / "store.db") as cluster:
        for name in ("small", "big"):
            await cluster.apply(parse(model(name)))
        refuse(cluster, refuse=True)
        for name, phase in (("small", "Pending"), ("big", "Failed"), ("small", "Ready")):
            key = Key("models", "default", name)
            stored = cluster.get(key)
            await cluster.write_status(stored, Status(phase=phase))
            assert cluster.get(key) == StoredResource(stored.resource, Status(phase=phase))
        with pytest.raises(StoreError, match="free space"):
            await cluster.remember(Memory(nodes=(Presence(node="edge0", epoch=1, online=True),)))
        with pytest.raises(StoreError, match="free space"):
            await cluster.apply(parse(model("third")))
        assert cluster.get(Key("models", "default", "third")) is None, "what was not kept is not acknowledged"
        refuse(cluster, refuse=False)
        assert "cannot be written" in cluster.check(), "the reports are still to be remembered"
        await cluster.remember(Memory())
        assert cluster.check() == ""
    with opened(tmp_path / "store.db") as store:
        assert {stored.key.name: stored.status for stored in store.load()} == {
            "small": Status(phase="Ready"), "big": Status(phase="Failed"),
        }  # fmt: skip


async def test_a_check_of_the_store_writes_only_after_a_write_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, key = tmp_path / "store.db-wal", Key("models", "default", "small")
    async with LocalCluster(tmp_path / "store.db") as cluster:
        await cluster.apply(parse(model("small")))
        written = log.read_bytes()
        assert cluster.check() == ""
        assert log.read_bytes() == written
        refuse(cluster, refuse=True)
        stored = cluster.get(key)
        await cluster.write_status(stored, Status(phase="Pending"))
        assert "cannot be written" in cluster.check()
        refuse(cluster, refuse=False)
        assert cluster.check() == ""
        assert log.read_bytes() != written, "the status that was only in memory"
        monkeypatch.setattr("halimede.system.sqlite.LEAST_FREE_BYTES", 2**62)
        assert "database or disk is full: free space" in cluster.check()


def remove(path: Path) -> None:
    shutil.rmtree(path.parent)


def overwrite(path: Path) -> None:
    overwrite_log(path)
    path.write_bytes(os.urandom(path.stat().st_size))


def overwrite_log(path: Path) -> None:
    """The log has what was written since the last checkpoint."""
    log = path.with_name(f"{path.name}-wal")
    log.write_bytes(os.urandom(log.stat().st_size))


def overwrite_pages(path: Path) -> None:
    """All but the first, which says that this is a database."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(bytes(path.stat().st_size - 4096))


@pytest.mark.parametrize("damage", [remove, overwrite, overwrite_log, overwrite_pages], ids=lambda each: each.__name__)
async def test_a_store_that_is_lost_while_in_use_is_begun_anew_from_memory(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "gm" / "store.db"
    async with LocalCluster(path) as cluster:
        stored = (await cluster.apply(parse(model("small")))).stored
        await cluster.write_status(stored, Status(phase="Ready"))
        await cluster.mark_drained("edge0", drained=True)
        before = (cluster.identity, cluster.epoch)
        await cluster.repair()
        assert cluster.quarantined == ""
        damage(path)
        if damage is remove:
            with pytest.raises(StoreError, match="removed or replaced"):
                await cluster.apply(parse(model("big")))
        await cluster.repair()
        assert "store.db.corrupt-1" in cluster.quarantined
        assert [e.reason for e in cluster.events(0, "gm", 10)] == ["StoreQuarantined"]
        assert (await cluster.apply(parse(model("big")))).outcome == "created"
        assert cluster.check() == ""
        await cluster.repair()
        assert "corrupt-2" not in cluster.quarantined
        advice = "another global manager uses the store .*: stop it, or give this one another folder with --store"
        with pytest.raises(StoreError, match=advice), Database(path):
            pass
    async with LocalCluster(path) as cluster:
        assert (cluster.identity, cluster.epoch) == (before[0], before[1] + 1)
        assert cluster.get(SMALL) == StoredResource(stored.resource, Status(phase="Ready"))
        assert cluster.get(Key("models", "default", "big"))
        assert (await cluster.recall()).drained == {"edge0"}


async def test_a_lost_store_that_cannot_be_begun_anew_is_named_until_it_can(tmp_path: Path) -> None:
    path = tmp_path / "gm" / "store.db"
    async with LocalCluster(path) as cluster:
        stored = (await cluster.apply(parse(model("small")))).stored
        shutil.rmtree(path.parent)
        path.parent.write_text("in the way")
        for _ in range(2):
            await cluster.repair()
            assert "no new one can be created" in cluster.check()
            assert len(cluster.check()) < 1000
        await cluster.write_status(stored, Status(phase="Ready"))
        with pytest.raises(StoreError, match="no new one can be created"):
            await cluster.apply(parse(model("big")))
        with pytest.raises(StoreError):
            cluster.events(0, "", 10)
        path.parent.unlink()
        await cluster.repair()
        assert cluster.check() == ""
    async with LocalCluster(path) as cluster:
        assert cluster.get(SMALL) == StoredResource(stored.resource, Status(phase="Ready"))


@pytest.mark.parametrize("place", ["store", "lock file"])
def test_an_epoch_that_no_clock_explains_is_not_counted_on_from(tmp_path: Path, place: str) -> None:
    path = tmp_path / "store.db"
    with Database(path) as database:
        before = database.epoch
        if place == "store":
            database.connection.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (2**48,))
    if place == "lock file":
        (tmp_path / "store.db.lock").write_text(f"{2**48:020d}\n")
    with Database(path) as database:
        assert before < database.epoch < 2**32


def test_a_store_that_cannot_be_opened_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "store.db").mkdir()
    with pytest.raises(StoreError, match=r"unable to open database file: .* give another folder with --store"):
        Database(tmp_path / "store.db").__enter__()
    (tmp_path / "gm").write_text("")
    with pytest.raises(StoreError, match=r"cannot be opened: .* give another folder with --store"):
        Database(tmp_path / "gm" / "store.db").__enter__()


def _apply_and_die(path: str) -> None:
    with opened(Path(path)) as store:
        store.apply(None, parse(model("small")))
        os.kill(os.getpid(), 9)


@pytest.mark.slow
def test_what_was_applied_survives_a_kill_and_the_lock_does_not(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    process = multiprocessing.get_context("spawn").Process(target=_apply_and_die, args=(str(path),))
    process.start()
    process.join(60)
    assert process.exitcode == -9
    with opened(path) as store:
        assert [stored.key for stored in store.load()] == [SMALL]
