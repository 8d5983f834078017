"""Each check: the facts with which it gives a row, and those with which it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

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


def with_body(kind: str = "ji", **fields: Any) -> SystemFacts:
    return replace(WELL, resources={kind: [body(**fields)]})


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
UNREADY = "Kubernetes takes it as not ready (NodeStatusUnknown: Kubelet stopped posting node status.)"
CASES = {
    "all is well": Case(WELL),
    "two GMs": Case(replace(WELL, bus=BusFacts(stores={"a", "b"})), "global manager", "problem", True, ("2 are",)),
    "one GM": Case(replace(WELL, bus=BusFacts(stores={"a"}))),
    "another version of GM": Case(
        replace(WELL, version="2"), "global manager", "warning", False, ("its version is 1, this command's is 2",)
    ),
    "GM without its broker": Case(with_manager(connected=False), "broker", "problem", True, ("not connected",)),
    "GM's store": Case(with_manager(store="it is full"), "store", "problem", True, ("it is full",)),
    "GM's old store": Case(with_manager(quarantined="x"), "store", "problem", True, ("remove these files",)),
    "no time": Case(with_manager(time=""), "clock", "warning", False, ("does not send its time",)),
    "1.5 s ahead": Case(with_manager(time=after(1.5))),
    "30 s ahead": Case(with_manager(time=after(30)), "clock", "warning", False, ("30.0 s ahead",)),
    "30 s behind": Case(with_manager(time=after(-30)), "clock", "warning", False, ("30.0 s behind",)),
    "2 days ahead": Case(with_manager(time=after(2 * DAY)), "clock", "warning", False, ("2.0 days ahead",)),
    "2 days ahead, with TLS": Case(
        replace(with_manager(time=after(2 * DAY)), tls=True), "clock", "problem", True, ("2.0 days ahead",)
    ),
    "no node": Case(replace(WELL, nodes=[]), "nodes", "problem", True, ("halimede lc --node NAME",)),
    "a node is offline": Case(with_node(online=False), "nodes", "warning", True, ("halimede delete node edge0",)),
    "a node is drained": Case(with_node(drained=True)),
    "a node of Kubernetes": Case(
        with_node(online=False, trouble=UNREADY), "nodes", "warning", True, (UNREADY, "kubectl describe node edge0")
    ),
    "a node's version": Case(with_node(version="2"), "nodes", "warning", True, ("version 2 is not",)),
    "a node's trouble": Case(with_node(trouble="its store is full"), "nodes", "warning", True, ("its store is full",)),
    "a node's resources": Case(with_node(unknown=["default/x/y"]), "nodes", "warning", True, ("default/x/y",)),
    "a service runs": Case(with_body()),
    "a service failed": Case(
        with_body(phase="Failed", reason="Crashed"),
        "services",
        "problem",
        True,
        ("ji/helmet: Failed: Crashed: why", "halimede logs helmet"),
    ),
    "a service waits": Case(
        with_body(phase="Pending", reason="NodeDrained"), "services", "warning", True, ("uncordon",)
    ),
    "a crash loop of pods": Case(
        with_body(phase="Failed", reason="CrashLoopBackOff"), "services", "problem", True, ("kubectl logs",)
    ),
    "a mount of pods": Case(
        with_body(phase="Failed", reason="FailedMount"), "services", "problem", True, ("kubectl describe pods",)
    ),
    "a node of pods": Case(
        with_body(phase="Degraded", reason="NodeUnreachable"), "services", "warning", True, ("kubectl get",)
    ),
    "drift": Case(
        with_body(beside=({"type": "Drift", "status": "True", "reason": "SamplesChanged", "message": "differ"},)),
        "services",
        "warning",
        False,
        ("SamplesChanged: differ", "halimede calibrate"),
    ),
    "drift that is over": Case(with_body(beside=({"type": "Drift", "status": "False", "reason": "x"},))),
    "a starved training of a learning loop": Case(
        with_body("tm", phase="Training", reason="Starved"), "services", "warning", True, ("Starved", "spec.cpuShare")
    ),
    "a cloud that is too slow": Case(
        with_body(beside=({"type": "Overload", "status": "True", "reason": "CloudTooSlow", "message": "0.8/s"},)),
        "services",
        "warning",
        False,
        ("CloudTooSlow: 0.8/s", "targetUploadRatio"),
    ),
    "a subscription of GM is refused": Case(
        with_manager(refused=["node/+/sedna/upstream/sync"]),
        "granted",
        "problem",
        True,
        ("gm: ", "node/+/sedna/upstream/sync", "access rules"),
    ),
    "a subscription of a node is refused": Case(
        with_node(refused=["node/edge0/+/sedna/downstream/#"]),
        "nodes",
        "problem",
        True,
        ("node/edge0: ", "node/edge0/+/sedna/downstream/#", "access rules"),
    ),
    "10 % degraded": Case(with_manager(degraded=[answers(100, 10)])),
    "11 % degraded": Case(
        with_manager(degraded=[answers(100, 11)]), "answers", "warning", False, ("11% of its answers", "(11 of 100)")
    ),
    "50 % degraded": Case(with_manager(degraded=[answers(100, 50)]), "answers", "warning", False, ("ji/helmet",)),
    "51 % degraded": Case(with_manager(degraded=[answers(100, 51)]), "answers", "problem", True, ("ji/helmet: 51%",)),
    "all of 9 degraded": Case(with_manager(degraded=[answers(9, 9)])),
    "a model failed": Case(with_body("model", phase="Failed"), "models", "problem", True, ("model/helmet",)),
    "a model whose new content cannot be used": Case(
        with_body("model", phase="Ready", reason="ContentUnusable"),
        "models",
        "warning",
        False,
        ("model/helmet: ContentUnusable", "correct the file"),
    ),
    "a dataset whose files list the same samples": Case(
        with_body("dataset", phase="Ready", reason="SamplesRepeated"),
        "datasets",
        "warning",
        False,
        ("dataset/helmet: SamplesRepeated", "correct what the message names"),
    ),
    "a dataset without a sample": Case(
        with_body("dataset", phase="Ready", reason="NoSamples"), "datasets", "warning", False, ("NoSamples",)
    ),
    "models with different classes": Case(
        with_models(model("small", "palm"), model("big")),
        "services",
        "warning",
        False,
        ("ji/helmet: small answers palm, and big numbers of classes", "set `spec.labels` of both"),
    ),
    "models with the same classes": Case(with_models(model("small", "palm"), model("big", "palm"))),
    "a model of another version of GM": Case(with_models(model("small", "palm"), model("big", newer=1))),
    "a model waits": Case(with_body("model", phase="Pending"), "models", "warning", True, ("model/helmet",)),
    "a dataset failed": Case(with_body("dataset", phase="Failed"), "datasets", "problem", True, ("dataset/helmet",)),
    "a dataset waits": Case(with_body("dataset", phase="Pending"), "datasets", "warning", True, ("dataset/helmet",)),
    "a report of now": Case(with_body(nodes=(node_of(-5),))),
    "a report of the future": Case(
        with_body(nodes=(node_of(300),)), "node clocks", "warning", False, ("edge0 (+300 s)", "NTP")
    ),
    "a clock a minute behind": Case(
        with_manager(clocks={"edge0": -70.0}), "node clocks", "warning", False, ("node/edge0", "70.0 s behind")
    ),
    "a clock days behind": Case(
        with_manager(clocks={"edge0": -3 * DAY}), "node clocks", "warning", False, ("3.0 days behind",)
    ),
    "a clock days behind, with TLS": Case(
        replace(with_manager(clocks={"edge0": -3 * DAY}), tls=True), "node clocks", "problem", True, ("3.0 days",)
    ),
    "a report of now by a clock days behind": Case(
        replace(with_manager(clocks={"edge0": -3 * DAY}), resources={"ji": [body(nodes=(node_of(-3 * DAY),))]}),
        "node clocks",
        "warning",
        False,
        ("3.0 days behind",),
    ),
    "no report for 6 s": Case(
        with_manager(quiet=[QuietWorker("default", "helmet-cloud", "cloud0", after(-6))]),
        "reports",
        "fact",
        False,
        ("worker/helmet-cloud: no report for 6 s on node cloud0",),
    ),
    "an old report": Case(
        with_body(nodes=(node_of(-300),)), "reports", "warning", False, ("helmet on edge0 for 300 s",)
    ),
    "an old report of a node that is offline": Case(with_body(nodes=(node_of(-300, online=False),))),
    "an old report of a worker that starts": Case(with_body(nodes=(node_of(-300, phase="Pending"),))),
    "a camera runs": Case(with_camera("running")),
    "a camera has ended": Case(with_camera("stopped", "Ended")),
    "a camera is stalled": Case(
        with_camera("stalled", "Stalled", "no frame"), "cameras", "warning", False, ("stalled: Stalled: no frame",)
    ),
    "a camera is gone": Case(
        with_camera("gone", "Gone"), "cameras", "warning", False, (f"empty retained message on {TOPIC}",)
    ),
    "a camera of nobody has failed": Case(
        with_camera("failed", "Unreachable"), "cameras", "warning", False, ("camera/a: failed",)
    ),
    "a camera of a service has failed": Case(
        replace(with_camera("failed", "Unreachable"), resources={"ji": [READER]}),
        "cameras",
        "problem",
        True,
        ("Unreachable", "read by helmet"),
    ),
    "a camera that an edge worker opens has failed": Case(
        with_camera("failed", "Unauthorized", topic=NODE_CAMERA_STATUS.at(node="edge0", ns="default", camera="a").text),
        "cameras",
        "problem",
        True,
        ("check its user and password",),
    ),
    "a dead letter that GM has received": Case(
        with_manager(letters=RecentLetters(7, "a/b", "nonsense")), "dead letters", "warning", False, ("7 in the last",)
    ),
    "a dead letter": Case(
        replace(WELL, bus=BusFacts(dead_letters=[LETTER])), "dead letters", "warning", False, ("a/b: nonsense",)
    ),
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
