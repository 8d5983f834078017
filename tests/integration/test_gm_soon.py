"""How soon users read what has happened: how a service stands at once, counts once a second. In simulated time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from halimede.messages import TaskInfo
from halimede.names import Key
from tests.integration.gm_world import SERVICES, model, service, world
from tests.simulated import eventually, simulated

HELMET = Key(SERVICES, "default", "helmet")


@simulated
async def test_an_edit_that_all_nodes_have_taken_is_shown_at_once(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0"), w.node("cloud0"):
        await w.apply(model("small"), model("big"), service())
        await w.reaches("Running")
        await asyncio.sleep(10)
        began = asyncio.get_running_loop().time()
        edited = service()
        edited["spec"]["edgeWorker"]["hardExampleMining"]["parameters"] = [{"key": "threshold_margin", "value": "0.3"}]
        await w.apply(edited)
        await w.reaches("Running", generation=2)
        assert asyncio.get_running_loop().time() - began < 0.5


@simulated
async def test_counts_alone_are_shown_once_a_second(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as edge, w.node("cloud0"):
        await w.apply(model("small"), model("big"), service())
        await w.reaches("Running")
        await asyncio.sleep(10)
        w.statuses.clear()
        for number in range(50):
            edge.counts[HELMET] = TaskInfo(inference_number=number, edge_inference_number=number)
            edge.report(HELMET)
            await asyncio.sleep(0.1)
        assert 4 <= len(w.statuses) <= 7


@simulated
async def test_a_gm_that_comes_back_answers_each_sync_at_once(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.node("edge0") as edge, w.node("cloud0"):
        async with w.gm():
            await w.apply(model("small"), model("big"), service())
            await w.reaches("Running")
            await asyncio.sleep(5)
        edge.log.clear()
        began = asyncio.get_running_loop().time()
        async with w.gm():
            await eventually(lambda: bool(edge.sent("synced")))
            assert asyncio.get_running_loop().time() - began < 1.0
