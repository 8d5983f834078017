"""What becomes of a service where kubelets, the scheduler and the node controller leave such statuses as real ones."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from halimede.messages import WorkerReport
from services.gm.cluster.kubernetes import pod_warnings
from services.gm.cluster.kubernetes.conversion import registered_node, trim_pod
from services.gm.cluster.port import Ref
from services.gm.workloads import pod_history
from services.gm.workloads.pod_status import NodeView, PodFacts, pod_views
from tests.integration.gm_world import FakeNode
from tests.kubernetes.apiserver import Api
from tests.kubernetes.podstates import running
from tests.kubernetes.recorded import cases, events_of, leave_events, leave_node, left, nodes_of, pods_of, recorded
from tests.kubernetes.world import CLOUD, EDGE, PATIENCE, World, message, running_service, world
from tests.simulated import eventually

slow = partial(pytest.param, marks=pytest.mark.slow)


async def cut_off(w: World, node: FakeNode, *, known: bool = True) -> None:
    """Leave the edge node as one that is not reached. ``known``: its controller has reported the pod that runs."""
    name = (await w.pods(EDGE))[0] if known else "another"
    node.overrides["edge"] = WorkerReport(name=name, role="edge", phase="Running")
    await eventually(lambda: w.key() in node.holds, PATIENCE)
    node.report(w.key())
    await asyncio.sleep(0.2)
    await leave_node(w.api.client, w.edge, "node-not-ready")
    w.player.behave(left("node-not-ready"), EDGE)


def held_back(deployment: dict[str, Any]) -> bool:
    return bool(deployment["spec"]["replicas"] == 0)


def deployment_of(pod: dict[str, Any]) -> dict[Ref, dict[str, Any]]:
    """The Deployment from whose present template an edge worker's pod was made."""
    labels = pod["metadata"].setdefault("labels", {})
    labels.setdefault("jointinferenceservice.sedna.io/worker-type", "edge")
    made = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    body = {"kind": "Deployment", "metadata": {"labels": labels}, "spec": {"template": made}}
    return {Ref("apps/v1", "Deployment", "default", "d"): body}


@pytest.mark.parametrize("case", cases())
def test_each_pod_of_each_case_can_be_read(case: str) -> None:
    assert recorded(case)["kubernetes"]
    unready = {node["metadata"]["name"]: registered_node(node).unready for node in nodes_of(case)}
    news = PodFacts({name: NodeView(why) for name, why in unready.items()})
    for pod in pods_of(case):
        pod["metadata"].setdefault("uid", "u")
        away = unready.get(pod["spec"].get("nodeName", ""), "")
        views = pod_views(deployment_of(pod), [trim_pod(pod)], news)
        if pod["metadata"].get("deletionTimestamp") and not away:
            assert views == ()  # its node knows that it shall end
            continue
        (view,) = views
        assert view.phase == "Failed" if pod["status"]["phase"] == "Failed" else view.unreached == bool(away)
        assert view.reason or view.phase == "Running"


def test_an_evicted_pod_of_a_cut_off_node_goes_on_and_the_one_in_its_place_finds_no_node() -> None:
    found, (node,) = pods_of("evicted-unreachable"), nodes_of("evicted-unreachable")
    news = PodFacts({node["metadata"]["name"]: NodeView(registered_node(node).unready)})
    waiting, marked = pod_views(deployment_of(found[0]), map(trim_pod, found), news)
    assert (waiting.phase, waiting.reason, waiting.node) == ("Pending", "Unschedulable", "")
    assert (marked.up, marked.reason, marked.leaving) == (True, "NodeUnreachable", True)


def test_a_pod_counts_when_its_node_is_back_and_has_not_reported_it_yet() -> None:
    (pod,) = pods_of("node-not-ready")
    node, name = pod["spec"]["nodeName"], pod["metadata"]["name"]

    def up(running: frozenset[str] | None) -> bool:
        news = PodFacts({node: NodeView("", running)})
        return pod_views(deployment_of(pod), [trim_pod(pod)], news)[0].up

    assert up(frozenset({name}))
    assert not up(frozenset())
    # without its local controller's word only Kubernetes' counts
    assert not up(None)


