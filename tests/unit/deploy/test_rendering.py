"""deploy/ as the API server would get it: it renders, fits the schemas of Kubernetes, and is as strict as it says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.kubernetes.placed import REQUIRED
from tests.programs import run_program
from tests.rendering import DEPLOY, OVERLAYS, copy, documents, overlay, render, renderer

#: the oldest and the newest that are tried, and one between
VERSIONS = ("1.29", "1.32", "1.35")
WORKLOADS = {"Deployment", "DaemonSet", "StatefulSet"}
Body = dict[str, Any]
needs_kustomize = pytest.mark.skipif(renderer() is None, reason="no kubectl 1.27 or newer and no kustomize 5 here")


@cache
def objects(name: str) -> list[Body]:
    return list(documents(copy(name).read_text()))


def manifests(*files: str) -> list[Body]:
    return [body for file in files for body in documents((DEPLOY / file).read_text())]


site_broker = partial(manifests, "site-broker/broker.yaml")
traffic = partial(manifests, "router/models.yaml", "router/router.yaml")
cameras = partial(manifests, "camera/camera.yaml")


def everything() -> list[Body]:
    """Return what Kubernetes itself knows."""
    found = [body for name in OVERLAYS for body in objects(name)] + site_broker() + traffic() + cameras()
    return [body for body in found if body["kind"] != "InferenceModel"]


def pods(found: list[Body]) -> Iterator[tuple[str, Body]]:
    for body in found:
        if body["kind"] in WORKLOADS:
            yield body["metadata"]["name"], body["spec"]["template"]


def containers(pod: Body) -> list[Body]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def within(selector: Body, labels: Body) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def one(found: list[Body], kind: str, name: str) -> Body:
    (body,) = (b for b in found if b["kind"] == kind and b["metadata"]["name"].startswith(name))
    return body


def pod_of(found: list[Body], name: str, kind: str = "Deployment") -> Body:
    spec: Body = one(found, kind, name)["spec"]["template"]["spec"]
    return spec


@pytest.mark.slow
@needs_kustomize
@pytest.mark.parametrize("name", OVERLAYS)
def test_the_copy_of_an_overlay_is_what_it_renders_to(name: str) -> None:
    assert copy(name).read_text() == overlay(name), "run: python -m tests.rendering --write"


@needs_kustomize
def test_an_overlay_brings_the_custom_resource_definitions() -> None:
    found = documents(render(DEPLOY / "overlays" / "mosquitto"))
    kinds = {body["spec"]["names"]["kind"] for body in found if body["kind"] == "CustomResourceDefinition"}
    assert {"JointInferenceService", "Model", "Dataset"} <= kinds


@pytest.mark.slow
@needs_kustomize
@pytest.mark.parametrize("name", OVERLAYS)
def test_components_can_be_added(name: str) -> None:
    # a component has to be named by a path below deploy/: kustomize lets nothing else in
    folder = DEPLOY / "overlays" / f".try-{name}"
    folder.mkdir()
    try:
        (folder / "kustomization.yaml").write_text(
            f"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../{name}]\n"
            "components: [../../components/monitoring, ../../components/host-credentials, ../../components/datasets]\n"
        )
        found = list(documents(render(folder)))
    finally:
        shutil.rmtree(folder)
    monitors = [body for body in found if body["kind"] in {"ServiceMonitor", "PodMonitor"}]
    assert len(monitors) == 3
    # by the names of ports: what a number means is up to a pod's template, and `targetPort` is on its way out
    asked = {body["metadata"]["name"]: body["spec"] for body in monitors}
    ports = {name: [e["port"] for e in s.get("endpoints") or s["podMetricsEndpoints"]] for name, s in asked.items()}
    assert ports == {"halimede-gm": ["http"], "halimede-lc": ["http"], "halimede-workers": ["metrics"]}
    pod = pod_of(found, "halimede-lc", "DaemonSet")
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["broker"] == {"name": "broker", "hostPath": {"path": "/etc/halimede/broker", "type": "Directory"}}
    assert "secrets" not in volumes
    assert volumes["data"]["hostPath"]["path"] == "/data"
    (container,) = pod["containers"]
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "data")
    assert (mount["mountPath"], mount["readOnly"]) == ("/host/data", True)
    assert container["resources"]["limits"]["memory"] == "512Mi"
    assert [each["name"] for each in pod["initContainers"]] == ["folder"]


@pytest.mark.parametrize(
    "version", [*(pytest.param(each, marks=pytest.mark.slow) for each in VERSIONS[:-1]), VERSIONS[-1]]
)
def test_everything_fits_the_schemas_of_kubernetes(version: str) -> None:
    for body in everything():
        kubernetes_validate.validate(body, version, strict=True)


def test_a_misspelt_field_would_be_found() -> None:
    body = one(objects("mosquitto"), "Deployment", "halimede-gm")
    body["spec"]["template"]["spec"]["containers"][0]["readOnlyRootFileSystem"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(body, VERSIONS[0], strict=True)


def test_no_secret_is_in_the_repository() -> None:
    assert "Secret" not in {body["kind"] for body in everything()}


def test_every_container_is_held_tight() -> None:
    for owner, pod in pods(everything()):
        outer = pod["spec"]["securityContext"]
        assert (outer["runAsNonRoot"], outer["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        for each in containers(pod):
            context, image = each["securityContext"], each["image"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"]["drop"] == ["ALL"]
            assert {"limits", "requests"} <= set(each["resources"]), (owner, each["name"])
            assert not image.endswith(":latest")
            assert ":" in image, image
            # EMQX's start script writes below its own folder
            assert context.get("readOnlyRootFilesystem") is True or each["name"] == "emqx"
            if each["name"] == "folder":
                assert (context["runAsUser"], context["capabilities"]["add"]) == (0, ["CHOWN"])
            else:
                assert ("add" in context["capabilities"], "runAsUser" in context) == (False, False)


def test_only_gm_speaks_to_the_api_server() -> None:
    for name in OVERLAYS:
        accounts = {b["metadata"]["name"]: b for b in objects(name) if b["kind"] == "ServiceAccount"}
        for owner, pod in pods(objects(name)):
            account = accounts[pod["spec"]["serviceAccountName"]]
            silent = account.get("automountServiceAccountToken") is False
            assert silent is (owner != "halimede-gm")
            assert not silent or pod["spec"]["automountServiceAccountToken"] is False


def test_what_gm_may_do_is_named_one_by_one() -> None:
    rules = [rule for body in objects("mosquitto") if body["kind"] in {"ClusterRole", "Role"} for rule in body["rules"]]
    assert rules
    assert not [rule for rule in rules if "*" in rule["verbs"] + rule["resources"] + rule["apiGroups"]]
    assert [rule["verbs"] for rule in rules if "secrets" in rule["resources"]] == [["get", "create"]]
    named = [rule for rule in rules if "leases" in rule["resources"] and rule["verbs"] != ["create"]]
    assert [rule["resourceNames"] for rule in named] == [["halimede-gm"]]


def probed_ports(container: Body) -> set[str]:
    """Return the ports of a container's probes; a probe may be a command as well."""
    probes = [container.get(name, {}) for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    return {probe[kind]["port"] for probe in probes for kind in ("httpGet", "tcpSocket") if kind in probe}


@pytest.mark.parametrize("name", OVERLAYS)
def test_selectors_and_references_lead_somewhere(name: str) -> None:
    found = objects(name)
    labels = {owner: pod["metadata"]["labels"] for owner, pod in pods(found)}
    maps = {body["metadata"]["name"]: set(body["data"]) for body in found if body["kind"] == "ConfigMap"}
    for body in found:
        kind, spec = body["kind"], body.get("spec", {})
        if kind in WORKLOADS:
            assert within(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"])
        elif kind in {"Service", "PodDisruptionBudget"}:
            wanted = spec["selector"].get("matchLabels", spec["selector"])
            assert any(within(wanted, each) for each in labels.values()), body["metadata"]["name"]
        elif kind == "NetworkPolicy" and spec["podSelector"]:
            assert any(within(spec["podSelector"]["matchLabels"], each) for each in labels.values())
        if kind not in {"Namespace", "ClusterRole", "ClusterRoleBinding"}:
            assert body["metadata"]["namespace"] == "halimede"
    for owner, pod in pods(found):
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume} <= set(maps)
        for each in containers(pod):
            assert {mount["name"] for mount in each.get("volumeMounts", [])} <= set(volumes), owner
            ports = {port["name"] for port in each.get("ports", [])}
            assert probed_ports(each) <= ports
            for variable in each.get("env", []):
                if reference := variable.get("valueFrom", {}).get("configMapKeyRef"):
                    assert reference["key"] in maps[reference["name"]]


def test_two_global_managers_keep_apart_and_one_stays() -> None:
    found = objects("mosquitto")
    gm = one(found, "Deployment", "halimede-gm")["spec"]
    assert gm["replicas"] == 2
    assert gm["template"]["spec"]["affinity"]["podAntiAffinity"]
    assert one(found, "PodDisruptionBudget", "halimede-gm")["spec"]["minAvailable"] == 1


def lands(pod: Body, labels: Body) -> bool:
    """Return whether the scheduler may place a pod on a node with these labels."""
    spec = pod["spec"]
    affinity = spec.get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED, {"nodeSelectorTerms": [{}]})
    terms = [term.get("matchExpressions", []) for term in affinity["nodeSelectorTerms"]]
    assert {rule["operator"] for term in terms for rule in term} <= {"Exists", "DoesNotExist"}
    holds = any(all((rule["key"] in labels) is (rule["operator"] == "Exists") for rule in term) for term in terms)
    return holds and within(spec.get("nodeSelector", {}), labels)


