"""Which objects stand for a multi-edge service: one Deployment a worker, two models in one pod, and what goes again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from halimede.api import Resource, parse
from services.gm.workloads.deployments import replicas
from services.gm.workloads.pod_status import nodes_by_worker, pod_views
from tests.integration.gm_world import multi_edge
from tests.unit.gm.workloads.builds import made, objects, reasons, removed, there
from tests.unit.gm.workloads.world import SECRETS, UID, model, service

NORTH = "Deployment/crossing-deployment-north"
HPA = {"minReplicas": 1, "maxReplicas": 4, "metrics": [{"type": "Resource"}]}
FINDER = model("finder", "https://models.example/a/small.onnx?token=other", sha256="a" * 64)


def crossing(**workers: Any) -> Resource[Any]:
    body = multi_edge(**(workers or {"north": "edge0", "south": "edge0", "cloud": "cloud0"}))
    for worker in body["spec"]["edgeWorkers"]:
        worker["template"]["spec"]["containers"][0]["image"] = "halimede/worker:1"
    body["metadata"] |= {"namespace": "default", "uid": UID, "generation": 1}
    return parse(body)


def with_north(**said: Any) -> Resource[Any]:
    body = crossing().body
    body["spec"]["edgeWorkers"][0] |= said
    return parse(body)


def test_a_deployment_a_worker_and_no_service_for_workers_meet_on_the_bus() -> None:
    found = objects(made(crossing()))
    assert set(found) == {NORTH, "Deployment/crossing-deployment-south", "Deployment/crossing-deployment-joint"}
    selectors = [body["spec"]["selector"]["matchLabels"] for body in found.values()]
    assert len({frozenset(each.items()) for each in selectors}) == 3
    for body, selector in zip(found.values(), selectors, strict=True):
        assert UID in selector.values()
        labels = body["spec"]["template"]["metadata"]["labels"]
        assert selector.items() <= labels.items()
        assert all(len(value) <= 63 for value in labels.values())


def test_the_longest_names_still_make_labels() -> None:
    longest = crossing(**{"n" * 63: "edge0"})
    longest.metadata.name = "c" * 40
    [body] = made(longest).objects
    assert all(len(value) <= 63 for value in body["metadata"]["labels"].values())
    longest.metadata.name = "c" * 41
    assert (reasons(made(longest)), made(longest).unchanged) == (["NameTooLong"], {"n" * 63})


def test_nothing_is_called_as_anything_of_a_joint_inference_service_of_the_name() -> None:
    of = crossing()
    of.metadata.name = "helmet"
    assert not objects(made(of)).keys() & objects(made(service())).keys()


def test_a_detector_comes_by_a_way_of_its_own() -> None:
    pod = objects(made(with_north(detector={"name": "finder"}), FINDER))[NORTH]["spec"]["template"]["spec"]
    first, second = pod["initContainers"]
    assert (first["name"], second["name"]) == ("fetch", "fetch-detector")
    env = {e["name"]: e.get("value") for e in pod["containers"][0]["env"]}
    assert env["MODEL_URL"] == "/downloads/models.example/a/small.onnx"
    assert env["DETECTOR_URL"] == "/downloads/detector/models.example/a/small.onnx"
    assert '"sha256":"aaaa' in env["DETECTOR_SPEC"]
    assert "token" not in env["DETECTOR_SPEC"] + env["MODEL_SPEC"]
    mounts = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
    for names in (mounts, [volume["name"] for volume in pod["volumes"]]):
        assert len(set(names)) == len(names)


def test_two_models_of_two_folders_of_the_node_are_both_mounted() -> None:
    here, there = model("small", "/data/a/small.onnx"), model("finder", "/data/b/finder.onnx")
    pod = objects(made(with_north(detector={"name": "finder"}), here, there))[NORTH]["spec"]["template"]["spec"]
    folders = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    assert folders == {"halimede-model": "/data/a", "halimede-detector": "/data/b"}
    mounts = {m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"] if m["name"] in folders}
    assert mounts == {"halimede-model": "/home/data/data/a", "halimede-detector": "/home/data/data/b"}


def test_what_is_missing_costs_its_worker_alone() -> None:
    of = made(with_north(detector={"name": "absent"}, source={"path": "/secret"}))
    assert set(reasons(of)) == {"ModelNotFound", "HostPathNotAllowed"}
    assert "spec.edgeWorkers[0].detector.name: default/models/absent does not exist" in of.problems[0].message
    assert "spec.edgeWorkers[0].source.path" in of.problems[1].message
    assert (of.unchanged, len(of.objects)) == ({"north"}, 2)


def test_the_secrets_of_both_models_are_asked_for() -> None:
    kept = model("finder", "s3://b/f.onnx", credentialName="keys")
    of = with_north(detector={"name": "finder"})
    assert reasons(made(of, kept)) == ["SecretNotFound"]
    assert "Model finder: spec.credentialName" in made(of, kept).problems[0].message
    assert made(of, kept, secrets={**SECRETS, "keys": {}}).problems == ()


def test_a_template_cannot_take_another_workers_label_for_its_own() -> None:
    of = service()
    of.body["spec"]["edgeWorker"]["template"]["metadata"] = {"labels": {"halimede.io/worker": "cloud", "team": "a"}}
    body = objects(made(parse(of.body)))["Deployment/helmet-deployment-edge"]
    labels = body["spec"]["template"]["metadata"]["labels"]
    assert ("halimede.io/worker" in labels, labels["team"]) == (False, "a")


def test_pods_are_compared_with_the_template_of_their_own_worker() -> None:
    of = there(made(with_north(deadlineMs=7)))
    labels = {ref.name: body["spec"]["template"]["metadata"]["labels"] for ref, body in of.items()}
    assert labels["crossing-deployment-north"]["halimede.io/template"] not in {
        labels["crossing-deployment-south"]["halimede.io/template"],
        labels["crossing-deployment-joint"]["halimede.io/template"],
    }
    pods = [{"metadata": {"name": name, "labels": given}, "spec": {"nodeName": "n"}} for name, given in labels.items()]
    assert {(view.worker_name, view.current) for view in pod_views(of, pods)} == {
        ("north", True), ("south", True), ("joint", True),
    }  # fmt: skip
    assert nodes_by_worker(pods) == dict.fromkeys(("north", "south", "joint"), frozenset({"n"}))


def test_what_an_edit_takes_out_goes_and_is_counted_no_more() -> None:
    before = there(made(with_north(hpa=HPA)))
    left = made(crossing(south="edge0"))
    assert removed(left, before) == {
        "crossing-deployment-north", "hpa-crossing-deployment-north", "crossing-deployment-joint",
    }  # fmt: skip
    assert replicas(left, before) == {"south": 1}
    assert removed(made(with_north(hpa=HPA)), before) == set()


def test_what_cannot_be_made_now_is_kept() -> None:
    before = there(made(with_north(hpa=HPA)))
    broken = made(with_north(model={"name": "absent"}))
    assert (broken.unchanged, removed(broken, before)) == ({"north"}, set())
    assert replicas(broken, before) == {"north": 1, "south": 1, "joint": 1}


def test_the_deployments_of_joint_inference_are_never_taken_away() -> None:
    both = made(service())
    one = replace(both, objects=tuple(b for b in both.objects if not b["metadata"]["name"].endswith("edge")))
    assert removed(one, there(both)) == set()
