"""The pods of a joint inference service: where they run, how they fare, and who else may touch them."""

from __future__ import annotations

import pytest

from tests.integration.gm_world import MODELS
from tests.kubernetes.apiserver import Api
from tests.kubernetes.placed import named_node
from tests.kubernetes.podstates import pending, running
from tests.kubernetes.recorded import left
from tests.kubernetes.world import CLOUD, EDGE, message, running_service, world
from tests.simulated import eventually


@pytest.mark.parametrize(
    ("case", "phase", "reason", "detail"),
    [
        ("unschedulable", "Pending", "Unschedulable", "1 Insufficient cpu"),
        ("image-pull-back-off", "Failed", "ImagePullBackOff", ""),
        ("crash-loop-back-off", "Failed", "CrashLoopBackOff", "Error: no model"),
    ],
)
async def test_a_pod_in_trouble_is_a_condition_with_its_words_and_the_same_pod_heals(
    api: Api, case: str, phase: str, reason: str, detail: str
) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        w.player.behave(left(case), EDGE)
        await w.apply_all()
        text = message(await w.reaches(phase, reason))
        assert EDGE in text
        assert detail in text
        pods = await w.pods(EDGE)
        assert named_node(await w.pod_of(EDGE)) == w.edge
        w.player.behave(running, EDGE)
        await w.reaches("Running")
        assert await w.pods(EDGE) == pods


async def test_where_a_selector_leads_the_scheduler_says_and_only_that_node_gets_the_service(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge) as edge, w.node(w.cloud) as cloud:
        w.player.node = w.cloud
        await w.apply_all(w.service(cloud={"pool": "cloud"}))
        await w.reaches("Running")
        await eventually(lambda: w.key("big", MODELS) in cloud.holds)
        assert w.key("big", MODELS) not in edge.holds
        pod = await w.pod_of(CLOUD)
        assert pod["nodeSelector"] == {"pool": "cloud"}
        assert not pod.get("nodeName")


async def test_an_autoscaler_is_made_changed_and_taken_away_and_its_replicas_are_its_own(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        body, name = w.service(), f"hpa-{CLOUD}"
        body["spec"]["cloudWorker"]["hpa"] = {"minReplicas": 1, "maxReplicas": 3}
        await w.apply_all(body)
        await w.reaches("Running")
        made = await w.made("HorizontalPodAutoscaler", name)
        assert made["spec"]["maxReplicas"] == 3
        assert made["spec"]["scaleTargetRef"]["name"] == CLOUD
        await api.client.patch("Deployment", w.namespace, CLOUD, {"spec": {"replicas": 2}})
        await w.shows(lambda status: status["active"] == 3)
        body["spec"]["cloudWorker"]["hpa"] = {"minReplicas": 1, "maxReplicas": 5}
        await w.apply(body)
        await w.becomes("HorizontalPodAutoscaler", name, lambda hpa: hpa["spec"]["maxReplicas"] == 5)
        del body["spec"]["cloudWorker"]["hpa"]
        await w.apply(body)
        await api.until_gone("HorizontalPodAutoscaler", name)
        await w.becomes("Deployment", CLOUD, lambda made: made["spec"]["replicas"] == 1)


async def test_a_hand_that_deletes_or_edits_what_gm_made_changes_nothing_for_long(api: Api) -> None:
    async with running_service(api) as (w, _, _):
        first = await w.made("Deployment", EDGE)
        await api.client.delete("Deployment", w.namespace, EDGE)
        await w.becomes("Deployment", EDGE, lambda made: made["metadata"]["uid"] != first["metadata"]["uid"])
        patch = {"spec": {"template": {"spec": {"affinity": None}}}}
        await api.client.patch("Deployment", w.namespace, CLOUD, {"spec": {"replicas": 3}})
        await api.client.patch("Deployment", w.namespace, EDGE, patch)
        await w.becomes("Deployment", CLOUD, lambda made: made["spec"]["replicas"] == 1)
        await w.becomes("Deployment", EDGE, lambda made: named_node(made["spec"]["template"]["spec"]) == w.edge)


async def test_an_edit_is_not_said_to_run_before_new_pods_do(api: Api) -> None:
    async with running_service(api) as (w, _, _):
        w.player.behave(pending, EDGE)
        phases: set[tuple[str, int]] = set()
        await w.edit()

        async def judged() -> bool:
            status = await w.status()
            phases.add((status["phase"], status["observedGeneration"]))
            return any(generation == 2 for _, generation in phases)

        await eventually(judged, 20)
        assert ("Running", 2) not in phases
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
        assert "exceeded quota" in message(await w.reaches("Pending", "FailedCreate"))
