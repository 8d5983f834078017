"""Two groups, one plural: the seed's form beside Sedna's."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.api.base import NEPTUNE
from tests.integration.gm_world import model
from tests.kubernetes.apiserver import Api
from tests.kubernetes.world import World, shipped, world

pytestmark = pytest.mark.slow

EDGE, CLOUD = "helmet-deployment-edge", "helmet-deployment-cloud"
MODELS = [model(name, url=f"https://models.example/{name}.onnx") for name in ("small", "big")]


async def worker_secrets(api: Api) -> None:
    """The Secrets of workers' credentials for the broker, as an operator creates them in each namespace."""
    for role in ("edge", "cloud"):
        body = {"metadata": {"name": f"halimede-{role}-worker"}, "stringData": {"username": role, "password": "x"}}
        await api.client.create("Secret", api.namespace, body)


def condition(status: dict[str, Any]) -> dict[str, Any]:
    return status["conditions"][-1]


async def test_the_seeds_own_form_runs_on_the_overlay_for_scripts_and_is_named_in_its_own_group(api: Api) -> None:
    def worker(name: str, small: str, node: str) -> dict[str, Any]:
        return {
            "name": name,
            "model": {"name": small},
            "nodeName": node,
            "workerSpec": {
                "scriptDir": "/code",
                "scriptBootFile": f"{name}.py",
                "frameworkType": "tensorflow",
                "frameworkVersion": "1.18",
                "parameters": [{"key": "nms_threshold", "value": "0.6"}],
            },
        }

    async with world(api, **shipped("overlays/scripts")) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        edge = worker("edgeworker", "small", w.edge) | {"hardExampleAlgorithm": {"name": "IBT"}}
        body = {
            "apiVersion": NEPTUNE,
            "kind": "JointInferenceService",
            "metadata": {"name": "helmet"},
            "spec": {"edgeWorker": edge, "cloudWorker": worker("work", "big", w.cloud)},
        }
        await worker_secrets(api)
        await w.apply(*MODELS, body)
        await w.reaches("Running", version=NEPTUNE)
        made = await w.made("Deployment", EDGE)
        assert made["metadata"]["ownerReferences"][0]["apiVersion"] == NEPTUNE
        container = made["spec"]["template"]["spec"]["containers"][0]
        assert (container["image"], container["command"]) == ("halimede/worker:0.1.0", ["python3", "edgeworker.py"])


async def test_without_that_overlay_the_condition_names_the_folder_to_open(api: Api) -> None:
    async with world(api, **shipped("base")) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await worker_secrets(api)
        await w.apply(*MODELS, neptune(w))
        status = await w.reaches("Pending", "HostPathNotAllowed", version=NEPTUNE)
        assert "/code" in condition(status)["message"]


async def test_the_second_of_one_name_in_the_other_group_is_left_alone_until_the_first_goes(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await w.apply_all()
        await w.reaches("Running")
        second = neptune(w)
        await w.apply(second)
        status = await w.reaches("Failed", "NameConflict", version=NEPTUNE)
        assert "sedna.io" in condition(status)["message"]
        assert (await w.status())["phase"] == "Running"
        await w.delete()
        await w.reaches("Running", version=NEPTUNE)


def neptune(w: World, name: str = "helmet") -> dict[str, Any]:
    spec = {"scriptDir": "/code", "scriptBootFile": "run.py", "frameworkType": "tensorflow", "frameworkVersion": "1.18"}
    edge = {
        "name": "e", "model": {"name": "small"}, "nodeName": w.edge, "workerSpec": spec,
        "hardExampleAlgorithm": {"name": "IBT"},
    }  # fmt: skip
    cloud = {"name": "c", "model": {"name": "big"}, "nodeName": w.cloud, "workerSpec": spec}
    return {
        "apiVersion": NEPTUNE,
        "kind": "JointInferenceService",
        "metadata": {"name": name},
        "spec": {"edgeWorker": edge, "cloudWorker": cloud},
    }
