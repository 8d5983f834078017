"""What is kept of objects, and how they are changed."""

from __future__ import annotations

from typing import Any

import msgspec

from halimede.messages import Condition, NodeSummary, Status, TaskInfo
from halimede.names import Key
from services.gm.cluster.kubernetes import conversion
from services.gm.cluster.kubernetes.api_paths import LEASES, NODES, PODS, ApiResource
from services.gm.cluster.kubernetes.cluster import reports_of
from services.gm.cluster.kubernetes.conversion import custom, finalizer_patch, status_patch, trim_pod
from services.gm.cluster.port import RegisteredNode
from tests.integration import gm_world
from tests.kubernetes.double.patches import merge
from tests.unit.gm.kubernetes.test_owned_objects import OWNER

MODELS = ApiResource("sedna.io/v1alpha1", "Model", "models")


def model(**metadata: object) -> dict:
    body = gm_world.model("m")
    body["metadata"] |= {"namespace": "shop", "uid": "u1", "resourceVersion": "12", "generation": 3}
    body["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z", **metadata}
    return body


def test_paths_are_the_apis() -> None:
    assert MODELS.path() == "/apis/sedna.io/v1alpha1/models"
    assert MODELS.path("shop", "m", "status") == "/apis/sedna.io/v1alpha1/namespaces/shop/models/m/status"
    assert PODS.path("shop") == "/api/v1/namespaces/shop/pods"
    assert NODES.path(name="n") == "/api/v1/nodes/n"
    assert LEASES.path("x", "a/../b") == "/apis/coordination.k8s.io/v1/namespaces/x/leases/a%2F..%2Fb"


def test_a_resource_is_read_without_what_only_its_writers_need() -> None:
    body = model(
        managedFields=[{"manager": "kubectl"}],
        annotations={"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "x"},
        finalizers=["halimede.io/nodes"],
    )
    read = custom(MODELS, {**body, "status": {"phase": "Ready", "surprise": 1}})
    assert read.stored.resource.body["metadata"].keys().isdisjoint({"managedFields"})
    assert read.stored.resource.body["metadata"]["annotations"] == {"mine": "x"}
    assert "status" not in read.stored.resource.body
    assert (read.stored.status, read.written) == (Status(phase="Ready"), {"phase", "surprise"})
    assert (read.key, read.has_finalizer, read.stored.has_finalizer) == (Key("models", "shop", "m"), True, True)


def test_a_resource_that_cannot_be_read_says_which_fields_are_to_blame() -> None:
    read = custom(MODELS, {**model(), "spec": {"url": "ftp://x/m.onnx", "format": "onnx", "targetVersion": "9"}})
    assert read.stored is None
    assert read.problem.startswith("spec.url: 'ftp://x/m.onnx' is not accepted")
    assert "spec.targetVersion" in read.problem
    assert (read.uid, read.version, read.generation) == ("u1", "12", 3)


def test_a_resource_that_its_workers_would_not_start_with_says_so_unless_it_is_being_deleted() -> None:
    contradiction = {"task": "embedding", "activation": "softmax"}
    body = {**model(), "spec": {"url": "/models/m.onnx", "format": "onnx", "postprocess": contradiction}}
    read = custom(MODELS, body)
    assert read.stored is None
    assert read.problem.startswith("spec.postprocess.activation: 'softmax' is not accepted")
    body["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    assert custom(MODELS, body).stored is not None


def test_a_status_that_nobody_here_wrote_is_none_and_is_replaced_as_a_whole() -> None:
    read = custom(MODELS, {**model(), "status": {"phase": 5, "old": {"a": 1}}})
    assert read.stored.status is None
    patch = status_patch(Status(phase="Ready"), "12", read.written)
    assert patch["metadata"] == {"resourceVersion": "12"}
    assert patch["status"]["old"] is None
    merged = merge({"status": {"phase": 5, "old": {"a": 1}}}, {"status": patch["status"]})["status"]
    assert msgspec.convert(merged, Status) == Status(phase="Ready")


def test_a_status_comes_back_as_it_was_written_and_holds_no_nulls_or_empty_times() -> None:
    status = Status(
        phase="Running",
        conditions=[Condition(type="Running", last_transition_time="2026-01-01T00:00:00.000Z")],
        active=2,
        nodes=[NodeSummary(node="n1", online=True, phase="Running", task_info=TaskInfo(inference_number=5))],
    )
    written = status_patch(status, "1", ())["status"]
    assert msgspec.convert(written, Status) == status
    text = msgspec.json.encode(written).decode()
    assert "null" not in text
    assert 'Time":""' not in text


def test_finalizers_are_changed_on_the_very_object_that_was_seen() -> None:
    read = custom(MODELS, model(finalizers=["other/one", "halimede.io/nodes"]))
    metadata = {"resourceVersion": "12", "uid": "u1", "finalizers": ["other/one"]}
    assert finalizer_patch(read, ["other/one"]) == {"metadata": metadata}
    assert finalizer_patch(read, [])["metadata"]["finalizers"] is None


def test_a_pod_is_cut_down_to_what_tells_how_it_fares() -> None:
    container = {"name": "w", "ready": True, "restartCount": 2, "state": {"running": {}}, "imageID": "x", "image": "y"}
    pod = {
        "metadata": {"name": "p", "namespace": "shop", "uid": "u", "labels": {"a": "b"}, "annotations": {"long": "x"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "w", "env": []}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [container]},
    }
    assert trim_pod(pod) == {
        "metadata": {"name": "p", "namespace": "shop", "uid": "u", "labels": {"a": "b"}},
        "spec": {"nodeName": "n1"},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "w", "ready": True, "restartCount": 2, "state": {"running": {}}}],
        },
    }
    assert trim_pod({"metadata": {"name": "p"}}) == {"metadata": {"name": "p"}, "spec": {}, "status": {}}


