"""Each check: the facts with which it gives a row, and those with which it does not; what there is to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from halimede.cli.commands.status import Snapshot, document
from halimede.cli.system_facts import SystemAnswers
from halimede.health_checks.check import Check
from halimede.health_checks.facts import (
    BusFacts,
    ClockComparison,
    DegradedAnswers,
    ManagerFacts,
    QuietWorker,
    RecentLetters,
    SystemFacts,
)
from halimede.health_checks.registry import CHECKS, examine
from halimede.health_checks.resources import examine_kind
from halimede.messages import CameraStatus, DeadLetter, NodeInfo
from halimede.topics import NODE_CAMERA_STATUS

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = 86_400.0
TOPIC = "default/sedna/cameras/a/status"
NODE = NodeInfo(name="edge0", online=True, version="1")


def after(seconds: float) -> str:
    """Return the time some seconds after NOW."""
    return (NOW + timedelta(seconds=seconds)).isoformat()


def body(
    phase: str = "Running", reason: str = "", nodes: tuple[Any, ...] = (), beside: tuple[Any, ...] = (), **spec: Any
) -> dict[str, Any]:
    """Return a service called helmet; ``beside`` are conditions beside its phase."""
    conditions = [*beside, {"type": phase, "reason": reason, "message": "why", "lastTransitionTime": after(-9)}]
    status = {"phase": phase, "conditions": conditions, "nodes": list(nodes)}
    return {"metadata": {"namespace": "default", "name": "helmet"}, "spec": spec, "status": status}


def node_of(seconds: float, **fields: Any) -> dict[str, Any]:
    """Return a service's node whose last report was made some seconds after NOW."""
    return {"node": "edge0", "online": True, "phase": "Running", "taskInfo": {"currentTime": after(seconds)}, **fields}


WELL = SystemFacts(NOW, ManagerFacts(version="1", time=after(0)), "1", nodes=[NODE], clock=ClockComparison(NOW, 0.01))


def with_manager(**fields: Any) -> SystemFacts:
    return replace(WELL, manager=msgspec.structs.replace(WELL.manager, **fields))


def with_node(**fields: Any) -> SystemFacts:
    return replace(WELL, nodes=[msgspec.structs.replace(NODE, **fields)])


def with_body(kind: str = "ji", phase: str = "Running", reason: str = "", **fields: Any) -> SystemFacts:
    return replace(WELL, resources={kind: [body(phase, reason, **fields)]})


def with_condition(kind: str, reason: str, message: str) -> SystemFacts:
    return with_body(beside=({"type": kind, "status": "True", "reason": reason, "message": message},))


def answers(answered: int, degraded: int) -> DegradedAnswers:
    return DegradedAnswers("ji", "default", "helmet", answered, degraded)


def with_camera(state: Any, reason: str = "", error: str = "", topic: str = TOPIC) -> SystemFacts:
    camera = CameraStatus(camera="a", state=state, reason=reason, error=error)
    return replace(WELL, bus=BusFacts(cameras=[(topic, camera)]))


@dataclass(frozen=True)
class Case:
    """Facts, and the rows that are not ok: name and level, whether ``status`` fails, and a text of each."""

    facts: SystemFacts
    name: str = ""
    level: str = ""
    fails: bool = False
    texts: tuple[str, ...] = field(default=())


def problem(facts: SystemFacts, name: str, *texts: str) -> Case:
    return Case(facts, name, "problem", True, texts)


def failing(facts: SystemFacts, name: str, *texts: str) -> Case:
    """Return a case of a warning with which ``status`` fails."""
    return Case(facts, name, "warning", True, texts)


def warning(facts: SystemFacts, name: str, *texts: str) -> Case:
    return Case(facts, name, "warning", False, texts)


def model(name: str, *labels: str, **spec: Any) -> dict[str, Any]:
    spec = {"url": "/m.onnx", "format": "onnx", "labels": list(labels), "postprocess": {"task": "detection"}, **spec}
    return {"metadata": {"namespace": "default", "name": name}, "spec": spec, "status": {"phase": "Ready"}}


