"""A damaged store is put aside and said so, and the state comes back from whoever still has it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.control import Control
from tests.faults.test_fault_28_stores_lost_while_running import removed
from tests.integration.gm_world import SERVICES

pytestmark = pytest.mark.slow


def garbage(store: Path) -> None:
    store.write_bytes(b"this is no database " * 1000)


def truncated(store: Path) -> None:
    store.write_bytes(store.read_bytes()[: store.stat().st_size // 2])


def wrong_schema(store: Path) -> None:
    removed(store)
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
async def test_fault_24_a_damaged_store_of_an_lc_is_filled_again_by_gm(plane: Control, damage: Damage) -> None:
    async with plane.gm():
        store = plane.home / "nodes" / "edge0" / "store.db"
        async with plane.lc(killed=True):
            await plane.start_services("helmet")
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
async def test_fault_24_gm_with_a_damaged_store_deletes_nothing_that_runs(plane: Control, damage: Damage) -> None:
    async with plane.lc():
        store = plane.home / "gm" / "store.db"
        async with plane.gm():
            await plane.start_services("helmet", "forgotten")
        before = plane.workers()
        hurt(store, damage)
        async with plane.gm():
            assert store.with_name("store.db.corrupt-1").exists()
            (event,) = await plane.events("StoreQuarantined")
            assert (event.type, "store.db.corrupt-1" in event.message) == ("Warning", True)
            await plane.until(lambda: plane.events("Unknown", "helmet"))
            await asyncio.sleep(2)
            assert plane.workers() == before

            await plane.start_services("helmet")
            assert plane.workers("forgotten").items() <= before.items()
            reply = await plane.ask("delete", plural=SERVICES, namespace="default", name="forgotten")
            assert reply.outcome == "deleted"
            await plane.until(lambda: not plane.workers("forgotten"))