def test_an_object_belongs_to_its_controller_a_pod_to_the_service_of_its_labels() -> None:
    owner = {**OWNER, "apiVersion": "neptune.io/v1alpha1"}
    key = Key("jointinferenceservices", "shop", "helmet")
    metadata = {"namespace": "shop", "name": "x"}
    assert conversion.service_of({"metadata": {**metadata, "ownerReferences": [owner]}}) == (key, "u")
    assert (
        conversion.service_of({"metadata": {**metadata, "ownerReferences": [{**owner, "controller": False}]}}) is None
    )
    replica_set = {**owner, "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "helmet-1", "uid": "r"}
    labels = {"jointinferenceservice.sedna.io/name": "helmet", "jointinferenceservice.sedna.io/uid": "u"}
    pod = {"metadata": {**metadata, "ownerReferences": [replica_set], "labels": labels}}
    assert conversion.service_of(pod) is None
    assert conversion.service_of_pod(pod) == (key, "u")
    assert conversion.service_of_pod({"metadata": {**metadata, "ownerReferences": [replica_set]}}) is None
    assert conversion.service_of_pod({"metadata": {**metadata, "labels": labels}}) is None
    assert conversion.service_of_pod({"metadata": {**metadata, "ownerReferences": [owner], "labels": labels}}) is None


def test_reports_are_what_a_status_says_of_nodes_that_have_said_something() -> None:
    counts = TaskInfo(inference_number=7, edge_inference_number=7)
    nodes = [
        NodeSummary(node="moved", online=False, phase="Left", task_info=TaskInfo(cloud_inference_number=1)),
        NodeSummary(node="running", online=True, phase="Running", task_info=counts),
        NodeSummary(node="failed", online=True, phase="Failed", reason="WorkerFailed", message="it fell"),
        NodeSummary(node="away", online=False, phase="Pending", reason="NodeOffline", task_info=counts),
        NodeSummary(node="silent", online=True, phase="Pending", reason="Preparing"),
        NodeSummary(node="cloud", online=True, phase="Running", task_info=TaskInfo(served=9)),
    ]
    status = msgspec.to_builtins(Status(phase="Running", observed_generation=3, nodes=nodes))
    stored = custom(MODELS, {**model(), "status": status}).stored
    assert stored is not None
    reports = {report.node: report for report in reports_of(stored)}
    assert reports.keys() == {"moved", "running", "failed", "away", "cloud"}
    assert {node for node, report in reports.items() if report.live} == {"running", "failed", "cloud"}
    assert {node for node, report in reports.items() if report.edge} == {"moved", "running", "away"}
    assert reports["away"].status.output.task_info == counts  # type: ignore[union-attr]
    assert (reports["failed"].status.reason, reports["failed"].status.message) == ("WorkerFailed", "it fell")
    assert {(report.status.uid, report.status.observed_generation) for report in reports.values()} == {("u1", 3)}


def test_a_node_is_ready_until_its_condition_says_otherwise() -> None:
    def node(*conditions: dict[str, Any]) -> RegisteredNode:
        return conversion.registered_node({"metadata": {"name": "n"}, "status": {"conditions": list(conditions)}})

    assert node() == node({"type": "Ready", "status": "True", "reason": "KubeletReady"}) == RegisteredNode({}, "")
    assert node({"type": "MemoryPressure", "status": "True"}).unready == ""
    assert node({"type": "Ready", "status": "Unknown", "message": "silent"}).unready == "silent"
    assert node({"type": "Ready", "status": "False"}).unready == "it is not ready"
