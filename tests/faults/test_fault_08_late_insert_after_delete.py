"""Delete, then a late insert of the same uid: the tombstone wins, over restarts too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.integration.lc_world import HELMET, SMALL, World, model, service, world
from tests.simulated import eventually

pytestmark = pytest.mark.simulated


@pytest.mark.parametrize("late", [1, 2])
async def test_fault_08_late_insert_after_delete(tmp_path: Path, late: int) -> None:
    async with world(tmp_path, inserted=True) as node:
        await node.gm.insert(service(generation=2))
        await node.gm.delete(HELMET, "u1", 2)
        await node.gm.forgotten(HELMET)

        await node.gm.insert(service(generation=late))
        await node.connect_again()

        assert node.gm.held() == {("small", "uid-small", 1)}
        assert HELMET not in node.gm.statuses
        assert node.launcher.alive == []


async def test_fault_08_the_insert_may_come_first_to_a_node_that_never_held_it(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await node.gm.delete(HELMET, "u1", 1)
        await node.gm.insert(service())
        await node.connect_again()
        assert node.gm.held() == set()


async def test_fault_08_the_tombstone_survives_a_killed_controller(tmp_path: Path) -> None:
    node = World(tmp_path)
    async with node.gm.running():
        async with node.lc(killed=True):
            await node.gm.insert(service())
            await node.gm.reaches(HELMET, "Pending", "ModelNotFound")
            await node.gm.delete(HELMET, "u1", 1)
            await node.gm.forgotten(HELMET)
        async with node.lc():
            await node.gm.insert(service())
            await node.connect_again()
            assert node.gm.held() == set()


async def test_fault_08_what_only_had_no_place_here_may_come_back_in_the_same_generation(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await node.gm.insert(model(generation=4))
        await node.gm.reaches(SMALL, "Ready")
        await node.gm.delete(SMALL, "uid-small", 3)  # GM names the generation before: this one is not over
        await node.gm.forgotten(SMALL)
        await node.gm.insert(model(generation=4))
        await node.gm.reaches(SMALL, "Ready", generation=4)


async def test_fault_08_a_delete_that_is_repeated_is_acknowledged_again(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await node.gm.insert(model())
        await node.gm.reaches(SMALL, "Ready")
        for _ in range(2):
            node.gm.history.clear()
            await node.gm.delete(SMALL, "uid-small", 1)
            await eventually(lambda: any(status is None for _, _, status in node.gm.history))
            await asyncio.sleep(1)