def with_models(*models: dict[str, Any]) -> SystemFacts:
    """Return a service with the Models small and big, and these Models."""
    template = {"spec": {"containers": [{"name": "worker"}]}}
    edge = {"model": {"name": "small"}, "hardExampleMining": {"name": "BoxCount"}, "template": template}
    service = body(edgeWorker=edge, cloudWorker={"model": {"name": "big"}, "template": template})
    return replace(WELL, resources={"ji": [service], "model": models})


READER = body(edgeWorker={"source": {"cameras": ["a"]}})
LETTER = DeadLetter(client="c", topic="a/b", reason="nonsense", size=3)
UPSTREAM, DOWNSTREAM = "node/+/sedna/upstream/sync", "node/edge0/+/sedna/downstream/#"
BEHIND = {"edge0": -3 * DAY}
UNREADY = "Kubernetes takes it as not ready (NodeStatusUnknown: Kubelet stopped posting node status.)"
CASES = {
    "all is well": Case(WELL),
    "two GMs": problem(replace(WELL, bus=BusFacts(online_stores={"a", "b"})), "global manager", "2 are"),
    "one GM": Case(replace(WELL, bus=BusFacts(online_stores={"a"}))),
    "another version of GM": warning(
        replace(WELL, version="2"), "global manager", "its version is 1, this command's is 2"
    ),
    "GM without its broker": problem(with_manager(connected=False), "broker", "not connected"),
    "GM's store": problem(with_manager(store="it is full"), "store", "it is full"),
    "GM's old store": problem(with_manager(quarantined="x"), "store", "remove these files"),
    "no time": warning(with_manager(time=""), "clock", "does not send its time"),
    "1.5 s ahead": Case(with_manager(time=after(1.5))),
    "30 s ahead": warning(with_manager(time=after(30)), "clock", "30.0 s ahead"),
    "30 s behind": warning(with_manager(time=after(-30)), "clock", "30.0 s behind"),
    "2 days ahead": warning(with_manager(time=after(2 * DAY)), "clock", "2.0 days ahead"),
    "2 days ahead, with TLS": problem(replace(with_manager(time=after(2 * DAY)), tls=True), "clock", "2.0 days ahead"),
    "no node": problem(replace(WELL, nodes=[]), "nodes", "halimede lc --node NAME"),
    "a node is offline": failing(with_node(online=False), "nodes", "halimede delete node edge0"),
    "a node is drained": Case(with_node(drained=True)),
    "a node of Kubernetes": failing(
        with_node(online=False, trouble=UNREADY), "nodes", UNREADY, "kubectl describe node edge0"
    ),
    "a node's version": failing(with_node(version="2"), "nodes", "version 2 is not"),
    "a node's trouble": failing(with_node(trouble="its store is full"), "nodes", "its store is full"),
    "a node's resources": failing(with_node(unknown=["default/x/y"]), "nodes", "default/x/y"),
    "a service runs": Case(with_body()),
    "a service failed": problem(
        with_body("ji", "Failed", "Crashed"), "services", "ji/helmet: Failed: Crashed: why", "halimede logs helmet"
    ),
    "a service waits": failing(with_body("ji", "Pending", "NodeDrained"), "services", "uncordon"),
    "a crash loop of pods": problem(with_body("ji", "Failed", "CrashLoopBackOff"), "services", "kubectl logs"),
    "a mount of pods": problem(with_body("ji", "Failed", "FailedMount"), "services", "kubectl describe pods"),
    "a node of pods": failing(with_body("ji", "Degraded", "NodeUnreachable"), "services", "kubectl get"),
    "an image without Kubernetes": failing(
        with_body("im", "Degraded", "ImageNotSupported"), "services", "remove spec.image"
    ),
    "replicas without Kubernetes": failing(
        with_body("im", "Degraded", "ReplicasNotSupported"), "services", "set spec.replicas"
    ),
    "another node": failing(with_body("im", "Degraded", "NodeMismatch"), "services", "halimede nodes"),
    "drift": warning(
        with_condition("Drift", "SamplesChanged", "differ"), "services", "SamplesChanged: differ", "halimede calibrate"
    ),
    "drift that is over": Case(with_body(beside=({"type": "Drift", "status": "False", "reason": "x"},))),
    "a starved training of a learning loop": failing(
        with_body("tm", "Training", "Starved"), "services", "Starved", "spec.cpuShare"
    ),
    "a cloud that is too slow": warning(
        with_condition("Overload", "CloudTooSlow", "0.8/s"), "services", "CloudTooSlow: 0.8/s", "targetUploadRatio"
    ),
    "a subscription of GM is refused": problem(
        with_manager(refused=[UPSTREAM]), "granted", "gm: ", UPSTREAM, "access rules"
    ),
    "a subscription of a node is refused": problem(
        with_node(refused=[DOWNSTREAM]), "nodes", "node/edge0: ", DOWNSTREAM, "access rules"
    ),
    "10 % degraded": Case(with_manager(degraded=[answers(100, 10)])),
    "11 % degraded": warning(with_manager(degraded=[answers(100, 11)]), "answers", "11% of its answers", "(11 of 100)"),
    "50 % degraded": warning(with_manager(degraded=[answers(100, 50)]), "answers", "ji/helmet"),
    "51 % degraded": problem(with_manager(degraded=[answers(100, 51)]), "answers", "ji/helmet: 51%"),
    "all of 9 degraded": Case(with_manager(degraded=[answers(9, 9)])),
    "a model failed": problem(with_body("model", "Failed"), "models", "model/helmet"),
    "a model whose new content cannot be used": warning(
        with_body("model", "Ready", "ContentUnusable"), "models", "model/helmet: ContentUnusable", "correct the file"
    ),
    "a dataset whose files list the same samples": warning(
        with_body("dataset", "Ready", "SamplesRepeated"),
        "datasets",
        "dataset/helmet: SamplesRepeated",
        "correct what the message names",
    ),
    "a dataset without a sample": warning(with_body("dataset", "Ready", "NoSamples"), "datasets", "NoSamples"),
    "models with different classes": warning(
        with_models(model("small", "palm"), model("big")),
        "services",
        "ji/helmet: small answers palm, and big numbers of classes",
        "set `spec.labels` of both",
    ),
    "models with the same classes": Case(with_models(model("small", "palm"), model("big", "palm"))),
    "a model of another version of GM": Case(with_models(model("small", "palm"), model("big", newer=1))),
    "a model waits": failing(with_body("model", "Pending"), "models", "model/helmet"),
    "a dataset failed": problem(with_body("dataset", "Failed"), "datasets", "dataset/helmet"),
    "a dataset waits": failing(with_body("dataset", "Pending"), "datasets", "dataset/helmet"),
    "a report of now": Case(with_body(nodes=(node_of(-5),))),
    "a report of the future": warning(with_body(nodes=(node_of(300),)), "node clocks", "edge0 (+300 s)", "NTP"),
    "a clock a minute behind": warning(
        with_manager(clocks={"edge0": -70.0}), "node clocks", "node/edge0", "70.0 s behind"
    ),
    "a clock days behind": warning(with_manager(clocks=BEHIND), "node clocks", "3.0 days behind"),
    "a clock days behind, with TLS": problem(replace(with_manager(clocks=BEHIND), tls=True), "node clocks", "3.0 days"),
    "a report of now by a clock days behind": warning(
        replace(with_manager(clocks=BEHIND), resources={"ji": [body(nodes=(node_of(-3 * DAY),))]}),
        "node clocks",
        "3.0 days behind",
    ),
    "no report for 6 s": Case(
        with_manager(quiet=[QuietWorker("default", "helmet-cloud", "cloud0", after(-6))]),
        "reports",
        "fact",
        False,
        ("worker/helmet-cloud: no report for 6 s on node cloud0",),
    ),
    "an old report": warning(with_body(nodes=(node_of(-300),)), "reports", "helmet on edge0 for 300 s"),
    "an old report of a node that is offline": Case(with_body(nodes=(node_of(-300, online=False),))),
    "an old report of a worker that starts": Case(with_body(nodes=(node_of(-300, phase="Pending"),))),
    "a camera runs": Case(with_camera("running")),
    "a camera has ended": Case(with_camera("stopped", "Ended")),
    "a camera is stalled": warning(
        with_camera("stalled", "Stalled", "no frame"), "cameras", "stalled: Stalled: no frame"
    ),
    "a camera is gone": warning(with_camera("gone", "Gone"), "cameras", f"empty retained message on {TOPIC}"),
    "a camera of nobody has failed": warning(with_camera("failed", "Unreachable"), "cameras", "camera/a: failed"),
    "a camera of a service has failed": problem(
        replace(with_camera("failed", "Unreachable"), resources={"ji": [READER]}),
        "cameras",
        "Unreachable",
        "read by helmet",
    ),
    "a camera that an edge worker opens has failed": problem(
        with_camera("failed", "Unauthorized", topic=NODE_CAMERA_STATUS.at(node="edge0", ns="default", camera="a").text),
        "cameras",
        "check its user and password",
    ),
    "a dead letter that GM has received": warning(
        with_manager(letters=RecentLetters(7, "a/b", "nonsense")), "dead letters", "7 in the last"
    ),
    "a dead letter": warning(replace(WELL, bus=BusFacts(dead_letters=[LETTER])), "dead letters", "a/b: nonsense"),
}


