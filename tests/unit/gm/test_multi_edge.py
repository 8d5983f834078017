"""Multi-edge services in GM: what each node is sent, and what the status says of each worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from halimede.api import Resource
from halimede.messages import Histogram, Output, Status, TaskInfo, WorkerReport
from services.gm.cluster.port import ClusterWorkers, NodeReport
from services.gm.controllers import CONTROLLERS, Observed, plan
from services.gm.controllers.base import Keep, Send, ServiceWorkload, WriteStatus
from tests.integration.gm_world import MULTI_EDGE, dataset, metric, model, multi_edge
from tests.unit.gm.test_plan import NODES, deliveries, node, reported, seen_where, stored, written
from tests.unit.gm.workloads.world import SECRETS, SETTINGS

SMALL, FRAMES = stored(model("small")), stored(dataset("frames"))
FINDER = stored(model("finder", url="https://u:p@h/f"))
CROSSING = stored(multi_edge(north="edge0", south="edge0", cloud="cloud0"))


def seen(**changes: Any) -> Observed:
    placed = {"edge0": frozenset({"north", "south"}), "cloud0": frozenset({"joint"})}
    return seen_where(placed, SMALL, FINDER, FRAMES, **{"nodes": NODES, **changes})


def done(number: int) -> TaskInfo:
    return TaskInfo(inference_number=number, start_time=f"2026-01-0{number}", current_time=f"2026-02-0{number}")


def worker(part: str, phase: Any = "Running", **more: Any) -> WorkerReport:
    role: Any = "cloud" if part == "joint" else "edge"
    return WorkerReport(name=f"crossing.{part}.n", role=role, part=part, phase=phase, **more)


def report(on: str, *workers: WorkerReport, counts: TaskInfo | None = None) -> NodeReport:
    return reported(CROSSING, on, *workers, output=Output(task_info=counts) if counts else None)


def reports(*north: WorkerReport, joint: WorkerReport | None = None) -> dict[str, NodeReport]:
    return {"edge0": report("edge0", *north), "cloud0": report("cloud0", joint or worker("joint"))}


def status(resource: Resource[Any] = CROSSING, **changes: Any) -> Status:
    return written(plan(resource, seen(**changes)))


def said(found: Status) -> dict[str, tuple[str, str, str]]:
    return {each.name: (each.node, each.phase, each.reason) for each in found.workers}


def test_each_node_gets_what_its_workers_name_and_the_joint_worker_may_need_no_model() -> None:
    assert deliveries(CROSSING, seen()) == [Send("edge0", SMALL), Send("edge0", CROSSING), Send("cloud0", CROSSING)]


def test_a_detector_is_a_model_like_the_other_and_the_dataset_goes_to_the_edge() -> None:
    body = multi_edge(north="edge0", cloud="cloud0")
    body["spec"]["edgeWorkers"][0]["detector"] = {"name": "finder"}
    body["spec"]["dataset"] = {"name": "frames"}
    resource = stored(body)
    observed = seen(placed={"edge0": frozenset({"north"}), "cloud0": frozenset({"joint"})})
    assert deliveries(resource, observed) == [
        Send("edge0", SMALL), Send("edge0", FINDER), Send("edge0", FRAMES), Send("edge0", resource),
        Send("cloud0", resource),
    ]  # fmt: skip
    without = replace(observed, references={**observed.references, FINDER.key: None})
    assert Keep("edge0", resource.key, resource.metadata.uid) in deliveries(resource, without)
    made = CONTROLLERS[MULTI_EDGE].status(resource, without)
    assert made.conditions[-1].reason == "ModelNotFound"


def test_two_workers_of_one_role_on_a_node_are_told_apart() -> None:
    found = status(reports=reports(worker("north"), worker("south", "Failed", reason="Crashed", message="code 1")))
    assert (found.phase, found.active, found.failed) == ("Degraded", 2, 1)
    assert found.conditions[-1].reason == "Crashed"
    assert said(found) == {
        "north": ("edge0", "Running", ""), "south": ("edge0", "Failed", "Crashed"), "joint": ("cloud0", "Running", ""),
    }  # fmt: skip
    assert found.workers[0].name == "south", "what needs a look comes first"


def test_all_of_them_up_is_running_and_only_the_joint_one_up_is_not() -> None:
    found = status(reports=reports(worker("north"), worker("south")))
    assert (found.phase, found.active) == ("Running", 3)
    down = [worker(name, "Failed", reason="Crashed") for name in ("north", "south")]
    assert status(reports=reports(*down)).phase == "Failed"
    lost = status(reports=reports(worker("north"), worker("south"), joint=worker("joint", "Failed")))
    assert lost.phase == "Degraded"


def test_a_node_that_is_away_and_a_name_that_nobody_has_are_conditions() -> None:
    nodes = {"edge0": node("edge0", online=False), "cloud0": node("cloud0")}
    found = status(nodes=nodes, reports=reports(worker("north"), worker("south")))
    assert (found.phase, found.conditions[-1].reason) == ("Degraded", "NodeOffline")
    assert said(found)["north"] == ("edge0", "Unknown", "NodeOffline")
    found = status(nodes={"cloud0": node("cloud0")}, placed={"cloud0": frozenset({"joint"})})
    assert (found.phase, found.conditions[-1].reason) == ("Pending", "NodeNotFound")
    assert "spec.edgeWorkers[0].template.spec.nodeName: node edge0" in found.conditions[-1].message
    assert said(found)["north"] == ("", "Pending", "NodeNotFound")
    absent = status(references={}, nodes={}, placed={"edge0": frozenset({"north", "south"})})
    assert said(absent)["north"] == ("edge0", "Pending", "NodeNotFound")
    absent = status(references={})
    assert said(absent)["north"] == ("edge0", "Pending", "ModelNotFound")
    assert {each["phase"] for each in msgspec.to_builtins(absent)["workers"]} == {"Pending"}, "said, though nothing is"


def test_counts_are_told_of_each_worker_of_each_node_and_of_all_in_the_seeds_words() -> None:
    first = report("edge0", worker("north", task_info=done(2)), worker("south", task_info=done(3)), counts=done(5))
    # what a node counted that has left the service goes on counting
    left = report("edge1", worker("north"), counts=done(4))
    # a finding is counted where its frame came in
    other = TaskInfo(inference_number=100, served=9)
    joint = report("cloud0", worker("joint", task_info=other), counts=other)
    found = status(reports={"edge0": first, "edge1": left, "cloud0": joint})
    assert metric(found, "inferenceNumber") == "9"
    body = msgspec.to_builtins(found)
    outputs = {each["name"]: each["output"] for each in body["workers"]}
    assert {name: output["taskInfo"]["inferenceNumber"] for name, output in outputs.items()} == {
        "north": 2, "south": 3, "joint": 100,
    }  # fmt: skip
    assert outputs["north"]["models"] == [{"format": "onnx", "url": "/models/small.onnx"}]
    assert outputs["joint"]["models"] == []
    whole = body["output"]["taskInfo"]
    assert [whole[name] for name in ("inferenceNumber", "startTime", "currentTime")] == [9, "2026-01-04", "2026-02-05"]
    by_node = {each["node"]: each["taskInfo"]["inferenceNumber"] for each in body["nodes"]}
    assert by_node == {"edge0": 5, "edge1": 4, "cloud0": 100}


def test_distributions_stay_out_of_it() -> None:
    busy = msgspec.structs.replace(done(2), edge_latency=Histogram(buckets={"1": 2}))
    found = status(reports={"edge0": report("edge0", worker("north", task_info=busy), counts=busy)})
    north = next(each for each in found.workers if each.name == "north")
    assert north.output.task_info == found.output.task_info == done(2)


def test_planning_again_with_the_status_written_asks_for_no_second_write() -> None:
    up = reports(worker("north"), worker("south"))
    later = seen(reports=up, status=status(reports=up), now="2026-01-01T01:00:00Z")
    assert all(isinstance(action, Send) for action in plan(CROSSING, later))
    more = {**up, "edge0": report("edge0", worker("north", task_info=done(1)), worker("south"))}
    assert any(isinstance(action, WriteStatus) for action in plan(CROSSING, replace(later, reports=more)))


def pod(part: str, *, ready: bool = True) -> dict[str, Any]:
    role = "cloud" if part == "joint" else "edge"
    labels = {"jointinferenceservice.sedna.io/worker-type": role, "halimede.io/worker": part}
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    state = {"name": "worker", "state": {"running": {}}}
    return {
        "metadata": {"name": f"pod-{part}", "labels": labels},
        "spec": {"nodeName": "edge0"},
        "status": {"phase": "Running", "conditions": [condition], "containerStatuses": [state]},
    }


@pytest.mark.parametrize(("ready", "phase"), [(True, "Running"), (False, "Pending")])
def test_pods_say_how_workers_stand_and_nodes_what_they_have_done(ready: bool, phase: str) -> None:
    north = WorkerReport(name="pod-north", role="edge", phase="Running", task_info=done(2))
    pods = ClusterWorkers({}, (pod("north", ready=ready), pod("joint")), SECRETS)
    settings = replace(SETTINGS, host_paths=("/models",))
    found = status(reports={"edge0": report("edge0", north, counts=done(2))}, workload=ServiceWorkload(pods, settings))
    states = {"north": ("edge0", phase, ""), "south": ("", "Pending", ""), "joint": ("edge0", "Running", "")}
    assert said(found) == states
    counted = {each.name: each.output.task_info for each in found.workers if each.output}
    assert counted == {"north": done(2), "south": None, "joint": None}
