"""A multi-edge service on a node: which of its workers run here, what they are told, and how they are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from halimede.messages import TaskInfo, WorkerReport
from halimede.names import Key
from services.lc.paths import NodePaths, Worker
from services.lc.status_reporter import compose
from services.lc.worker_files import put_aside, remove
from tests.integration.lc_world import model
from tests.unit.lc.test_plan import decide

LOBBY = Key("multiedgeinferenceservices", "default", "lobby")
DOOR, YARD, JOINT = (Worker("default", f"lobby.{part}.edge0") for part in ("door", "yard", "joint"))


def template(node: str) -> dict[str, Any]:
    return {"spec": {"nodeName": node, "containers": [{"name": "worker", "image": "halimede/worker"}]}}


def lobby(*, gate: str = "edge1", cloud: str = "", **door: Any) -> dict[str, Any]:
    """Doors and yard on edge0, the gate elsewhere; ``cloud``: where the joint is."""
    spec: dict[str, Any] = {
        "application": {"name": "reid", "parameters": [{"key": "threshold", "value": "0.7"}]},
        "edgeWorkers": [
            {"name": "door", "model": {"name": "embed"}, "template": template("edge0"), **door},
            {
                "name": "yard",
                "model": {"name": "embed"},
                "source": {"cameras": ["yard-1", "yard-2"]},
                "deadlineMs": 500,
                "template": template("edge0"),
            },
            {"name": "gate", "model": {"name": "other"}, "template": template(gate)},
        ],
    }
    if cloud:
        spec["cloudWorker"] = {"template": template(cloud)}
    meta = {"name": "lobby", "namespace": "default", "uid": "u1", "generation": 1}
    return {
        "apiVersion": "sedna.io/v1alpha1", "kind": "MultiEdgeInferenceService", "metadata": meta, "spec": spec
    }  # fmt: skip


def test_the_workers_that_ask_for_this_node_run_as_members_and_know_the_others() -> None:
    decided = decide(lobby(), model("embed"))
    starts = {start.worker: start for start in decided.start}
    assert set(starts) == {DOOR, YARD}
    yard = starts[YARD]
    assert yard.spec.argv == ("python", "-m", "halimede", "worker", "member")
    assert yard.role == "edge"
    told = yard.spec.env
    assert json.loads(told["MEMBERS"]) == ["door", "yard", "gate"]
    assert json.loads(told["CAMERAS"]) == ["door", "yard-1", "yard-2", "gate"]
    assert json.loads(told["SOURCE"]) == {"cameras": ["yard-1", "yard-2"]}
    assert json.loads(starts[DOOR].spec.env["SOURCE"]) == {"cameras": ["door"]}
    assert json.loads(told["APPLICATION"])["parameters"] == [{"key": "threshold", "value": "0.7"}]
    assert (told["PART"], told["DEADLINE_MS"], told["JOINT"]) == ("yard", "500", "members")
    assert "HEM_NAME" not in told
    assert yard.desired
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
    assert status.output
    assert status.output.task_info
    assert status.output.task_info.inference_number == 7
    told = {worker.part: worker.task_info.inference_number for worker in status.workers if worker.task_info}
    assert told == {"door": 3, "yard": 4}


def test_folders_of_a_services_own_workers_are_found_and_nobody_elses(tmp_path: Path) -> None:
    folders = NodePaths(tmp_path, "edge0")
    names = ["lobby.door.edge0", "lobby.joint.edge0", "lobby-edge-edge0", "lobby.a.b.edge0", "lobby2.door.edge0"]
    for name in names:
        folders.worker(Worker("default", name)).mkdir(parents=True)
    put_aside(folders, LOBBY)
    remove(folders)
    left = {path.name for path in folders.worker(DOOR).parent.iterdir()}
    assert left == set(names[2:])
