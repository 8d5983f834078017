"""A store that is removed or overwritten while GM or LC runs: named in `status`, begun anew, nothing lost by it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.control import Control

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def removed(store: Path) -> None:
    for part in store.parent.glob(f"{store.name}*"):
        if not part.name.endswith(".lock"):
            part.unlink()


def overwritten(store: Path) -> None:
    """All pages of the file and of its log, in place."""
    for part in (store, store.with_name(f"{store.name}-wal")):
        with part.open("r+b") as file:
            file.write(os.urandom(part.stat().st_size))


def pages_overwritten(store: Path) -> None:
    """All pages but the first, after the log has been merged."""
    with contextlib.closing(sqlite3.connect(store)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = store.stat().st_size
    assert size > 4096
    with store.open("r+b") as file:
        file.seek(4096)
        file.write(bytes(size - 4096))


DAMAGES = pytest.mark.parametrize("damage", [removed, overwritten, pages_overwritten], ids=lambda each: each.__name__)
Damage = Callable[[Path], None]


@DAMAGES
async def test_fault_28_a_manager_whose_store_is_lost_while_it_runs_begins_a_new_one(
    plane: Control, damage: Damage
) -> None:
    gm, lc = plane.gm_process(), plane.lc_process()
    store = plane.home / "gm" / "store.db"
    await plane.start_services("helmet")
    assert (await plane.ask("drain", name="edge0")).error is None
    assert (await plane.ask("uncordon", name="edge0")).error is None
    await plane.running("helmet")
    before = plane.workers()
    await plane.status_is_well()

    damage(store)
    shown = await plane.status_names("gm", "store.db.corrupt-1")
    assert "remove" in shown
    assert plane.workers() == before
    # what is acknowledged from now on is kept
    await plane.apply(plane.service("another"))
    await plane.running("helmet", "another")
    gm.kill()
    gm = plane.gm_process()
    assert await plane.stored("helmet")
    assert await plane.stored("another")
    assert (await plane.node()).unknown == []
    assert before.items() <= plane.workers().items()
    assert await plane.events("StoreQuarantined")
    store.with_name("store.db.corrupt-1").unlink()
    await plane.status_is_well()
    assert not gm.says("Traceback"), gm.log.read_text()
    assert (await gm.stop(), await lc.stop()) == (0, 0)


async def test_fault_28_an_edit_is_acknowledged_only_where_it_is_kept(plane: Control) -> None:
    """At once, not after the next look at the store."""
    gm = plane.gm_process()
    await plane.apply(*plane.models())
    removed(plane.home / "gm" / "store.db")
    reply = await plane.ask("apply", object=plane.service("helmet"))
    gm.kill()
    gm = plane.gm_process()
    assert await plane.stored("helmet") or (reply.error is not None and "removed or replaced" in reply.error.message)


async def test_fault_28_a_manager_without_its_store_names_what_nodes_hold(plane: Control) -> None:
    gm, lc = plane.gm_process(), plane.lc_process()
    await plane.start_services("helmet", "another")
    before = plane.workers()
    gm.kill()
    shutil.rmtree(plane.home / "gm")
    gm = plane.gm_process()
    await plane.status_names("node/edge0", "lost with its store", "default/jointinferenceservices/helmet", "another")
    doctor = await plane.halimede("doctor")
    assert "lost with its store" in doctor.stdout
    assert plane.workers() == before, "nothing that runs is deleted"
    # what the operator does about it
    await plane.apply(*plane.models(), plane.service("helmet"))
    await plane.delete("another")
    await plane.running("helmet")
    await plane.until(lambda: not plane.workers("another"))
    await plane.status_is_well()
    assert (await gm.stop(), await lc.stop()) == (0, 0)


@DAMAGES
async def test_fault_28_a_node_whose_store_is_lost_while_it_runs_begins_a_new_one(
    plane: Control, damage: Damage
) -> None:
    gm, lc = plane.gm_process(), plane.lc_process()
    store = plane.home / "nodes" / "edge0" / "store.db"
    await plane.start_services("helmet")
    before = plane.workers()
    await plane.status_is_well()
    assert await gm.stop() == 0  # nobody fills the new one but the node itself

    damage(store)
    await plane.until(lambda: store.with_name("store.db.corrupt-1").exists() and store.exists())
    await asyncio.sleep(1)
    lc.kill()
    lc = plane.lc_process()
    await plane.until(lambda: lc.log.read_text().count("worker adopted") == 2)
    assert plane.workers() == before
    gm = plane.gm_process()
    await plane.status_names("node/edge0", "store.db.corrupt-1")
    await plane.apply(plane.service("another"))
    await plane.running("helmet", "another")
    assert before.items() <= plane.workers().items()
    store.with_name("store.db.corrupt-1").unlink()
    await plane.status_is_well()
    assert not lc.says("Traceback"), lc.log.read_text()
    assert (await gm.stop(), await lc.stop()) == (0, 0)
