"""Tiers on a node that runs workers itself: their processes, what they are told, and how they are reported."""

from __future__ import annotations

from typing import Any

from halimede.api.placement import worker_name
from halimede.messages import TaskInfo, WorkerReport
from halimede.names import Key
from services.lc.paths import Worker
from services.lc.status_reporter import compose
from tests.integration.lc_world import model, service
from tests.unit.lc.test_plan import decide

SITE = Key("jointinferenceservices", "default", "site")
EDGE, CLOUD = Worker("default", "site-edge-edge0"), Worker("default", "site-cloud-edge0")
GATE = Worker("default", "site.gate-tier-edge0")


def site(*, tiers: bool = True, cloud: str = "cloud0") -> dict[str, Any]:
    """Return a service with its edge and its gate on this node."""
    body = service("site", cloud_node=cloud)
    edge = body["spec"]["edgeWorker"]
    gate = {"name": "gate", "model": {"name": "middle"}, "calibration": {"name": "found"}, "targetUploadRatio": 0.2}
    gate |= {field: edge[field] for field in ("hardExampleMining", "template")}
    body["spec"] |= {"tiers": [gate]} if tiers else {}
    return body


MODELS = (model("small"), model("middle"), model("found"))


def test_a_tier_is_a_process_of_its_own_that_knows_whom_to_ask() -> None:
    starts = {start.worker: start for start in decide(site(), *MODELS).start}
    assert set(starts) == {EDGE, GATE}
    gate = starts[GATE]
    assert (gate.spec.argv, gate.role) == (("python", "-m", "halimede", "worker", "tier"), "cloud")
    told = gate.spec.env
    assert (told["TIER"], told["NEXT_TIER"], told["HEM_NAME"]) == ("gate", "cloud", "Margin")
    assert (told["TARGET_UPLOAD_RATIO"], told["CALIBRATION_URL"]) == ("0.2", "/cache/found")
    assert not told.keys() & {"SOURCE", "DEADLINE_MS"}
    assert (starts[EDGE].spec.env["TIER"], starts[EDGE].spec.env["NEXT_TIER"]) == ("edge", "gate")


def test_a_tier_waits_for_its_models_and_the_others_do_not() -> None:
    decided = decide(site(), model("small"), model("middle"))
    assert [start.worker for start in decided.start] == [EDGE]
    lack = decided.states[SITE].lacks[GATE]
    assert (lack.phase, lack.reason) == ("Pending", "ModelNotFound")


def test_without_tiers_nobody_is_told_of_any() -> None:
    (edge,) = decide(site(tiers=False), *MODELS).start
    assert not edge.spec.env.keys() & {"TIER", "NEXT_TIER"}


def test_each_tier_is_reported_by_its_name_with_its_own_counts_and_samples_count_once() -> None:
    standing = decide(site(cloud="edge0"), *MODELS, model("big")).states[SITE]
    done = {
        EDGE: TaskInfo(inference_number=10, uploaded_bytes=600),
        GATE: TaskInfo(served=6, deferred=2, uploaded_bytes=200),
        CLOUD: TaskInfo(served=2),
    }
    reports = {w: WorkerReport(name=w.name, role=standing.workers[w], phase="Running") for w in done}
    said = compose(standing, reports, done)
    assert {w.part: (w.role, w.task_info) for w in said.workers} == {
        "edge": ("edge", done[EDGE]), "gate": ("cloud", done[GATE]), "cloud": ("cloud", done[CLOUD]),
    }  # fmt: skip
    counts = said.output.task_info
    assert (counts.inference_number, counts.served, counts.uploaded_bytes, counts.deferred) == (10, 8, 600, 0)


def test_no_two_services_lead_to_one_name_on_a_node() -> None:
    names = [
        worker_name(service, name, "n", group=group)
        for service in ("a", "a-tier", "a.b", "a-edge", "a.gate")
        for name in ("edge", "cloud", "gate", "gate-tier", "b", "b-training")
        for group in ("", "tier", "training")
        if not (group == "tier" and name in {"edge", "cloud"})
    ]
    assert len(set(names)) == len(names)
