"""Datasets on Kubernetes: the local controller of a node counts them, and their objects have the result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from halimede.bus.memory import MemoryBus
from services.lc.app import Config, LocalController
from tests.integration.gm_world import DATASETS, dataset
from tests.kubernetes.apiserver import Api
from tests.kubernetes.world import World, message, world

pytestmark = pytest.mark.slow


@asynccontextmanager
async def controller(w: World, folder: Path) -> AsyncIterator[Path]:
    """Run the local controller of the edge node as in its pod; folders of the node are mounted at the given path."""
    host = folder / "host"
    config = Config(w.edge, folder / "home", "memory", pods=True, host_root=host)
    stopping = asyncio.Event()
    run = LocalController(config, MemoryBus(f"lc.{w.edge}", w.broker)).run(stopping)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run)
        try:
            yield host
        finally:
            stopping.set()


async def test_a_dataset_is_counted_by_the_controller_of_its_node(api: Api, tmp_path: Path) -> None:
    async with world(api) as w, w.gm(), controller(w, tmp_path) as host:
        (host / "data").mkdir(parents=True)
        (host / "data" / "frames.csv").write_text("x,label\n1,cat\n2,dog\n3,dog\n")
        await w.apply(dataset("frames", url="/data/frames.csv", format="csv", nodeName=w.edge))
        status = await w.reaches("Ready", "Counted", name="frames", plural=DATASETS)
        assert status["numberOfSamples"] == 3
        assert [(each["name"], each["count"]) for each in status["dataset"]["classes"]] == [("dog", 2), ("cat", 1)]
        await w.apply(dataset("frames", url="/elsewhere/frames.csv", format="csv", nodeName=w.edge))
        status = await w.reaches("Failed", "HostPathNotMounted", name="frames", plural=DATASETS)
        assert f"mount /elsewhere of the node at {host}/elsewhere" in message(status)
        assert "dataset" not in status


async def test_a_dataset_of_a_node_without_a_controller_says_what_to_do(api: Api) -> None:
    async with world(api) as w, w.gm():
        await w.apply(dataset("frames", nodeName=w.cloud))
        status = await w.reaches("Pending", "NotCounted", name="frames", plural=DATASETS)
        assert "label the node halimede.io/node" in message(status)
