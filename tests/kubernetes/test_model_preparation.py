"""Models that name nodes: their local controllers prepare them before any pod needs them."""

from __future__ import annotations

import pytest

from tests.integration.gm_world import MODELS, model
from tests.kubernetes.apiserver import Api
from tests.kubernetes.world import PATIENCE, world
from tests.simulated import eventually

pytestmark = pytest.mark.slow


async def test_nodes_that_a_model_names_prepare_it_before_any_service(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge) as edge, w.node(w.cloud) as cloud:
        small = w.key("small", MODELS)
        await w.apply(model("small", nodeSelector={"pool": "edge"}))  # a label of the Node object
        status = await w.reaches("Ready", "OnAllNodes", name="small", plural=MODELS)
        assert [(node["node"], node["phase"]) for node in status["nodes"]] == [(w.edge, "Ready")]
        assert small in edge.holds
        assert small not in cloud.holds
        await w.apply(model("small", nodeName=w.cloud))
        await w.reaches("Ready", name="small", plural=MODELS, generation=2)
        await eventually(lambda: small in cloud.holds and small not in edge.holds, PATIENCE)
