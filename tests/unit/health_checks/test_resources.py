"""What there is to do, of everything that can be in trouble."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from halimede.cli.commands.status import Snapshot, document
from halimede.cli.system_facts import SystemAnswers
from halimede.health_checks.facts import ManagerFacts, SystemFacts
from halimede.health_checks.resources import examine_kind

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def resource(name: str, phase: str, reason: str = "", message: str = "") -> dict[str, Any]:
    condition = {"type": phase, "status": "True", "reason": reason, "message": message}
    return {
        "metadata": {"namespace": "default", "name": name},
        "status": {"phase": phase, "conditions": [condition]},
    }


def test_served_models_and_datasets_in_trouble_are_something_to_do() -> None:
    resources = {
        "ji": [resource("helmet", "Running")],
        "mei": [resource("gate", "Failed", "Crashed", "code 1")],
        "im": [resource("faces", "Pending", "FrameworkNotSupported", "tensorflow"), resource("off", "Stopped")],
        "dataset": [resource("data", "Failed", "DatasetNotFound", "/data is not there")],
    }
    facts = SystemFacts(NOW, ManagerFacts(version="1"), "1", resources=resources)
    snapshot = Snapshot("broker", answers=SystemAnswers({"version": "1"}, facts, truncated=False))
    about = {check.about: check.do for check in snapshot.checks()}
    assert "im/faces" in about
    assert "ONNX" in about["im/faces"]
    assert "put the data at spec.url" in about["dataset/data"]
    assert "halimede logs gate" in about["mei/gate"]
    assert "ji/helmet" not in about
    assert "im/off" not in about
    shown = document(snapshot, snapshot.checks())
    assert shown["healthy"] is False
    assert {row["name"] for row in shown["services"]} == {"helmet", "gate", "faces", "off"}
    assert {task["about"] for task in shown["todo"]} == {check["about"] for check in shown["checks"]}


def test_only_joint_services_are_said_to_have_logs() -> None:
    kinds = {}
    for kind in ("ji", "im", "dataset"):
        (check,) = examine_kind(kind, [resource("x", "Failed", "Whatever")])
        kinds[kind] = check.do
    assert "halimede logs" in kinds["ji"]
    assert "halimede logs" not in kinds["im"] + kinds["dataset"]


def test_what_a_served_model_cannot_have_without_kubernetes_has_a_remedy() -> None:
    for reason, part in (
        ("ImageNotSupported", "remove spec.image"),
        ("ReplicasNotSupported", "set spec.replicas"),
        ("NodeMismatch", "halimede nodes"),
    ):
        (check,) = examine_kind("im", [resource("faces", "Degraded", reason)])
        assert part in check.do
