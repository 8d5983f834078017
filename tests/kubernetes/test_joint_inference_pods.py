"""The pods of a joint inference service: where they run, how they fare, and who else may touch them."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.names import Key
from tests.integration.gm_world import MODELS, model
from tests.kubernetes.apiserver import Api
from tests.kubernetes.placed import named_node
from tests.kubernetes.podstates import State, crash_loop, image_pull, pending, running, unschedulable
from tests.kubernetes.world import world
from tests.simulated import eventually

EDGE, CLOUD = "helmet-deployment-edge", "helmet-deployment-cloud"


def condition(status: dict[str, Any]) -> dict[str, Any]:
    return status["conditions"][-1]


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
        made = await w.made("Deployment", CLOUD)
        assert made["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "cloud"}
        assert not made["spec"]["template"]["spec"].get("nodeName")


async def test_an_autoscaler_is_made_changed_and_taken_away_and_its_replicas_are_its_own(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        body = w.service()
        body["spec"]["cloudWorker"]["hpa"] = {"minReplicas": 1, "maxReplicas": 3}
        await w.apply(model("small"), model("big"), body)
        await w.reaches("Running")
        name = f"hpa-{CLOUD}"
        made = await w.made("HorizontalPodAutoscaler", name)
        assert made["spec"]["maxReplicas"] == 3
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
            deployment = await w.made("Deployment", CLOUD)
            return await w.object("HorizontalPodAutoscaler", name) is None and deployment["spec"]["replicas"] == 1

        await eventually(without, 20)


async def test_a_hand_that_deletes_or_edits_what_gm_made_changes_nothing_for_long(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await w.apply_all()
        await w.reaches("Running")
        first = await w.made("Deployment", EDGE)
        await api.client.delete("Deployment", w.namespace, EDGE)

        async def again() -> bool:
            now = await w.object("Deployment", EDGE)
            return now is not None and now["metadata"]["uid"] != first["metadata"]["uid"]

        await eventually(again, 20)
        patch = {"spec": {"template": {"spec": {"affinity": None}}}}
        await api.client.patch("Deployment", w.namespace, CLOUD, {"spec": {"replicas": 3}})
        await api.client.patch("Deployment", w.namespace, EDGE, patch)

        async def reverted() -> bool:
            edge, cloud = await w.made("Deployment", EDGE), await w.made("Deployment", CLOUD)
            return bool(named_node(edge["spec"]["template"]["spec"]) == w.edge and cloud["spec"]["replicas"] == 1)

        await eventually(reverted, 20)


async def test_an_edit_is_not_said_to_run_before_new_pods_do(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await w.apply_all()
        await w.reaches("Running")
        w.player.behave(pending, EDGE)
        seen: set[tuple[str, int]] = set()
        edited = w.service()
        edited["spec"]["edgeWorker"]["deadlineMs"] = 500
        await w.apply(edited)

        async def judged() -> bool:
            status = await w.status()
            seen.add((status["phase"], status["observedGeneration"]))
            return any(generation == 2 for _, generation in seen)

        await eventually(judged, 20)
        assert ("Running", 2) not in seen
        w.player.behave(running, EDGE)
        await w.reaches("Running", generation=2)


async def test_pods_that_cannot_even_be_created_are_a_condition(api: Api) -> None:
    async with world(api, play=False) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await w.apply_all()
        await w.reaches("Pending", "WorkerNotUp")
        failure = {
            "type": "ReplicaFailure",
            "status": "True",
            "reason": "FailedCreate",
            "message": "exceeded quota: small",
        }
        await api.client.patch("Deployment", w.namespace, EDGE, {"status": {"conditions": [failure]}}, "status")
        status = await w.reaches("Pending", "FailedCreate")
        assert "exceeded quota" in status["conditions"][-1]["message"]
