"""What a service names and there is not: a condition that says so, and heals."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.gm_world import dataset, model
from tests.kubernetes.apiserver import Api
from tests.kubernetes.podstates import pending, running
from tests.kubernetes.world import world

pytestmark = pytest.mark.slow

EDGE, CLOUD = "helmet-deployment-edge", "helmet-deployment-cloud"


def condition(status: dict[str, Any]) -> dict[str, Any]:
    return status["conditions"][-1]


async def test_a_missing_model_is_a_condition_and_heals(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await w.apply(model("big"), w.service())
        status = await w.reaches("Pending", "ModelNotFound")
        assert "small" in condition(status)["message"]
        assert await w.object("Deployment", EDGE) is None
        await w.apply(model("small"))
        await w.reaches("Running")


async def test_a_missing_dataset_is_a_condition_and_heals(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await w.apply(model("big"), model("small"), w.service(dataset={"name": "frames"}))
        await w.reaches("Pending", "DatasetNotFound")
        await w.apply(dataset("frames"))
        await w.reaches("Running")


async def test_a_missing_node_is_a_condition_and_heals(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        late = api.unique("late")
        w.player.behave(pending, EDGE)
        await w.apply(model("big"), model("small"), w.service(edge=late))
        status = await w.reaches("Pending", "NodeNotFound")
        assert late in condition(status)["message"]
        await api.node(late)
        w.player.behave(running, EDGE)
        await w.reaches("Running")


async def test_a_missing_secret_is_a_condition_and_heals(api: Api) -> None:
    async with world(api, credentials=True) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await w.apply_all()
        status = await w.reaches("Pending", "SecretNotFound")
        assert "halimede-edge-worker" in condition(status)["message"]
        for name in ("halimede-edge-worker", "halimede-cloud-worker"):
            body = {"metadata": {"name": name}, "stringData": {"username": "u", "password": "p"}}
            await api.client.create("Secret", w.namespace, body)
        await w.reaches("Running")
