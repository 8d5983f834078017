"""A joint inference service on Kubernetes, from `kubectl apply` to its end, and what is said of it meanwhile."""

from __future__ import annotations

import pytest

from halimede.messages import TaskInfo
from services.gm.cluster.port import FINALIZER
from tests.integration.gm_world import MODELS, SERVICES, metric, model
from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import invalid_fields
from tests.kubernetes.placed import named_node
from tests.kubernetes.world import CLOUD, EDGE, running_service, world
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


async def test_what_nodes_count_is_in_the_status_and_the_columns_show_it(api: Api) -> None:
    async with running_service(api) as (w, edge, _):
        edge.counts[w.key()] = TaskInfo(inference_number=200, cloud_inference_number=50, upload_cloud_ratio=0.25)
        edge.report(w.key())
        await eventually(lambda: (shown := w.shown()) and metric(shown.status, "uploadCloudRatio") == "0.25")
        row = await w.row()
        assert {"name": "helmet", "phase": "Running", "active": 2, "failed": 0, "upload": "0.25"}.items() <= row.items()
        assert row["age"]


async def test_an_edit_rolls_out_and_reaches_the_node(api: Api) -> None:
    async with running_service(api) as (w, edge, _):
        before = await w.made("Deployment", EDGE)
        await w.edit(deadline_ms=500)
        await w.reaches("Running", generation=2)
        assert (await w.made("Deployment", EDGE))["metadata"]["uid"] == before["metadata"]["uid"]
        assert (await w.variables(EDGE))["DEADLINE_MS"] == "500"
        await eventually(lambda: edge.holds[w.key()][1] == 2)


async def test_a_service_moves_with_its_node_name(api: Api) -> None:
    async with running_service(api) as (w, old, _):
        other = api.unique("other")
        await api.node(other)
        async with w.node(other) as new:
            await w.apply(w.service(edge=other))
            await w.reaches("Running", generation=2)
            assert named_node(await w.pod_of(EDGE)) == other
            await eventually(lambda: w.key() in new.holds and w.key() not in old.holds)


async def test_a_changed_model_is_rolled_out(api: Api) -> None:
    async with running_service(api) as (w, edge, _):
        before = await w.pod_of(EDGE)
        await w.apply(model("small", url="/models/newer.onnx"))

        async def rolled() -> bool:
            return await w.pod_of(EDGE) != before

        await eventually(rolled, 20)
        await eventually(lambda: edge.holds[w.key("small", MODELS)][1] == 2)
        await w.reaches("Running")


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
async def test_a_service_that_is_edited_a_hundred_times_in_a_second_ends_as_the_last_edit_says(api: Api) -> None:
    async with running_service(api) as (w, edge, _):
        for deadline in range(1001, 1101):
            patch = {"spec": {"edgeWorker": {"deadlineMs": deadline}}}
            await api.client.patch(f"{SERVICES}.sedna.io/v1alpha1", w.namespace, "helmet", patch)
        await w.reaches("Running", generation=101)
        assert (await w.variables(EDGE))["DEADLINE_MS"] == "1100"
        await eventually(lambda: edge.holds[w.key()][1] == 101)


@pytest.mark.parametrize("name", ["Helmet", "a.b", "1st", "x" * 47, "-a"])
async def test_a_name_that_would_make_no_topic_or_service_is_refused_by_the_api_server(api: Api, name: str) -> None:
    async with world(api, play=False) as w:
        assert "metadata.name" in str(await invalid_fields(w.apply(w.service(name))))
