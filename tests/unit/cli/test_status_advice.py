"""What there is to do, of everything that can be in trouble."""

from __future__ import annotations

from typing import Any

from halimede.cli import status_advice
from halimede.cli.commands.status import Snapshot, document
from halimede.messages import NodeInfo


def resource(name: str, phase: str, reason: str = "", message: str = "") -> dict[str, Any]:
    condition = {"type": phase, "status": "True", "reason": reason, "message": message}
    return {
        "metadata": {"namespace": "default", "name": name},
        "status": {"phase": phase, "conditions": [condition]},
    }


def test_served_models_and_datasets_in_trouble_are_something_to_do() -> None:
    seen = Snapshot(
        "broker",
        gm={"version": "1"},
        nodes=(),
        services={"ji": [resource("helmet", "Running")], "mei": [resource("gate", "Failed", "Crashed", "code 1")]},
        served=[resource("faces", "Pending", "FrameworkNotSupported", "tensorflow"), resource("off", "Stopped")],
        datasets=[resource("data", "Failed", "DatasetNotFound", "/data is not there")],
    )
    about = {task.about: task.do for task in seen.tasks()}
    assert "im/faces" in about
    assert "ONNX" in about["im/faces"]
    assert "put the data at spec.url" in about["dataset/data"]
    assert "halimede logs gate" in about["mei/gate"]
    assert "ji/helmet" not in about
    assert "im/off" not in about
    shown = document(seen, seen.tasks())
    assert shown["healthy"] is False
    assert {row["name"] for row in shown["services"]} == {"helmet", "gate", "faces", "off"}


def test_only_joint_services_are_said_to_have_logs() -> None:
    kinds = {}
    for kind in ("ji", "im", "dataset"):
        (task,) = status_advice.on_resources(kind, [resource("x", "Failed", "Whatever")])
        kinds[kind] = task.do
    assert "halimede logs" in kinds["ji"]
    assert "halimede logs" not in kinds["im"] + kinds["dataset"]


def test_what_a_served_model_cannot_have_without_kubernetes_has_a_remedy() -> None:
    for reason, part in (
        ("ImageNotSupported", "remove spec.image"),
        ("ReplicasNotSupported", "set spec.replicas"),
        ("NodeMismatch", "halimede nodes"),
    ):
        (task,) = status_advice.on_resources("im", [resource("faces", "Degraded", reason)])
        assert part in task.do


def test_what_the_broker_refuses_to_gm_and_to_a_local_controller_is_something_to_do() -> None:
    filters = ["node/edge0/sedna/insert/+/+/+"]
    (gm,) = status_advice.on_manager({"version": "1", "refused": filters})
    (node,) = status_advice.on_nodes([NodeInfo(name="edge0", online=True, version="1", refused=filters)], "1")
    assert (gm.about, node.about) == ("gm", "node/edge0")
    for task in (gm, node):
        assert filters[0] in task.what
        assert "access rules" in task.do
    assert status_advice.on_manager({"version": "1", "refused": []}) == []
