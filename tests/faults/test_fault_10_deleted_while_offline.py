"""A service is deleted while a node is away: its sync removes it there, and nothing of it stays on the bus."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from halimede.bus.memory import MemoryBroker, MemoryBus
from services.lc.app import Config, LocalController
from services.lc.models.preparer import plain
from tests.integration import gm_world
from tests.integration.lc_world import FakeLauncher, fetch_at_once
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = pytest.mark.simulated


@asynccontextmanager
async def lc(broker: MemoryBroker, node: str, home: Path, launcher: FakeLauncher) -> AsyncIterator[None]:
    """Run the real LC inside the block; leaving it is as if it had been killed: its workers go on."""
    bus = MemoryBus(f"lc.{node}", broker)
    controller = LocalController(Config(node, home, "unused"), bus, launcher=launcher, install=plain(fetch_at_once))
    task = asyncio.create_task(controller.run(asyncio.Event()))
    try:
        await bus.wait_connected(patience(10))
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def deleted_while_offline(folder: Path) -> AsyncIterator[tuple[gm_world.World, FakeLauncher]]:
    """GM, and what runs on a node that is away since before its service was deleted."""
    edge, cloud = FakeLauncher(), FakeLauncher()
    async with gm_world.world(folder) as world, world.gm(), lc(world.broker, "cloud0", folder, cloud):
        async with lc(world.broker, "edge0", folder, edge):
            await world.apply(gm_world.model("small"), gm_world.model("big"), gm_world.service())
            await eventually(lambda: edge.alive and cloud.alive)
        assert edge.alive, "edge autonomy: the worker goes on without its LC"
        await world.ask("delete", plural=gm_world.SERVICES, namespace="default", name="helmet")
        await eventually(lambda: world.status() is None and not cloud.alive)
        yield world, edge


async def test_fault_10_deleted_while_offline(tmp_path: Path) -> None:
    async with deleted_while_offline(tmp_path) as (world, edge):
        assert (await world.ask("get", plural=gm_world.SERVICES, namespace="default", name="helmet")).error
        assert edge.alive, "nobody could tell it yet"
        async with lc(world.broker, "edge0", tmp_path, edge):
            await eventually(lambda: not edge.alive)
            topic = "node/edge0/default/sedna/upstream/jointinferenceservices/helmet/status"
            await eventually(lambda: world.broker.retained_payload(topic) is None)
            assert world.status() is None


async def test_fault_10_deleted_and_created_again_while_offline(tmp_path: Path) -> None:
    async with deleted_while_offline(tmp_path) as (world, edge):
        first = edge.alive[0].record.uid
        await world.apply(gm_world.service())
        async with lc(world.broker, "edge0", tmp_path, edge):
            await eventually(lambda: [p for p in edge.alive if p.record.uid != first])
            await eventually(lambda: len(edge.alive) == 1)
