"""What stands on the retained status topics: what is there, and nothing of what is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from halimede.messages import Status, StatusDocument
from halimede.topics import STATUS
from services.gm.cluster.local import LocalCluster
from services.gm.status_topics import RETAINED_S
from tests.integration.gm_world import SERVICES, model, world
from tests.simulated import eventually, simulated


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


@simulated
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


@simulated
async def test_a_gm_whose_store_may_have_been_lost_clears_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.operator.publish(STATUS.at(ns="default", plural=SERVICES, name="helmet"), document("helmet"))
        async with w.gm():
            await asyncio.sleep(2 * RETAINED_S)
            assert w.status() is not None