@pytest.mark.parametrize(("case", "words"), [("quota", "exceeded quota"), ("pod-security", "violates PodSecurity")])
def test_pods_that_may_not_be_made_are_told(case: str, words: str) -> None:
    body = next(each for each in recorded(case)["objects"] if each["kind"] == "Deployment")
    body["metadata"]["labels"]["jointinferenceservice.sedna.io/worker-type"] = "edge"
    (view,) = pod_views({Ref("apps/v1", "Deployment", "default", "d"): body}, [])
    assert (view.phase, view.reason) == ("Pending", "FailedCreate")
    assert words in view.message


@pytest.mark.parametrize("case", ["out-of-cpu", slow("out-of-memory"), slow("evicted-for-its-folder")])
async def test_a_worker_whose_pods_fail_one_after_the_other_gets_a_pod_a_minute_and_the_condition_has_them(
    api: Api, case: str
) -> None:
    """Where the scheduler cannot know what a kubelet refuses, five pods a second would fail."""
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        w.player.behave(left(case), EDGE)
        await w.apply_all()
        said = pods_of(case)[0]["status"]
        await w.reaches("Failed", said["reason"])
        await w.becomes("Deployment", EDGE, held_back)
        failed = len(await w.pods(EDGE))
        await asyncio.sleep(2)
        assert len(await w.pods(EDGE)) <= failed + 1
        text = message(await w.reaches("Failed", said["reason"]))
        assert said["message"].strip() in text
        assert "pods have failed" in text
        for pod in await w.pods(EDGE):
            await w.api.client.delete("Pod", w.namespace, pod)
        assert said["message"].strip() in message(await w.reaches("Pending", "PodsFailing"))
        w.player.behave(running, EDGE)
        await w.edit()  # is tried at once
        await w.reaches("Running", generation=2)


