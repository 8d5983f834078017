"""A damaged store is put aside and said so, and the state comes back from whoever still has it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.control import SERVICES, control

pytestmark = pytest.mark.slow


def garbage(store: Path) -> None:
    store.write_bytes(b"this is no database " * 1000)


def truncated(store: Path) -> None:
    store.write_bytes(store.read_bytes()[: store.stat().st_size // 2])


def wrong_schema(store: Path) -> None:
    for part in store.parent.glob(f"{store.name}*"):
        if not part.name.endswith(".lock"):
            part.unlink()
    with sqlite3.connect(store) as db:
        db.execute("CREATE TABLE resources (id INTEGER PRIMARY KEY, title TEXT)")
        db.execute("CREATE TABLE meta (id INTEGER PRIMARY KEY)")
    db.close()


DAMAGES = pytest.mark.parametrize("damage", [garbage, truncated, wrong_schema], ids=lambda each: each.__name__)
Damage = Callable[[Path], None]


def hurt(store: Path, damage: Damage) -> None:
    assert store.stat().st_size > 4096
    damage(store)


@DAMAGES
async def test_fault_24_a_damaged_store_of_an_lc_is_filled_again_by_gm(tmp_path: Path, damage: Damage) -> None:
    async with control(tmp_path) as plane, plane.gm():
        store = plane.home / "nodes" / "edge0" / "store.db"
        async with plane.lc(killed=True):
            await plane.apply(*plane.models(), plane.service("helmet"))
            await plane.running("helmet")
        before = plane.workers()
        hurt(store, damage)
        async with plane.lc():
            assert store.with_name("store.db.corrupt-1").exists()
            async with plane.converging():
                await plane.until(lambda: plane.events("DeadLetter", "client/lc.edge0"))
            event = (await plane.events("DeadLetter", "client/lc.edge0"))[0]
            assert "store.db.corrupt-1" in event.message
            await plane.running("helmet")
            assert plane.workers() == before, "its workers were taken over, not started again"
            await plane.delete("helmet")
            await plane.gone("helmet")


@DAMAGES
async def test_fault_24_gm_with_a_damaged_store_deletes_nothing_that_runs(tmp_path: Path, damage: Damage) -> None:
    async with control(tmp_path) as plane, plane.lc():
        store = plane.home / "gm" / "store.db"
        async with plane.gm():
            await plane.apply(*plane.models(), plane.service("helmet"), plane.service("forgotten"))
            await plane.running("helmet", "forgotten")
        before = plane.workers()
        hurt(store, damage)
        async with plane.gm():
            assert store.with_name("store.db.corrupt-1").exists()
            (event,) = await plane.events("StoreQuarantined")
            assert (event.type, "store.db.corrupt-1" in event.message) == ("Warning", True)
            await plane.until(lambda: plane.events("Unknown", "helmet"))
            await asyncio.sleep(2)
            assert plane.workers() == before

            await plane.apply(*plane.models(), plane.service("helmet"))
            await plane.running("helmet")
            assert plane.workers("forgotten").items() <= before.items()
            reply = await plane.ask("delete", plural=SERVICES, namespace="default", name="forgotten")
            assert reply.outcome == "deleted"
            await plane.until(lambda: not plane.workers("forgotten"))


async def test_fault_24_both_stores_damaged_at_once(tmp_path: Path) -> None:
    async with control(tmp_path) as plane:
        async with plane.gm(), plane.lc(killed=True):
            await plane.apply(*plane.models(), plane.service("helmet"))
            await plane.running("helmet")
        before = plane.workers()
        hurt(plane.home / "gm" / "store.db", garbage)
        hurt(plane.home / "nodes" / "edge0" / "store.db", garbage)
        async with plane.gm(), plane.lc():
            await plane.until(lambda: plane.events("StoreQuarantined"))
            await plane.apply(*plane.models(), plane.service("helmet"))
            await plane.running("helmet")
            assert set(plane.workers()) == set(before)
