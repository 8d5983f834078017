"""Which objects stand for the tiers of a service: a Deployment each, that no other worker's selector reaches."""

from __future__ import annotations

from typing import Any

from halimede.api import Resource
from services.gm.workloads.deployments import replicas
from tests.unit.gm.workloads.builds import made, objects, reasons, removed, there
from tests.unit.gm.workloads.world import container, model, service, template

GATE = "Deployment/helmet-deployment-gate"
MIDDLE = model("middle", "https://models.example/a/middle.onnx")


def tier(name: str = "gate", **said: Any) -> dict[str, Any]:
    ours = container(image="halimede/worker:1")
    given = {"name": name, "model": {"name": "middle"}, "hardExampleMining": {"name": "Margin"}}
    return {**given, "template": template(ours, nodeName="edge0"), **said}


def tiered(*tiers: dict[str, Any], **more: Any) -> Resource[Any]:
    return service(tiers=list(tiers or (tier(),)), **more)


def pod(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["spec"]["template"]["spec"]
    return found


def told(body: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in pod(body)["containers"][0]["env"]}


def test_each_tier_is_a_deployment_named_after_it_beside_those_of_edge_and_cloud() -> None:
    found = objects(made(tiered(tier(), tier("region")), MIDDLE))
    assert {name.rpartition("-")[2] for name in found if name.startswith("Deployment")} == {
        "edge", "gate", "region", "cloud"
    }  # fmt: skip
    assert pod(found[GATE])["containers"][0]["args"] == ["tier"]


def test_no_selector_reaches_another_workers_pods() -> None:
    found = objects(made(tiered(tier(), tier("region")), MIDDLE))
    pods = {n: b["spec"]["template"]["metadata"]["labels"] for n, b in found.items() if n.startswith("Deployment")}
    for name, body in found.items():
        chosen = body["spec"]["selector"]
        wanted = chosen.get("matchLabels", chosen)
        reached = [each for each, labels in pods.items() if wanted.items() <= labels.items()]
        assert reached == ([name] if name in pods else ["Deployment/helmet-deployment-cloud"])
        assert all(len(value) <= 63 for value in body["metadata"]["labels"].values())


def test_tiers_know_which_one_they_are_and_ask_and_speak_as_cloud_workers() -> None:
    fields = {"targetUploadRatio": 0.2, "auditShare": 0.01, "encoding": "jpeg", "maxBytes": 60_000}
    batching = {"maxBatchSize": 8, "maxQueueDelayMs": 2.5}
    found = objects(made(tiered(tier(**fields), tier("region", **batching)), MIDDLE))
    gate, region = told(found[GATE]), told(found["Deployment/helmet-deployment-region"])
    assert (gate["TIER"], gate["NEXT_TIER"], gate["TARGET_UPLOAD_RATIO"], gate["AUDIT_SHARE"]) == (
        "gate", "region", "0.2", "0.01"
    )  # fmt: skip
    assert (gate["UPLOAD_ENCODING"], gate["UPLOAD_MAX_BYTES"]) == ("jpeg", "60000")
    assert (region["TIER"], region["NEXT_TIER"]) == ("region", "cloud")
    assert not {"UPLOAD_ENCODING", "UPLOAD_MAX_BYTES"} & set(region)  # as they come
    assert (region["MAX_BATCH_SIZE"], region["MAX_QUEUE_DELAY_MS"]) == ("8", "2.5")
    assert not {"MAX_BATCH_SIZE", "MAX_QUEUE_DELAY_MS"} & set(gate)
    assert "SOURCE" not in gate
    secrets = [v["secret"]["secretName"] for v in pod(found[GATE])["volumes"] if "secret" in v]
    assert ("halimede-cloud-worker" in secrets, "halimede-edge-worker" in secrets) == (True, False)
    cloud, edge = told(found["Deployment/helmet-deployment-cloud"]), told(found["Deployment/helmet-deployment-edge"])
    assert (cloud["TIER"], "NEXT_TIER" in cloud) == ("cloud", False)
    assert (edge["TIER"], edge["NEXT_TIER"]) == ("edge", "gate")


def test_what_a_tier_lacks_is_named_and_costs_no_other_worker() -> None:
    built = made(tiered(tier(calibration={"name": "found"})))
    assert reasons(built) == ["ModelNotFound", "ModelNotFound"]
    assert "spec.tiers[0].model.name" in built.problems[0].message
    assert "spec.tiers[0].calibration.name" in built.problems[1].message
    assert built.unchanged == {"gate"}
    assert {body["metadata"]["name"].rpartition("-")[2] for body in built.objects} == {"edge", "cloud"}


def test_a_calibration_comes_by_a_way_of_its_own() -> None:
    found = model("found", "https://models.example/a/calibration.json", format="calibration")
    body = objects(made(tiered(tier(calibration={"name": "found"})), MIDDLE, found))[GATE]
    fetches = [each["name"] for each in pod(body)["initContainers"]]
    assert fetches == ["fetch", "fetch-calibration"]
    assert told(body)["CALIBRATION_URL"].endswith("calibration.json")


def test_a_tier_scales_as_any_worker() -> None:
    hpa = {"minReplicas": 1, "maxReplicas": 4, "metrics": [{"type": "Resource"}]}
    found = objects(made(tiered(tier(hpa=hpa)), MIDDLE))
    scaler = found["HorizontalPodAutoscaler/hpa-helmet-deployment-gate"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == "helmet-deployment-gate"
    assert "replicas" not in found[GATE]["spec"]


def test_a_tier_that_is_taken_away_goes_and_the_others_stay() -> None:
    before, built = there(made(tiered(), MIDDLE)), made(service())
    assert removed(built, before) == {"helmet-deployment-gate"}
    assert replicas(built, before) == {"edge": 1, "cloud": 1}
