"""What a service names and there is not: a condition that says so, and heals."""

from __future__ import annotations

import pytest

from tests.integration.gm_world import dataset, model
from tests.kubernetes.apiserver import Api
from tests.kubernetes.podstates import pending, running
from tests.kubernetes.world import EDGE, message, world

pytestmark = pytest.mark.slow


async def test_a_missing_model_is_a_condition_and_heals(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await w.apply(model("big"), w.service())
        assert "small" in message(await w.reaches("Pending", "ModelNotFound"))
        assert await w.object("Deployment", EDGE) is None
        await w.apply(model("small"))
        await w.reaches("Running")


async def test_a_missing_dataset_is_a_condition_and_heals(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await w.apply_all(w.service(dataset={"name": "frames"}))
        await w.reaches("Pending", "DatasetNotFound")
        await w.apply(dataset("frames"))
        await w.reaches("Running")


async def test_a_missing_node_is_a_condition_and_heals(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        late = api.unique("late")
        w.player.behave(pending, EDGE)
        await w.apply_all(w.service(edge=late))
        assert late in message(await w.reaches("Pending", "NodeNotFound"))
        await api.node(late)
        w.player.behave(running, EDGE)
        await w.reaches("Running")


async def test_a_missing_secret_is_a_condition_and_heals(api: Api) -> None:
    async with world(api, credentials=True) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await w.apply_all()
        assert "halimede-edge-worker" in message(await w.reaches("Pending", "SecretNotFound"))
        await w.worker_secrets()
        await w.reaches("Running")