def rows(facts: SystemFacts) -> list[Check]:
    return [row for row in examine(facts) if row.level != "ok"]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_each_check_gives_its_row_and_only_that(case: Case) -> None:
    if not case.name:
        assert rows(case.facts) == []
        return
    (row,) = rows(case.facts)
    assert (row.name, row.level, row.fails) == (case.name, case.level, case.fails)
    assert row.do
    for text in case.texts:
        assert text in row.found + row.do


def rules() -> Iterator[tuple[str, str, str, bool]]:
    """Yield what a row has of its rule."""
    for _, of_check in CHECKS:
        for rule in of_check:
            yield rule.name, rule.level, rule.follows, rule.fails


def test_each_rule_of_the_list_has_a_case_here_and_each_row_a_rule_of_the_list() -> None:
    fired = {(row.name, row.level, row.follows, row.fails) for case in CASES.values() for row in rows(case.facts)}
    assert fired == set(rules())


def test_a_version_of_gm_that_answers_otherwise_is_read_as_far_as_it_can_be() -> None:
    assert ManagerFacts.of({"version": "0", "epoch": "?"}) == ManagerFacts(version="0")
    assert ManagerFacts.of("0") == ManagerFacts(version="0")
    assert ManagerFacts.of({"version": "0", "epoch": 3, "another": 1}) == ManagerFacts(version="0", epoch=3)


