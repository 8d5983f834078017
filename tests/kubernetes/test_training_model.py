"""A training on Kubernetes: its pods, the progress that nodes report, and the version of the Model."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.api import parse
from halimede.api.trainingmodel import run_of
from halimede.messages import TensorFile, TrainingProgress, WorkerReport
from halimede.names import Key
from tests.integration.gm_world import dataset, model
from tests.kubernetes.apiserver import Api
from tests.kubernetes.world import PATIENCE, World, world
from tests.simulated import eventually

PLURAL = "trainingmodels"
AGGREGATOR, TRAINER = (f"digits-deployment-training-{name}" for name in ("aggregator", "edge0"))
FILE = TensorFile(digest="d" * 64, size=1000)


def training(w: World, **spec: Any) -> dict[str, Any]:
    def template(node: str) -> dict[str, Any]:
        return {"spec": {"nodeName": node, "containers": [{"name": "worker", "image": "halimede/worker"}]}}

    return {
        "apiVersion": "sedna.io/v1alpha1",
        "kind": "TrainingModel",
        "metadata": {"name": "digits"},
        "spec": {
            "model": {"name": "small"},
            "aggregator": {"template": template(w.cloud)},
            "trainers": [{"name": "edge0", "dataset": {"name": "frames"}, "template": template(w.edge)}],
            "rounds": 3,
            **spec,
        },
    }


async def reaches(w: World, phase: str, reason: str = "", *, version: str = "sedna.io/v1alpha1") -> Any:
    return await w.reaches(phase, reason, name="digits", plural=PLURAL, version=version)


async def samples(w: World) -> None:
    body = dataset("frames")
    body["spec"] |= {"url": "/data/frames", "nodeName": w.edge}
    await w.apply(body)


@pytest.mark.parametrize("group", ["sedna.io/v1alpha1", "ai.kubeedge.io/v1alpha1"])
async def test_a_training_runs_as_pods_and_its_model_gets_a_version(api: Api, group: str) -> None:
    async with world(api) as w, w.gm() as gm, w.node(w.edge) as edge, w.node(w.cloud) as cloud:
        assert gm.manager is not None
        await samples(w)
        await w.apply(model("small"), training(w) | {"apiVersion": group})
        await reaches(w, "Running", version=group)
        made = await w.made("Deployment", TRAINER)
        assert made["spec"]["strategy"] == {"type": "Recreate"}
        owner = made["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["apiVersion"]) == ("TrainingModel", group)
        key = Key(PLURAL, w.namespace, "digits")
        uid = (await w.find("digits", PLURAL, group) or {})["metadata"]["uid"]
        run = f"{uid}.{run_of(parse(training(w) | {'metadata': {'name': 'digits'}}).spec)}"

        def report(**progress: Any) -> None:
            told = TrainingProgress(**{"run": run, "rounds": 3, **progress})
            cloud.overrides["aggregator"] = WorkerReport(
                name=f"digits.aggregator-training-{w.cloud}", role="cloud", part="aggregator", phase="Running",
                training=told,
            )  # fmt: skip
            cloud.report(key)

        report(state="open", round=2, metrics={"accuracy": 0.7}, evaluated=2)

        async def shown() -> bool:
            found = await w.status("digits", PLURAL, group)
            return (found.get("training") or {}).get("round") == 2

        await eventually(shown, PATIENCE)
        # GM of this test has no store of files: as if it had fetched the model
        gm.manager._plane.files.states[FILE.digest] = ""
        report(state="done", round=3, metrics={"accuracy": 0.9}, evaluated=4, reason="RoundsDone", model=FILE)
        status = await reaches(w, "Done", "RoundsDone", version=group)
        small = await w.find("small", "models")
        assert small is not None
        assert small["spec"]["targetVersion"] == status["training"]["version"] == "digits-dddddddddddd"
        assert small["spec"]["versions"][-1]["url"] == f"bus://gm/sha256/{FILE.digest}"
        assert small["spec"]["url"] == model("small")["spec"]["url"]

        async def gone() -> bool:
            return await w.object("Deployment", AGGREGATOR) is None and await w.object("Deployment", TRAINER) is None

        await eventually(gone, PATIENCE)
        await eventually(lambda: key not in cloud.holds and key not in edge.holds, PATIENCE)
        await w.delete("digits", PLURAL, group)

        async def deleted() -> bool:
            return await w.find("digits", PLURAL, group) is None

        await eventually(deleted, PATIENCE)


async def test_a_folder_that_is_not_allowed_is_a_condition_and_heals(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        body = dataset("frames")
        body["spec"] |= {"url": "/secret/frames", "nodeName": w.edge}
        await w.apply(body, model("small"), training(w))
        status = await reaches(w, "Pending", "HostPathNotAllowed")
        assert "spec.trainers[0].dataset.name" in status["conditions"][-1]["message"]
        await samples(w)
        await reaches(w, "Running")


async def test_a_federated_job_of_sedna_runs_as_pods(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await samples(w)
        spec = training(w)["spec"]
        job = {
            "apiVersion": "sedna.io/v1alpha1",
            "kind": "FederatedLearningJob",
            "metadata": {"name": "digits"},
            "spec": {
                "aggregationWorker": {"model": {"name": "small"}, "template": spec["aggregator"]["template"]},
                "trainingWorkers": [{"dataset": {"name": "frames"}, "template": spec["trainers"][0]["template"]}],
            },
        }
        await w.apply(model("small"), job)
        await w.reaches("Running", name="digits", plural="federatedlearningjobs")
        made = await w.made("Deployment", "digits-deployment-training-trainer0")
        assert made["metadata"]["ownerReferences"][0]["kind"] == "FederatedLearningJob"
