"""A training on Kubernetes: its pods, the progress that nodes report, and the version of the Model."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.api import parse
from halimede.api.base import SEDNA
from halimede.api.trainingmodel import run_of
from halimede.messages import TensorFile, TrainingProgress, WorkerReport
from halimede.names import Key
from tests.integration.gm_world import FakeNode, dataset, model
from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import Body
from tests.kubernetes.world import PATIENCE, RunningGm, World, message, world
from tests.simulated import eventually

PLURAL = "trainingmodels"
AGGREGATOR, TRAINER = (f"digits-deployment-training-{name}" for name in ("aggregator", "edge0"))
FILE = TensorFile(digest="d" * 64, size=1000)


def training(w: World, name: str = "digits", trainer: Body | None = None, **spec: Any) -> Body:
    """A training with an aggregator in the cloud and a trainer, of which more may be said, at the edge."""

    def template(node: str) -> Body:
        return {"spec": {"nodeName": node, "containers": [{"name": "worker", "image": "halimede/worker"}]}}

    edge = {"name": "edge0", "dataset": {"name": "frames"}, "template": template(w.edge), **(trainer or {})}
    parts = {"aggregator": {"template": template(w.cloud)}, "trainers": [edge]}
    kind = {"apiVersion": "sedna.io/v1alpha1", "kind": "TrainingModel", "metadata": {"name": name}}
    return {**kind, "spec": {"model": {"name": "small"}, **parts, "rounds": 3, **spec}}


def report(node: FakeNode, key: Key, part: str, role: str, progress: TrainingProgress) -> None:
    """Report how far a part of a training on a node is."""
    name = f"{key.name}.{part}-training-{node.name}"
    node.overrides[part] = WorkerReport(name=name, role=role, part=part, phase="Running", training=progress)  # type: ignore[arg-type]
    node.report(key)


def store(gm: RunningGm) -> None:
    """As if GM's store had the file: GM of these tests has no store of files."""
    assert gm.manager is not None
    gm.manager._plane.files.states[FILE.digest] = ""


async def reaches(w: World, phase: str, reason: str = "", *, version: str = SEDNA) -> Body:
    return await w.reaches(phase, reason, name="digits", plural=PLURAL, version=version)


@pytest.mark.parametrize("group", ["sedna.io/v1alpha1", "ai.kubeedge.io/v1alpha1"])
async def test_a_training_runs_as_pods_and_its_model_gets_a_version(api: Api, group: str) -> None:
    async with world(api) as w, w.gm() as gm, w.node(w.edge) as edge, w.node(w.cloud) as cloud:
        await w.apply(dataset("frames", nodeName=w.edge), model("small"), training(w) | {"apiVersion": group})
        await reaches(w, "Running", version=group)
        made = await w.made("Deployment", TRAINER)
        assert made["spec"]["strategy"] == {"type": "Recreate"}
        owner = made["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["apiVersion"]) == ("TrainingModel", group)
        key = w.key("digits", PLURAL)
        uid = (await w.find("digits", PLURAL, group) or {})["metadata"]["uid"]
        run = f"{uid}.{run_of(parse(training(w) | {'metadata': {'name': 'digits'}}).spec)}"

        told = TrainingProgress(run=run, rounds=3, state="open", round=2, metrics={"accuracy": 0.7}, evaluated=2)
        report(cloud, key, "aggregator", "cloud", told)

        async def shown() -> bool:
            found = await w.status("digits", PLURAL, group)
            return (found.get("training") or {}).get("round") == 2

        await eventually(shown, PATIENCE)
        store(gm)
        ended = {"state": "done", "round": 3, "metrics": {"accuracy": 0.9}, "evaluated": 4, "reason": "RoundsDone"}
        report(cloud, key, "aggregator", "cloud", TrainingProgress(run=run, rounds=3, model=FILE, **ended))
        status = await reaches(w, "Done", "RoundsDone", version=group)
        small = await w.find("small", "models")
        assert small is not None
        assert small["spec"]["targetVersion"] == status["training"]["version"] == "digits-dddddddddddd"
        assert small["spec"]["versions"][-1]["url"] == f"bus://gm/sha256/{FILE.digest}"
        assert small["spec"]["url"] == model("small")["spec"]["url"]
        for name in (AGGREGATOR, TRAINER):
            await api.until_gone("Deployment", name)
        await eventually(lambda: key not in cloud.holds and key not in edge.holds, PATIENCE)
        await w.delete("digits", PLURAL, group)
        await w.until_gone("digits", PLURAL, group)


async def test_a_folder_that_is_not_allowed_is_a_condition_and_heals(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await w.apply(dataset("frames", url="/secret/frames", nodeName=w.edge), model("small"), training(w))
        assert "spec.trainers[0].dataset.name" in message(await reaches(w, "Pending", "HostPathNotAllowed"))
        await w.apply(dataset("frames", nodeName=w.edge))
        await reaches(w, "Running")


async def test_a_federated_job_of_sedna_runs_as_pods(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        body = training(w)
        aggregator, trainer = body["spec"]["aggregator"]["template"], body["spec"]["trainers"][0]["template"]
        job = {
            "aggregationWorker": {"model": {"name": "small"}, "template": aggregator},
            "trainingWorkers": [{"dataset": {"name": "frames"}, "template": trainer}],
        }
        job = {**body, "kind": "FederatedLearningJob", "spec": job}
        await w.apply(dataset("frames", nodeName=w.edge), model("small"), job)
        await w.reaches("Running", name="digits", plural="federatedlearningjobs")
        made = await w.made("Deployment", "digits-deployment-training-trainer0")
        assert made["metadata"]["ownerReferences"][0]["kind"] == "FederatedLearningJob"
