"""Two groups, one plural: the seed's form beside Sedna's."""

from __future__ import annotations

import pytest

from halimede.api.base import NEPTUNE
from tests.integration.gm_world import model
from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import Body
from tests.kubernetes.world import EDGE, World, message, running_service, shipped, world

pytestmark = pytest.mark.slow

MODELS = [model(name, url=f"https://models.example/{name}.onnx") for name in ("small", "big")]


def neptune(edge: str, cloud: str, name: str = "helmet") -> Body:
    """A service in the seed's own form."""

    def worker(called: str, used: str, node: str) -> Body:
        spec = {
            "scriptDir": "/code", "scriptBootFile": f"{called}.py", "frameworkType": "tensorflow",
            "frameworkVersion": "1.18", "parameters": [{"key": "nms_threshold", "value": "0.6"}],
        }  # fmt: skip
        return {"name": called, "model": {"name": used}, "nodeName": node, "workerSpec": spec}

    mined = worker("edgeworker", "small", edge) | {"hardExampleAlgorithm": {"name": "IBT"}}
    kind = {"apiVersion": NEPTUNE, "kind": "JointInferenceService", "metadata": {"name": name}}
    return {**kind, "spec": {"edgeWorker": mined, "cloudWorker": worker("work", "big", cloud)}}


async def applied(w: World) -> None:
    """Apply it with the Secrets of workers' credentials, as an operator creates them in each namespace."""
    await w.worker_secrets()
    await w.apply(*MODELS, neptune(w.edge, w.cloud))


async def test_the_seeds_own_form_runs_on_the_overlay_for_scripts_and_is_named_in_its_own_group(api: Api) -> None:
    async with world(api, **shipped("overlays/scripts")) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await applied(w)
        await w.reaches("Running", version=NEPTUNE)
        made = await w.made("Deployment", EDGE)
        assert made["metadata"]["ownerReferences"][0]["apiVersion"] == NEPTUNE
        container = made["spec"]["template"]["spec"]["containers"][0]
        assert (container["image"], container["command"]) == ("halimede/worker:0.1.0", ["python3", "edgeworker.py"])


async def test_without_that_overlay_the_condition_names_the_folder_to_open(api: Api) -> None:
    async with world(api, **shipped("base")) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await applied(w)
        assert "/code" in message(await w.reaches("Pending", "HostPathNotAllowed", version=NEPTUNE))


async def test_the_second_of_one_name_in_the_other_group_is_left_alone_until_the_first_goes(api: Api) -> None:
    async with running_service(api) as (w, _, _):
        await w.apply(neptune(w.edge, w.cloud))
        assert "sedna.io" in message(await w.reaches("Failed", "NameConflict", version=NEPTUNE))
        assert (await w.status())["phase"] == "Running"
        await w.delete()
        await w.reaches("Running", version=NEPTUNE)
