"""A multi-edge service on a node: which of its workers run here, what they are told, and how they are reported."""

from __future__ import annotations

import json
from typing import Any

from halimede.messages import TaskInfo, WorkerReport
from halimede.names import Key
from services.lc.paths import Worker
from services.lc.status_reporter import compose
from tests.integration.gm_world import multi_edge
from tests.integration.lc_world import model
from tests.unit.lc.test_plan import decide

LOBBY = Key("multiedgeinferenceservices", "default", "lobby")
DOOR, YARD, JOINT = (Worker("default", f"lobby.{part}.edge0") for part in ("door", "yard", "joint"))


def lobby(*, gate: str = "edge1", cloud: str = "", **door: Any) -> dict[str, Any]:
    """Doors and yard on edge0, the gate elsewhere; ``cloud``: where the joint is."""

    def member(node: str, model: str = "embed", **more: Any) -> dict[str, Any]:
        pod = {"nodeName": node, "containers": [{"name": "worker", "image": "halimede/worker"}]}
        return {"model": {"name": model}, "template": {"spec": pod}, **more}

    yard = member("edge0", source={"cameras": ["yard-1", "yard-2"]}, deadlineMs=500)
    body = multi_edge("lobby", cloud=cloud, door=member("edge0", **door), yard=yard, gate=member(gate, "other"))
    body["spec"]["application"]["parameters"] = [{"key": "threshold", "value": "0.7"}]
    body["metadata"] |= {"namespace": "default", "uid": "u1", "generation": 1}
    return body


def test_the_workers_that_ask_for_this_node_run_as_members_and_know_the_others() -> None:
    decided = decide(lobby(), model("embed"))
    starts = {start.worker: start for start in decided.start}
    assert set(starts) == {DOOR, YARD}
    yard = starts[YARD]
    assert (yard.spec.argv, yard.role) == (("python", "-m", "halimede", "worker", "member"), "edge")
    told = yard.spec.env
    assert json.loads(told["MEMBERS"]) == ["door", "yard", "gate"]
    assert json.loads(told["CAMERAS"]) == ["door", "yard-1", "yard-2", "gate"]
    assert json.loads(told["SOURCE"]) == {"cameras": ["yard-1", "yard-2"]}
    assert json.loads(starts[DOOR].spec.env["SOURCE"]) == {"cameras": ["door"]}
    assert json.loads(told["APPLICATION"])["parameters"] == [{"key": "threshold", "value": "0.7"}]
    assert (told["PART"], told["DEADLINE_MS"], told["JOINT"]) == ("yard", "500", "members")
    assert "HEM_NAME" not in told
    assert yard.desired.models[0].path == "/cache/embed"


def test_a_cloud_worker_needs_no_model_and_runs_as_the_joint() -> None:
    decided = decide(lobby(cloud="edge0"), model("embed"))
    (joint,) = (start for start in decided.start if start.worker == JOINT)
    assert joint.spec.argv[-1] == "joint"
    assert (joint.role, joint.model, joint.desired) == ("cloud", None, None)
    assert joint.spec.env["JOINT"] == "cloud"
    assert not joint.spec.env.keys() & {"MODEL_URL", "MODEL_FILE"}


def test_a_member_waits_for_its_detector_as_for_its_model() -> None:
    wanting = lobby(detector={"name": "finder"})
    waiting = decide(wanting, model("embed"))
    assert [start.worker for start in waiting.start] == [YARD]
    lack = waiting.states[LOBBY].lacks[DOOR]
    assert (lack.phase, lack.reason) == ("Pending", "ModelNotFound")
    assert "finder" in lack.message
    decided = decide(wanting, model("embed"), model("finder"))
    door = next(start for start in decided.start if start.worker == DOOR)
    assert door.spec.env["DETECTOR_URL"] == "/cache/finder"
    outputs = decided.states[LOBBY].models
    assert [output.url for output in outputs] == ["/models/embed.onnx", "/models/finder.onnx", "/models/embed.onnx"]


def test_each_member_is_reported_by_its_name_with_its_own_counts() -> None:
    standing = decide(lobby(), model("embed")).states[LOBBY]
    reports = {worker: WorkerReport(name=worker.name, role="edge", phase="Running") for worker in (DOOR, YARD)}
    counts = {DOOR: TaskInfo(inference_number=3), YARD: TaskInfo(inference_number=4)}
    status = compose(standing, reports, counts)
    assert (status.phase, status.status) == ("Running", "running")
    assert status.output.task_info.inference_number == 7
    told = {worker.part: worker.task_info.inference_number for worker in status.workers if worker.task_info}
    assert told == {"door": 3, "yard": 4}
