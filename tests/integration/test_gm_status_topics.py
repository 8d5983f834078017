"""What stands on the retained status topics: what is there, at once, and nothing of what is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from halimede.messages import Status, StatusDocument
from halimede.topics import STATUS
from services.gm.cluster.local import LocalCluster
from services.gm.status_topics import RETAINED_S
from tests.integration.gm_world import SERVICES, World, model, service, world
from tests.simulated import eventually

pytestmark = pytest.mark.simulated


def document(name: str) -> StatusDocument:
    return StatusDocument(
        api_version="sedna.io/v1alpha1",
        kind="JointInferenceService",
        namespace="default",
        name=name,
        uid="of an earlier life",
        generation=1,
        status=Status(),
    )


async def test_a_gm_that_starts_clears_what_an_earlier_one_has_left_of_what_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as on an API server, where nothing is ever lost
    monkeypatch.setattr(LocalCluster, "complete", True)
    async with world(tmp_path) as w:
        async with w.gm():
            await w.apply(model("small"))
            await eventually(lambda: w.status("small", "models") is not None)
        left = STATUS.at(ns="default", plural=SERVICES, name="helmet")
        await w.operator.publish(left, document("helmet"))
        async with w.gm():
            await eventually(lambda: w.status() is None, 2 * RETAINED_S)
            assert w.status("small", "models") is not None


async def test_a_gm_whose_store_may_have_been_lost_clears_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.operator.publish(STATUS.at(ns="default", plural=SERVICES, name="helmet"), document("helmet"))
        async with w.gm():
            await asyncio.sleep(2 * RETAINED_S)
            assert w.status() is not None


async def test_an_edit_that_all_nodes_have_taken_is_shown_at_once(w: World) -> None:
    await asyncio.sleep(10)
    began = asyncio.get_running_loop().time()
    parameters = [{"key": "threshold_margin", "value": "0.3"}]
    await w.apply(service(edge_worker={"hardExampleMining": {"name": "Margin", "parameters": parameters}}))
    await w.reaches("Running", generation=2)
    assert asyncio.get_running_loop().time() - began < 0.5


async def test_a_gm_that_comes_back_answers_each_sync_at_once(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.node("edge0") as edge, w.node("cloud0"):
        async with w.gm():
            await w.deploy()
            await asyncio.sleep(5)
        edge.log.clear()
        began = asyncio.get_running_loop().time()
        async with w.gm():
            await eventually(lambda: bool(edge.sent("synced")))
            assert asyncio.get_running_loop().time() - began < 1.0
