"""Services with tiers in GM: what each node is sent, and what the status says of each tier."""

from __future__ import annotations

from typing import Any

from halimede.messages import Output, Status, TaskInfo, WorkerReport
from services.gm.cluster.port import NodeReport
from services.gm.controllers import Observed, plan
from services.gm.controllers.base import Keep, Send
from tests.integration.gm_world import metric, model, service
from tests.unit.gm.test_plan import BIG, SMALL, deliveries, node, reported, seen_where, stored, verdict, written

MIDDLE, FOUND = stored(model("middle")), stored(model("found", url="/found.json", format="calibration"))


TEMPLATE = {"spec": {"nodeName": "gate0", "containers": [{"name": "worker", "image": "halimede/worker"}]}}
GATE = {"model": {"name": "middle"}, "calibration": {"name": "found"}, "hardExampleMining": {"name": "Margin"}}
SITE = stored(service(tiers=[{"name": "gate", "template": TEMPLATE, **GATE}]))


def seen(**changes: Any) -> Observed:
    placed = {"edge0": frozenset({"edge"}), "gate0": frozenset({"gate"}), "cloud0": frozenset({"cloud"})}
    return seen_where(placed, SMALL, MIDDLE, BIG, FOUND, **changes)


def report(on: str, part: str, phase: Any = "Running", **done: int) -> NodeReport:
    role: Any = "edge" if part == "edge" else "cloud"
    info = TaskInfo(**done)  # type: ignore[arg-type]  # counts alone
    worker = WorkerReport(name=f"w-{part}", role=role, part=part, phase=phase, task_info=info)
    return reported(SITE, on, worker, phase=phase, output=Output(task_info=info))


def reports(gate: Any = "Running") -> dict[str, NodeReport]:
    return {
        "edge0": report("edge0", "edge", inference_number=10, cloud_inference_number=6, uploaded_bytes=600),
        "gate0": report("gate0", "gate", gate, served=6, deferred=2, uploaded_bytes=200),
        "cloud0": report("cloud0", "cloud", served=2),
    }


def status(**changes: Any) -> Status:
    return written(plan(SITE, seen(**changes)))


def test_each_node_gets_the_models_of_its_tier_and_the_service() -> None:
    assert deliveries(SITE, seen()) == [
        Send("edge0", SMALL), Send("edge0", SITE),
        Send("gate0", MIDDLE), Send("gate0", FOUND), Send("gate0", SITE),
        Send("cloud0", BIG), Send("cloud0", SITE),
    ]  # fmt: skip


def test_a_tier_whose_model_is_missing_is_named_and_the_others_go_on() -> None:
    references = {each.key: each for each in (SMALL, BIG, FOUND)}
    assert Keep("gate0", SITE.key, SITE.metadata.uid) in deliveries(SITE, seen(references=references))
    assert Send("edge0", SITE) in deliveries(SITE, seen(references=references))
    found = status(references=references, reports={k: v for k, v in reports().items() if k != "gate0"})
    assert verdict(found) == ("Degraded", "ModelNotFound")
    assert "default/models/middle" in found.conditions[-1].message
    (gate,) = (worker for worker in found.workers if worker.name == "gate")
    assert (gate.phase, gate.reason, gate.node) == ("Pending", "ModelNotFound", "gate0")


def test_a_tier_on_a_node_that_there_is_not_is_named() -> None:
    nodes = {name: node(name) for name in ("edge0", "cloud0")}
    found = status(nodes=nodes, reports={k: v for k, v in reports().items() if k != "gate0"})
    assert verdict(found) == ("Degraded", "NodeNotFound")
    assert found.conditions[-1].message.startswith("spec.tiers[0].template.spec.nodeName: node gate0")


def test_the_status_says_of_each_tier_how_it_is_and_what_it_did_and_counts_a_sample_once() -> None:
    found = status(reports=reports())
    assert found.phase == "Running"
    assert {w.name: (w.role, w.node, w.phase) for w in found.workers} == {
        "edge": ("edge", "edge0", "Running"),
        "gate": ("cloud", "gate0", "Running"),
        "cloud": ("cloud", "cloud0", "Running"),
    }
    assert [metric(found, key) for key in ("served.gate", "deferred.gate", "uploadedBytes.gate", "served.cloud")] == [
        "6", "2", "200", "2"
    ]  # fmt: skip
    keys = [each.key for each in found.metrics]
    assert not {"deferred.cloud", "served.edge"} & set(keys), "the last one asks nobody, the first is the service's own"
    (gate,) = (worker.output for worker in found.workers if worker.name == "gate")
    assert (gate.task_info.deferred, len(gate.models)) == (2, 2)
    counts = [metric(found, key) for key in ("inferenceNumber", "cloudInferenceNumber", "uploadedBytes")]
    assert counts == ["10", "6", "600"]


def test_a_dead_tier_degrades_the_service() -> None:
    found = status(reports=reports(gate="Failed"))
    assert verdict(found) == ("Degraded", "WorkerFailed")
    assert found.conditions[-1].message.startswith("gate worker on node gate0")


def test_what_a_tier_did_on_a_node_that_has_left_goes_on_counting() -> None:
    placed = {"edge0": frozenset({"edge"}), "cloud0": frozenset({"cloud"})}
    assert metric(status(reports=reports(), placed=placed), "deferred.gate") == "2"


def test_without_tiers_nothing_is_said_of_them() -> None:
    found = written(plan(stored(service()), seen(reports={})))
    assert found.workers == []
    assert not [each for each in found.metrics if "." in each.key]
