"""A gallery is bounded, forgets in order, and comes back after a stop, a kill, a full disk or a damaged file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from halimede.messages import Track
from halimede.multiedge.reid import EvictionLimits, Gallery
from halimede.multiedge.reid.gallery import FILE_NAME
from halimede.multiedge.reid.identity_eviction import IdentityRecord
from tests.unit.multiedge.reid.scene import LENGTH, looks, sighting

LOOKS = looks(200).astype(np.float32)


def opened(folder: Path, *, features: str = "", **limits: float) -> Gallery:
    gallery = Gallery(folder, EvictionLimits(**limits), features)  # type: ignore[arg-type]
    gallery.open()
    gallery.set_time(0.0)
    return gallery


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    return opened(tmp_path)


def meet(gallery: Gallery, number: int, *, times: int = 1, camera: str = "door") -> IdentityRecord:
    known = gallery.create()
    for _ in range(times):
        gallery.record(known, sighting(camera, 100.0 + number))
        gallery.learn(known, LOOKS[number])
    return known


def found(gallery: Gallery, number: int) -> str | None:
    (near,) = gallery.bank.nearest(LOOKS[number : number + 1], 1, 0.7)
    return next((known.id for known, similarity in near.items() if similarity > 0.9), None)


def test_somebody_is_known_again_by_any_of_the_vectors(gallery: Gallery) -> None:
    known = meet(gallery, 0)
    assert gallery.learn(known, LOOKS[1])
    assert found(gallery, 0) == found(gallery, 1) == known.id
    assert found(gallery, 2) is None


def test_what_tells_nothing_new_is_not_kept_and_the_bound_holds(tmp_path: Path) -> None:
    gallery = opened(tmp_path, vectors=3)
    known = meet(gallery, 0)
    assert not gallery.learn(known, LOOKS[0])
    for number in range(1, 20):
        assert gallery.learn(known, LOOKS[number])
        assert len(known.keys) <= 3
        gallery.flush()
    assert len(gallery.bank) == 3
    assert sorted(gallery.store.vectors()) == [(key, known.id) for key in sorted(known.keys)]


def test_beyond_the_bound_those_go_that_were_hardly_seen_then_the_oldest(tmp_path: Path) -> None:
    gallery = opened(tmp_path, identities=100)
    regular = [meet(gallery, n, times=2) for n in range(60)]
    noise = [meet(gallery, n) for n in range(60, 160)]
    assert len(gallery) == 100
    assert gallery.evicted == 60
    assert all(gallery.get(known.id) for known in regular)
    assert not any(gallery.get(known.id) for known in noise[:60])
    gallery.record(regular[1], sighting())
    for number in range(160, 200):
        meet(gallery, number, times=2)
    newest = [meet(gallery, n, times=2) for n in range(41)]
    assert gallery.get(regular[0].id) is None
    assert gallery.get(regular[1].id)
    assert all(gallery.get(known.id) for known in newest)
    assert len(gallery.bank) == 100


def test_who_is_not_seen_is_forgotten_with_everything_that_was_kept(tmp_path: Path) -> None:
    gallery = opened(tmp_path, ttl_s=100.0, passing_s=10.0)
    regular, passing = meet(gallery, 0, times=2), meet(gallery, 1)
    gallery.delete_and_store(9.0)
    assert len(gallery) == 2
    gallery.delete_and_store(11.0)
    assert gallery.get(passing.id) is None
    gallery.record(regular, sighting())
    gallery.delete_and_store(110.0)
    assert gallery.get(regular.id)
    gallery.delete_and_store(112.0)
    assert len(gallery) == len(gallery.bank) == 0
    assert gallery.expired == 2
    gallery.close()
    kept = sqlite3.connect(tmp_path / FILE_NAME)
    for table in ("identities", "vectors", "sightings"):
        assert kept.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    kept.close()


def test_nothing_is_written_of_who_was_forgotten_before_it_was(gallery: Gallery) -> None:
    gallery._forget(meet(gallery, 0))
    gallery.flush()
    assert not gallery.store.latest_ids("", 0, 1e12, 10)
    assert gallery.store._db.execute("SELECT count(*) FROM vectors").fetchone() == (0,)


def test_time_counts_while_it_runs_and_never_by_the_wall_clock(tmp_path: Path) -> None:
    gallery = opened(tmp_path, ttl_s=100.0)
    known = meet(gallery, 0, times=2)
    gallery.delete_and_store(60.0)
    gallery.close()
    # another boot: the monotonic clock begins elsewhere
    gallery = Gallery(tmp_path, EvictionLimits(ttl_s=100.0))
    gallery.open()
    gallery.delete_and_store(1_000_000.0)
    gallery.delete_and_store(1_000_039.0)
    assert gallery.get(known.id)
    gallery.delete_and_store(1_000_041.0)
    assert gallery.get(known.id) is None


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_restart_knows_everybody_again(tmp_path: Path, gallery: Gallery, how: str) -> None:
    people = [meet(gallery, n, times=2) for n in range(50)]
    if how == "stopped":
        gallery.close()
    else:
        gallery.flush()  # what the matcher does before it tells anybody
    again = opened(tmp_path)
    assert [found(again, n) for n in range(50)] == [known.id for known in people]
    one = again.get(people[7].id)
    assert (one.count, one.cameras, one.first) == (2, ("door",), 107.0)
    assert len(again.store.sightings(one.id, "", 0, 1e12, 10)) == 1


def test_a_kill_between_two_copies_of_the_graph_mixes_nobody_up(tmp_path: Path, gallery: Gallery) -> None:
    [meet(gallery, n, times=2) for n in range(20)]
    gallery.close()
    gallery = opened(tmp_path, identities=100)
    late = [meet(gallery, n, times=2) for n in range(20, 120)]  # the first twenty go
    gallery.flush()
    again = opened(tmp_path, identities=100)
    assert [found(again, n) for n in range(20)] == [None] * 20
    assert [found(again, n) for n in range(20, 120)] == [known.id for known in late]
    assert found(again, 150) is None
    assert meet(again, 150).id == found(again, 150)


def test_a_key_is_never_given_out_twice_however_often_it_is_killed(tmp_path: Path, gallery: Gallery) -> None:
    """The copy of the graph may be older than several lives: a key in it must mean what it meant."""
    people = [meet(gallery, n, times=2) for n in range(5)]
    gallery.close()
    gallery = opened(tmp_path)
    last = gallery.get(people[4].id)
    assert last is not None
    gallery._forget(last)
    gallery.flush()
    gallery = opened(tmp_path)
    new = meet(gallery, 10, times=2)
    gallery.flush()
    again = opened(tmp_path)
    assert found(again, 10) == new.id
    assert found(again, 4) is None


def test_a_full_disk_is_waited_for(tmp_path: Path, gallery: Gallery) -> None:
    meet(gallery, 0, times=2)
    assert gallery.flush()
    pages = gallery.store._db.execute("PRAGMA page_count").fetchone()[0]
    gallery.store._db.execute(f"PRAGMA max_page_count = {pages}")
    people = [meet(gallery, n, times=2) for n in range(1, 100)]
    assert not gallery.flush()
    gallery.delete_and_store(5.0)
    assert gallery.unsaved >= 2
    assert found(gallery, 50) == people[49].id
    gallery.store._db.execute("PRAGMA max_page_count = 1000000")
    gallery.delete_and_store(10.0)
    again = opened(tmp_path)
    assert [found(again, n) for n in range(1, 100)] == [known.id for known in people]


@pytest.mark.parametrize("damage", ["garbage", "another program's", "vectors"])
def test_a_damaged_file_is_put_aside_and_begun_anew(tmp_path: Path, gallery: Gallery, damage: str) -> None:
    meet(gallery, 0, times=2)
    gallery.close()
    path = tmp_path / FILE_NAME
    if damage == "garbage":
        path.write_bytes(b"this is no database " * 1000)
    else:
        db = sqlite3.connect(path)
        db.execute("DROP TABLE identities" if damage != "vectors" else "UPDATE vectors SET vector = x'00ff00'")
        db.execute("CREATE TABLE identities (other)" if damage != "vectors" else "DELETE FROM sightings")
        db.commit()
        db.close()
        for graph in tmp_path.glob("*.usearch"):
            graph.unlink()
    again = opened(tmp_path)
    assert len(again) == 0
    assert (tmp_path / f"{FILE_NAME}.corrupt-1").exists()
    known = meet(again, 1, times=2)
    again.close()
    assert found(opened(tmp_path), 1) == known.id


def test_other_features_begin_anew(tmp_path: Path) -> None:
    gallery = opened(tmp_path, features="v1")
    meet(gallery, 0, times=2)
    gallery.close()
    assert len(opened(tmp_path, features="v1")) == 1
    assert len(opened(tmp_path, features="v2")) == 0


def test_sightings_are_bounded_and_thinned(tmp_path: Path) -> None:
    gallery = opened(tmp_path, sightings=10, every_s=1.0)
    known = meet(gallery, 0)
    for tenth in range(1, 300):
        gallery.set_time(tenth / 10)
        gallery.record(known, sighting("door", 100 + tenth / 10))
    gallery.flush()
    kept = gallery.store.sightings(known.id, "", 0, 1e12, 1000)
    assert len(kept) == 10
    assert [round(seen.time) for seen in kept] == list(range(129, 119, -1))
    assert known.count == 300


def test_a_standby_follows_and_comes_to_know_everybody(tmp_path: Path) -> None:
    first, standby = opened(tmp_path / "a"), opened(tmp_path / "b")
    people = [meet(first, n, times=3, camera="yard") for n in range(30)]
    told = list(first.snapshot())
    assert len(told) == 30
    assert all(standby.follow(track) for track in told)
    assert not any(standby.follow(track) for track in told)  # told twice
    assert [found(standby, n) for n in range(30)] == [known.id for known in people]
    one = standby.get(people[0].id)
    assert (one.count, one.cameras) == (3, ("yard",))


def test_a_standby_takes_nothing_that_cannot_be_used(tmp_path: Path) -> None:
    standby = opened(tmp_path)
    meet(standby, 0)
    for embedding in (b"", bytes(2 * LENGTH), b"\0\x3c" * (LENGTH + 1)):
        assert not standby.follow(Track(identity="x", sighting=sighting(), embedding=embedding))
    assert len(standby) == 1