async def test_an_edit_of_a_worker_whose_pods_fail_never_says_that_it_runs(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        w.player.behave(left("out-of-cpu"), EDGE)
        await w.apply_all()
        await w.reaches("Failed", "OutOfcpu")
        await w.becomes("Deployment", EDGE, held_back)
        await w.edit()
        phases = []

        def has_failed_again(status: dict[str, Any]) -> bool:
            phases.append(status.get("phase"))
            return (phases[-1], status.get("observedGeneration")) == ("Failed", 2)

        await w.shows(has_failed_again)
        await w.becomes("Deployment", EDGE, held_back)
        assert "Running" not in phases


async def test_an_update_whose_pods_fail_waits_and_the_old_pod_works(api: Api) -> None:
    async with running_service(api) as (w, _, _):
        w.player.keeps_old = True
        (old,) = await w.pods(EDGE)
        w.player.behave(left("out-of-cpu"), EDGE)
        w.player.behave(running, old)
        await w.edit()
        await w.becomes("Deployment", EDGE, lambda made: made["spec"]["template"]["spec"].get("schedulingGates"))
        assert (await w.reaches("Degraded", "OutOfcpu", generation=2))["active"] == 2
        assert old in await w.pods(EDGE)


async def test_a_worker_whose_pods_have_failed_is_tried_again_by_itself(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    # one failure is enough, however slowly pods fail here, and the next pod waits for two seconds or more
    for name, number in {"BURST": 0.5, "CALM": 0.5, "FAILED_S": 4.0}.items():
        monkeypatch.setattr(pod_history, name, number)
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        w.player.behave(left("out-of-cpu"), EDGE)
        await w.apply_all()
        await w.reaches("Failed", "OutOfcpu")
        await w.becomes("Deployment", EDGE, held_back)
        w.player.behave(running, EDGE)
        await w.reaches("Running")


async def test_a_cut_off_edge_node_degrades_its_service_and_what_runs_there_counts(api: Api) -> None:
    async with running_service(api) as (w, edge, _):
        assert (await w.status())["active"] == 2
        await cut_off(w, edge)
        status = await w.reaches("Degraded", "NodeUnreachable")
        assert (status["active"], status["failed"]) == (2, 0)
        assert "Kubelet stopped posting node status" in message(status)
        assert "1 of 1 workers there run" in message(status)
        assert {each["node"]: each["online"] for each in status["nodes"]} == {w.edge: False, w.cloud: True}
        w.player.behave(left("running"), EDGE)
        await leave_node(api.client, w.edge, "running")
        status = await w.reaches("Running")
        assert all(each["online"] for each in status["nodes"])


@pytest.mark.parametrize("known", [slow(True), False])
async def test_a_cloud_update_that_fails_while_the_edge_is_cut_off_is_not_the_services_end(
    api: Api, known: bool
) -> None:
    """``known``: the edge's local controller has reported its worker. Otherwise nobody knows whether it answers."""
    phase = "Degraded" if known else "Pending"
    async with running_service(api) as (w, edge, _):
        await cut_off(w, edge, known=known)
        assert f"{int(known)} of 1 workers there run" in message(await w.reaches(phase, "NodeUnreachable"))
        w.player.behave(left("image-pull-back-off"), CLOUD)
        status = await w.reaches(phase, "ImagePullBackOff")
        assert "NodeUnreachable" in message(status)
        assert status["failed"] == 1


@pytest.mark.parametrize(
    ("case", "begins"),
    [
        ("failed-mount", "PodInitializing"),
        ("without-its-secret", "ContainerCreating"),  # the last of two warnings counts
        slow("without-a-sandbox", "ContainerCreating"),
    ],
)
async def test_what_only_events_say_of_a_pod_reaches_the_condition(
    api: Api, case: str, begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_history, "LATE_S", 0.5)
    monkeypatch.setattr(pod_history, "RECHECK_S", 0.5)
    monkeypatch.setattr(pod_warnings, "FRESH_S", 0.3)
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        w.player.behave(left(case), EDGE)
        await w.apply_all()
        await w.reaches("Pending", begins)
        (pod,) = await w.pods(EDGE)
        await leave_events(api.client, await w.made("Pod", pod), case)
        last = events_of(case)[-1]
        assert last["message"] in message(await w.reaches("Pending", last["reason"]))
        w.player.behave(running, EDGE)
        await w.reaches("Running")


async def test_why_a_model_cannot_be_fetched_comes_before_what_the_pod_says_of_that(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge) as edge, w.node(w.cloud):
        words = "Model small: http://digits-models.default.svc/small.onnx: Name or service not known"
        edge.reasons[w.key()] = "ModelNotReady", words
        w.player.behave(left("pod-initializing"), EDGE)
        await w.apply_all()
        assert words in message(await w.reaches("Pending", "ModelNotReady"))


async def updating(w: World) -> None:
    """Edit the service while new pods take long to begin; the old ones stay."""
    w.player.keeps_old, old = True, await w.pods()
    w.player.behave(left("pod-initializing"))
    for name in old:
        w.player.behave(running, name)
    await w.edit()


async def test_an_edit_that_goes_well_is_no_warning(api: Api) -> None:
    async with running_service(api) as (w, _, _):
        await updating(w)
        await w.reaches("Degraded", "Updating", generation=2)
        w.player.behave(running)
        await w.reaches("Running", generation=2)
        events = (await api.client.list("Event", w.namespace))["items"]
        found = [e for e in events if e["involvedObject"]["name"] == "helmet" and e["type"] == "Warning"]
        assert [(e["reason"], e["message"]) for e in found] == []


async def test_an_edit_whose_pod_takes_long_is_told(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_history, "LATE_S", 0.5)
    async with running_service(api) as (w, _, _):
        await updating(w)
        await w.reaches("Degraded", "PodInitializing", generation=2)


async def test_all_fields_that_a_template_may_not_have_are_named(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        body = w.service()
        pod = body["spec"]["edgeWorker"]["template"]["spec"]
        pod |= {"hostNetwork": True, "volumes": [{"name": "etc", "hostPath": {"path": "/etc"}}]}
        pod["containers"][0]["securityContext"] = {"privileged": True}
        await w.apply_all(body)
        text = message(await w.reaches("Pending"))
        for field in ("hostNetwork", "volumes[0].hostPath.path", "containers[0].securityContext.privileged"):
            assert f"spec.edgeWorker.template.spec.{field}" in text
