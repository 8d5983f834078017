"""A joint inference service on Kubernetes, from `kubectl apply` to its end, and what is said of it meanwhile."""

from __future__ import annotations

import pytest

from halimede.api.base import NEPTUNE
from services.gm.cluster.port import FINALIZER
from tests.integration.gm_world import MODELS, SERVICES, dataset
from tests.kubernetes.apiserver import Api
from tests.kubernetes.placed import named_node
from tests.kubernetes.world import CLOUD, EDGE, message, running_service, world
from tests.seeds.samples import service as seed_service
from tests.simulated import eventually


async def test_an_applied_service_becomes_deployments_and_runs(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge) as edge, w.node(w.cloud):
        await w.apply_all()
        status = await w.reaches("Running")
        assert (status["active"], status["failed"], status["observedGeneration"]) == (2, 0, 1)
        assert {n["node"]: n["online"] for n in status["nodes"]} == {w.edge: True, w.cloud: True}
        service, made = await w.find(), await w.made("Deployment", EDGE)
        assert service is not None
        [owner] = made["metadata"]["ownerReferences"]
        meant = (service["metadata"]["uid"], "JointInferenceService", True)
        assert (owner["uid"], owner["kind"], owner["controller"]) == meant
        labels = made["spec"]["template"]["metadata"]["labels"]
        assert labels["jointinferenceservice.sedna.io/name"] == "helmet"
        assert labels["jointinferenceservice.sedna.io/worker-type"] == "edge"
        assert named_node(made["spec"]["template"]["spec"]) == w.edge
        assert await w.object("Deployment", CLOUD)
        assert await w.object("Service", "helmet-cloud")
        await eventually(lambda: len(edge.sent("insert")) == 2)
        assert edge.sent("insert") == [("insert", "models/small", 1), ("insert", f"{SERVICES}/helmet", 1)]
        await eventually(lambda: (shown := w.shown()) is not None and shown.status.phase == "Running")
        assert (await w.reaches("Ready", name="small", plural=MODELS))["active"] == 1


async def test_an_edit_rolls_out_and_reaches_the_node(api: Api) -> None:
    async with running_service(api) as (w, edge, _):
        before = await w.made("Deployment", EDGE)
        await w.edit(deadline_ms=500)
        await w.reaches("Running", generation=2)
        assert (await w.made("Deployment", EDGE))["metadata"]["uid"] == before["metadata"]["uid"]
        assert (await w.variables(EDGE))["DEADLINE_MS"] == "500"
        await eventually(lambda: edge.holds[w.key()][1] == 2)


async def test_a_deleted_service_leaves_nodes_pods_and_topics(api: Api) -> None:
    async with running_service(api) as (w, edge, _):
        found = await w.find()
        assert found is not None
        assert FINALIZER in found["metadata"]["finalizers"]
        await w.delete()
        await w.until_gone()
        await api.until_gone("Deployment", EDGE)
        assert await w.object("Deployment", CLOUD) is None
        assert w.key() not in edge.holds
        await eventually(lambda: w.shown() is None)
        await w.delete("small", MODELS)
        await eventually(lambda: w.key("small", MODELS) not in edge.holds)


async def test_a_service_deleted_while_no_gm_runs_is_let_go_by_the_next(api: Api) -> None:
    async with world(api) as w, w.node(w.edge) as edge, w.node(w.cloud):
        async with w.gm():
            await w.apply_all()
            await w.reaches("Running")
        await w.delete()
        assert await w.find() is not None
        async with w.gm():
            await w.until_gone()
            assert w.key() not in edge.holds
            await eventually(lambda: w.shown() is None)


async def test_what_no_node_ever_got_is_deleted_at_once_and_leaves_no_topic(api: Api) -> None:
    async with world(api) as w:
        async with w.gm():
            await w.apply(w.service())
            await w.reaches("Pending", "ModelNotFound")
            await eventually(lambda: w.shown() is not None)
            found = await w.find()
            assert found is not None
            assert not found["metadata"].get("finalizers")
        await w.delete()
        assert await w.find() is None
        assert w.shown() is not None
        async with w.gm():
            await eventually(lambda: w.shown() is None, 20)


@pytest.mark.slow
async def test_a_missing_dataset_is_a_condition_and_heals(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await w.apply_all(w.service(dataset={"name": "frames"}))
        await w.reaches("Pending", "DatasetNotFound")
        await w.apply(dataset("frames"))
        await w.reaches("Running")


@pytest.mark.slow
async def test_a_missing_secret_is_a_condition_and_heals(api: Api) -> None:
    async with world(api, credentials=True) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await w.apply_all()
        assert "halimede-edge-worker" in message(await w.reaches("Pending", "SecretNotFound"))
        await w.worker_secrets()
        await w.reaches("Running")


@pytest.mark.slow
async def test_the_second_of_one_name_in_the_other_group_is_left_alone_until_the_first_goes(api: Api) -> None:
    async with running_service(api) as (w, _, _):
        await w.apply(seed_service("helmet", w.edge, w.cloud, models=("small", "big")))
        assert "sedna.io" in message(await w.reaches("Failed", "NameConflict", version=NEPTUNE))
        assert (await w.status())["phase"] == "Running"
        await w.delete()
        await w.reaches("Running", version=NEPTUNE)
