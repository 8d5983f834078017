"""Services on Kubernetes that select their models, and what statuses of Models say there."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.messages import ModelFacts
from tests.integration.gm_world import MODELS, model
from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import Body
from tests.kubernetes.world import EDGE, PATIENCE, World, message, world
from tests.simulated import eventually

pytestmark = pytest.mark.slow


def measured(name: str, accuracy: str) -> Body:
    return model(name, task="detection", labels=["helmet"], metrics=[{"key": "accuracy", "value": accuracy}])


def selecting(w: World) -> Body:
    body = w.service()
    body["spec"]["edgeWorker"]["model"] = {"selector": {"task": "detection", "labels": ["helmet"]}}
    return body


async def model_url(w: World) -> Any:
    return (await w.variables(EDGE))["MODEL_URL"]


async def test_pods_get_the_best_model_that_fits_and_are_rolled_out_for_a_better_one(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge) as edge, w.node(w.cloud):
        await w.apply(model("big"), selecting(w))
        assert "task detection" in message(await w.reaches("Pending", "ModelNotFound"))
        await w.apply(measured("good", "0.8"), measured("poor", "0.7"))
        status = await w.reaches("Running")
        assert status["chosen"] == [{"worker": "edge", "model": "good", "changes": 1}]
        assert status["observedGeneration"] == 1
        assert await model_url(w) == "/home/data/models/good.onnx"
        await w.apply(measured("better", "0.9"))

        async def rolled() -> bool:
            return bool(await model_url(w) == "/home/data/models/better.onnx")

        await eventually(rolled, PATIENCE)
        await w.reaches("Running")
        await eventually(lambda: {key.name for key in edge.holds if key.plural == MODELS} == {"better"}, PATIENCE)


async def test_a_choice_is_kept_by_the_next_gm(api: Api) -> None:
    async with world(api) as w, w.node(w.edge), w.node(w.cloud):
        async with w.gm():
            await w.apply(model("big"), measured("a", "0.8"), selecting(w))
            await w.reaches("Running")
        async with w.gm():
            await w.apply(measured("b", "0.8"))  # as good: no reason to roll anything out
            await w.reaches("Running")
            assert await model_url(w) == "/home/data/models/a.onnx"


async def test_what_nodes_find_out_about_a_version_stands_in_the_models_status(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge) as edge, w.node(w.cloud):
        edge.facts[w.key("small", MODELS)] = ModelFacts(digest="a" * 64, size=10, since="2026-01-01T00:00:00Z")
        versions = [{"version": "1", "url": "/models/1.onnx"}, {"version": "2", "url": "/models/2.onnx"}]
        await w.apply(model("small", versions=versions, targetVersion="1"), model("big"), w.service())
        status = await w.reaches("Ready", name="small", plural=MODELS)
        assert status["model"]["digest"] == "a" * 64
        assert [(each["version"], each["url"]) for each in status["versions"]] == [("1", "/models/1.onnx")]
        assert await model_url(w) == "/home/data/models/1.onnx"
