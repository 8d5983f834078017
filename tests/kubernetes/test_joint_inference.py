"""A joint inference service on Kubernetes, from `kubectl apply` to the last pod: what there is, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.api.base import NEPTUNE
from halimede.messages import TaskInfo
from halimede.names import Key
from services.gm.cluster.port import FINALIZER
from tests.integration.gm_world import MODELS, SERVICES, dataset, metric, model
from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import RefusedError
from tests.kubernetes.podstates import State, crash_loop, image_pull, pending, running, unschedulable
from tests.kubernetes.world import World, world
from tests.simulated import eventually

EDGE, CLOUD = "helmet-deployment-edge", "helmet-deployment-cloud"


def condition(status: dict[str, Any]) -> dict[str, Any]:
    return status["conditions"][-1]


async def test_an_applied_service_becomes_deployments_and_runs(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge) as edge, w.node(w.cloud):
        await w.apply_all()
        status = await w.reaches("Running")
        assert (status["active"], status["failed"], status["observedGeneration"]) == (2, 0, 1)
        assert {n["node"]: n["online"] for n in status["nodes"]} == {w.edge: True, w.cloud: True}
        service, made = await w.find(), await w.object("Deployment", EDGE)
        assert service and made
        [owner] = made["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["kind"], owner["controller"]) == (
            service["metadata"]["uid"], "JointInferenceService", True,
        )  # fmt: skip
        labels = made["spec"]["template"]["metadata"]["labels"]
        assert labels["jointinferenceservice.sedna.io/name"] == "helmet"
        assert labels["jointinferenceservice.sedna.io/worker-type"] == "edge"
        assert made["spec"]["template"]["spec"]["nodeName"] == w.edge
        assert await w.object("Deployment", CLOUD)
        assert await w.object("Service", "helmet-cloud")
        await eventually(lambda: len(edge.sent("insert")) == 2)
        assert edge.sent("insert") == [("insert", "models/small", 1), ("insert", f"{SERVICES}/helmet", 1)]
        await eventually(lambda: (shown := w.shown()) is not None and shown.status.phase == "Running")
        assert (await w.reaches("Ready", name="small", plural=MODELS))["active"] == 1


async def test_what_nodes_count_is_in_the_status_and_the_columns_show_it(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge) as edge, w.node(w.cloud):
        await w.apply_all()
        await w.reaches("Running")
        key = Key(SERVICES, w.namespace, "helmet")
        edge.counts[key] = TaskInfo(inference_number=200, cloud_inference_number=50, upload_cloud_ratio=0.25)
        edge.report(key)

        async def counted() -> bool:
            shown = w.shown()
            return shown is not None and metric(shown.status, "uploadCloudRatio") == "0.25"

        await eventually(counted)
        accept = "application/json;as=Table;g=meta.k8s.io;v=v1"
        path = f"/apis/sedna.io/v1alpha1/namespaces/{w.namespace}/{SERVICES}"
        table = await api.client.request("GET", path, accept=accept)
        names = [column["name"].lower() for column in table["columnDefinitions"]]
        row = dict(zip(names, table["rows"][0]["cells"], strict=True))
        assert {"name": "helmet", "phase": "Running", "active": 2, "failed": 0, "upload": "0.25"}.items() <= row.items()
        assert row["age"]


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


@pytest.mark.parametrize(
    ("state", "phase", "reason"),
    [
        (unschedulable, "Pending", "Unschedulable"),
        (image_pull, "Failed", "ImagePullBackOff"),
        (crash_loop, "Failed", "CrashLoopBackOff"),
    ],
)
async def test_a_pod_in_trouble_is_a_condition_and_heals(api: Api, state: State, phase: str, reason: str) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        w.player.behave(state, EDGE)
        await w.apply_all()
        status = await w.reaches(phase, reason)
        assert EDGE in condition(status)["message"]
        w.player.behave(running, EDGE)
        await w.reaches("Running")


async def test_samples_are_answered_at_the_edge_while_the_cloud_worker_is_in_trouble(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        w.player.behave(crash_loop, CLOUD)
        await w.apply_all()
        status = await w.reaches("Degraded", "CrashLoopBackOff")
        assert (status["active"], status["failed"]) == (1, 1)


async def test_where_a_selector_leads_the_scheduler_says_and_only_that_node_gets_the_service(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge) as edge, w.node(w.cloud) as cloud:
        w.player.node = w.cloud
        await w.apply(model("small"), model("big"), w.service(cloud={"pool": "cloud"}))
        await w.reaches("Running")
        await eventually(lambda: Key(MODELS, w.namespace, "big") in cloud.holds)
        assert Key(MODELS, w.namespace, "big") not in edge.holds
        made = await w.object("Deployment", CLOUD)
        assert made
        assert made["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "cloud"}
        assert not made["spec"]["template"]["spec"].get("nodeName")


async def test_an_autoscaler_is_made_changed_and_taken_away_and_its_replicas_are_its_own(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        body = w.service()
        body["spec"]["cloudWorker"]["hpa"] = {"minReplicas": 1, "maxReplicas": 3}
        await w.apply(model("small"), model("big"), body)
        await w.reaches("Running")
        name = f"hpa-{CLOUD}"
        made = await w.object("HorizontalPodAutoscaler", name)
        assert made and made["spec"]["maxReplicas"] == 3
        assert made["spec"]["scaleTargetRef"]["name"] == CLOUD
        await api.client.patch("Deployment", w.namespace, CLOUD, {"spec": {"replicas": 2}})

        async def scaled() -> bool:
            return (await w.status())["active"] == 3

        await eventually(scaled, 20)
        body["spec"]["cloudWorker"]["hpa"] = {"minReplicas": 1, "maxReplicas": 5}
        await w.apply(body)

        async def more() -> bool:
            now = await w.object("HorizontalPodAutoscaler", name)
            return now is not None and now["spec"]["maxReplicas"] == 5

        await eventually(more, 20)
        del body["spec"]["cloudWorker"]["hpa"]
        await w.apply(body)

        async def without() -> bool:
            deployment = await w.object("Deployment", CLOUD)
            return await w.object("HorizontalPodAutoscaler", name) is None and deployment["spec"]["replicas"] == 1

        await eventually(without, 20)


async def test_a_missing_secret_is_a_condition_and_heals(api: Api) -> None:
    async with world(api, credentials=True) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await w.apply_all()
        status = await w.reaches("Pending", "SecretNotFound")
        assert "halimede-edge-worker" in condition(status)["message"]
        for name in ("halimede-edge-worker", "halimede-cloud-worker"):
            body = {"metadata": {"name": name}, "stringData": {"username": "u", "password": "p"}}
            await api.client.create("Secret", w.namespace, body)
        await w.reaches("Running")


async def test_an_edit_rolls_out_and_reaches_the_node(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge) as edge, w.node(w.cloud):
        await w.apply_all()
        await w.reaches("Running")
        before = await w.object("Deployment", EDGE)
        edited = w.service()
        edited["spec"]["edgeWorker"]["deadlineMs"] = 500
        await w.apply(edited)
        await w.reaches("Running", generation=2)
        after = await w.object("Deployment", EDGE)
        assert before and after
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        env = {e["name"]: e.get("value") for e in after["spec"]["template"]["spec"]["containers"][0]["env"]}
        assert env["DEADLINE_MS"] == "500"
        await eventually(lambda: edge.holds[Key(SERVICES, w.namespace, "helmet")][1] == 2)


async def test_a_service_moves_with_its_node_name(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge) as old, w.node(w.cloud):
        await w.apply_all()
        await w.reaches("Running")
        other = api.unique("other")
        await api.node(other)
        async with w.node(other) as new:
            await w.apply(w.service(edge=other))
            await w.reaches("Running", generation=2)
            made = await w.object("Deployment", EDGE)
            assert made and made["spec"]["template"]["spec"]["nodeName"] == other
            key = Key(SERVICES, w.namespace, "helmet")
            await eventually(lambda: key in new.holds and key not in old.holds)


async def test_a_changed_model_is_rolled_out(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge) as edge, w.node(w.cloud):
        await w.apply_all()
        await w.reaches("Running")
        before = await w.object("Deployment", EDGE)
        await w.apply(model("small", url="/models/newer.onnx"))

        async def rolled() -> bool:
            now = await w.object("Deployment", EDGE)
            return bool(now and before and now["spec"]["template"] != before["spec"]["template"])

        await eventually(rolled, 20)
        await eventually(lambda: edge.holds[Key(MODELS, w.namespace, "small")][1] == 2)
        await w.reaches("Running")


async def test_a_deleted_service_leaves_nodes_pods_and_topics(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge) as edge, w.node(w.cloud):
        await w.apply_all()
        await w.reaches("Running")
        found = await w.find()
        assert found and FINALIZER in found["metadata"]["finalizers"]
        await w.delete()

        async def gone() -> bool:
            return await w.find() is None and not await w.object("Deployment", EDGE)

        await eventually(gone, 20)
        assert await w.object("Deployment", CLOUD) is None
        assert Key(SERVICES, w.namespace, "helmet") not in edge.holds
        await eventually(lambda: w.shown() is None)
        await w.delete("small", MODELS)
        await eventually(lambda: Key(MODELS, w.namespace, "small") not in edge.holds)


async def test_a_service_deleted_while_no_gm_runs_is_let_go_by_the_next(api: Api) -> None:
    async with world(api) as w, w.node(w.edge) as edge, w.node(w.cloud):
        async with w.gm():
            await w.apply_all()
            await w.reaches("Running")
        await w.delete()
        assert await w.find() is not None
        async with w.gm():

            async def gone() -> bool:
                return await w.find() is None

            await eventually(gone, 20)
            assert Key(SERVICES, w.namespace, "helmet") not in edge.holds
            await eventually(lambda: w.shown() is None)


async def test_what_no_node_ever_got_is_deleted_at_once_and_leaves_no_topic(api: Api) -> None:
    async with world(api) as w:
        async with w.gm():
            await w.apply(w.service())
            await w.reaches("Pending", "ModelNotFound")
            await eventually(lambda: w.shown() is not None)
            found = await w.find()
            assert found and not found["metadata"].get("finalizers")
        await w.delete()
        assert await w.find() is None
        assert w.shown() is not None
        async with w.gm():
            await eventually(lambda: w.shown() is None, 20)


async def test_a_hand_that_deletes_or_edits_what_gm_made_changes_nothing_for_long(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await w.apply_all()
        await w.reaches("Running")
        first = await w.object("Deployment", EDGE)
        assert first
        await api.client.delete("Deployment", w.namespace, EDGE)

        async def again() -> bool:
            now = await w.object("Deployment", EDGE)
            return now is not None and now["metadata"]["uid"] != first["metadata"]["uid"]

        await eventually(again, 20)
        patch = {"spec": {"template": {"spec": {"nodeName": w.cloud}}}}
        await api.client.patch("Deployment", w.namespace, CLOUD, {"spec": {"replicas": 3}})
        await api.client.patch("Deployment", w.namespace, EDGE, patch)

        async def reverted() -> bool:
            edge, cloud = await w.object("Deployment", EDGE), await w.object("Deployment", CLOUD)
            assert edge and cloud
            return edge["spec"]["template"]["spec"]["nodeName"] == w.edge and cloud["spec"]["replicas"] == 1

        await eventually(reverted, 20)


async def test_the_seeds_own_form_is_served_and_named_in_its_own_group(api: Api) -> None:
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

    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        edge = worker("edgeworker", "small", w.edge) | {"hardExampleAlgorithm": {"name": "IBT"}}
        body = {
            "apiVersion": NEPTUNE,
            "kind": "JointInferenceService",
            "metadata": {"name": "helmet"},
            "spec": {"edgeWorker": edge, "cloudWorker": worker("work", "big", w.cloud)},
        }
        await w.apply(model("small"), model("big"), body)
        await w.reaches("Running", version=NEPTUNE)
        made = await w.object("Deployment", EDGE)
        assert made and made["metadata"]["ownerReferences"][0]["apiVersion"] == NEPTUNE
        container = made["spec"]["template"]["spec"]["containers"][0]
        assert (container["image"], container["command"]) == ("tensorflow:1.18", ["python3", "edgeworker.py"])


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


def neptune(w: World) -> dict[str, Any]:
    spec = {"scriptDir": "/code", "scriptBootFile": "run.py", "frameworkType": "tensorflow", "frameworkVersion": "1.18"}
    edge = {
        "name": "e", "model": {"name": "small"}, "nodeName": w.edge, "workerSpec": spec,
        "hardExampleAlgorithm": {"name": "IBT"},
    }  # fmt: skip
    cloud = {"name": "c", "model": {"name": "big"}, "nodeName": w.cloud, "workerSpec": spec}
    return {
        "apiVersion": NEPTUNE,
        "kind": "JointInferenceService",
        "metadata": {"name": "helmet"},
        "spec": {"edgeWorker": edge, "cloudWorker": cloud},
    }


async def test_a_service_that_is_edited_a_hundred_times_in_a_second_ends_as_the_last_edit_says(api: Api) -> None:
    async with world(api) as w, w.gm() as gm, w.node(w.edge) as edge, w.node(w.cloud):
        await w.apply_all()
        await w.reaches("Running")
        assert gm.manager is not None
        kind = f"{SERVICES}.sedna.io/v1alpha1"
        for deadline in range(1001, 1101):
            patch = {"spec": {"edgeWorker": {"deadlineMs": deadline}}}
            await api.client.patch(kind, w.namespace, "helmet", patch)
        await w.reaches("Running", generation=101)
        made = await w.object("Deployment", EDGE)
        assert made
        env = {e["name"]: e.get("value") for e in made["spec"]["template"]["spec"]["containers"][0]["env"]}
        assert env["DEADLINE_MS"] == "1100"
        await eventually(lambda: edge.holds[Key(SERVICES, w.namespace, "helmet")][1] == 101)


@pytest.mark.parametrize("name", ["Helmet", "a.b", "1st", "x" * 47, "-a"])
async def test_a_name_that_would_make_no_topic_or_service_is_refused_by_the_api_server(api: Api, name: str) -> None:
    async with world(api, play=False) as w:
        with pytest.raises(RefusedError) as refused:
            await w.apply(w.service(name))
        assert refused.value.code == 422
        assert "metadata.name" in str(refused.value)