def test_served_models_and_datasets_in_trouble_are_something_to_do() -> None:
    def named(name: str, phase: str, reason: str = "") -> dict[str, Any]:
        return {**body(phase, reason), "metadata": {"namespace": "default", "name": name}}

    resources = {
        "ji": [named("helmet", "Running")],
        "mei": [named("gate", "Failed", "Crashed")],
        "im": [named("faces", "Pending", "FrameworkNotSupported"), named("off", "Stopped")],
        "dataset": [named("data", "Failed", "DatasetNotFound")],
    }
    facts = SystemFacts(NOW, ManagerFacts(version="1"), "1", resources=resources)
    snapshot = Snapshot("broker", answers=SystemAnswers({"version": "1"}, facts, truncated=False))
    about = {check.about: check.do for check in snapshot.checks()}
    assert "ONNX" in about["im/faces"]
    assert "put the data at spec.url" in about["dataset/data"]
    assert "halimede logs gate" in about["mei/gate"]
    assert about.keys().isdisjoint({"ji/helmet", "im/off"})
    shown = document(snapshot, snapshot.checks())
    assert shown["healthy"] is False
    assert [row["name"] for row in shown["services"]] == ["gate", "faces", "off", "helmet"]
    assert {task["about"] for task in shown["todo"]} == {check["about"] for check in shown["checks"]}


def test_only_joint_services_are_said_to_have_logs() -> None:
    for kind in ("ji", "im", "dataset"):
        (check,) = examine_kind(kind, [body("Failed", "Whatever")])
        assert ("halimede logs" in check.do) is (kind == "ji")