LINUX = {"kubernetes.io/os": "linux"}
EDGE, CLOUD = LINUX | {"node-role.kubernetes.io/edge": ""}, LINUX | {"halimede.io/node": ""}


@pytest.mark.parametrize("name", OVERLAYS)
def test_one_node_with_both_labels_is_a_cluster_and_an_edge_node_gets_the_lc_alone(name: str) -> None:
    everywhere = dict(pods(objects(name)))
    assert [owner for owner, pod in everywhere.items() if not lands(pod, EDGE | CLOUD)] == []
    assert [owner for owner, pod in everywhere.items() if lands(pod, EDGE)] == ["halimede-lc"]
    assert {owner for owner, pod in everywhere.items() if lands(pod, LINUX)} == {"halimede-gm", "halimede-broker"}
    for owner in ("halimede-gm", "halimede-broker"):
        affinity = everywhere[owner]["spec"]["affinity"]["nodeAffinity"]
        (wanted,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
        (avoided,) = wanted["preference"]["matchExpressions"]
        assert avoided == {"key": "node-role.kubernetes.io/edge", "operator": "DoesNotExist"}


def test_how_pods_are_replaced_is_said() -> None:
    """What the API server would fill in is said: `apply` finds a difference in a half-said strategy each time."""
    for body in everything():
        if body["kind"] in WORKLOADS:
            strategy = body["spec"].get("strategy", body["spec"].get("updateStrategy", {"type": ""}))
            assert "type" in strategy, body["metadata"]["name"]


def test_what_is_not_named_is_denied() -> None:
    for name in OVERLAYS:
        policies = {b["metadata"]["name"]: b["spec"] for b in objects(name) if b["kind"] == "NetworkPolicy"}
        assert policies["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
        broker = policies["halimede-broker"]["ingress"]
        assert [port["port"] for rule in broker for port in rule["ports"]] == [1883, 8883]


def test_git_ignores_no_manifest(tmp_path: Path) -> None:
    files = [str(path) for path in DEPLOY.rglob("*") if path.is_file()]
    assert not run_program("git", "check-ignore", *files, cwd=DEPLOY).stdout
