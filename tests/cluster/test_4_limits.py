"""What a cluster does not allow: a worker too large for its node, a quota, a restricted namespace."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.conftest import Scenario
from tests.cluster.installation import GM, Installation
from tests.cluster.kubectl import Kubectl, until
from tests.cluster.recording import SERVICE, spec_of
from tests.cluster.report import Report
from tests.cluster.settings import ROOT

pytestmark = pytest.mark.timeout(900)
EXAMPLE = "examples/kubernetes/digits.yaml"
#: seconds in which failed pods are counted
COUNTED_S = 60.0


@pytest.mark.parametrize("request_", [{"cpu": "500"}, {"memory": "9000Gi"}])
def test_a_worker_too_large_for_its_node_makes_no_flood_of_pods(
    installation: Installation, kubectl: Kubectl, report: Report, request_: dict[str, str]
) -> None:
    node = kubectl.items("nodes", "-l", "node-role.kubernetes.io/edge")[0]["metadata"]["name"]
    name = f"too-much-{next(iter(request_))}"
    spec = spec_of(container={"resources": {"requests": request_}}, nodeName=node)
    kubectl.apply(SERVICE.format(name=name, namespace="default", spec=json.dumps(spec)))
    try:
        time.sleep(COUNTED_S)
        pods = kubectl.items("pods", "-l", f"jointinferenceservice.sedna.io/name={name}")
        failed = [pod for pod in pods if pod["status"].get("phase") == "Failed"]
        report.figures[f"failed_pods_a_minute_{next(iter(request_))}"] = len(failed) * 60 / COUNTED_S
        report.write()
        status = installation.status(name)
    finally:
        kubectl.run("delete", "ji", name, "--timeout=60s")
    assert len(failed) <= 1
    shown = json.dumps(status)
    assert "Insufficient" in shown or "enough resource" in shown or "OutOf" in shown, shown


@contextmanager
def namespace(kubectl: Kubectl, installation: Installation, name: str, *labels: str) -> Iterator[None]:
    """A namespace with the credentials of workers and of the load."""
    kubectl.run("create", "namespace", name)
    try:
        if labels:
            kubectl.run("label", "namespace", name, *labels)
        installation.type(f"halimede certs secrets --workers-in {name} site/ | kubectl apply --server-side -f -")
        installation.prepare_load(name)
        yield
    finally:
        kubectl.run("delete", "-n", name, "-f", str(ROOT / EXAMPLE), "--ignore-not-found", "--timeout=60s")
        kubectl.run("delete", "namespace", name, "--timeout=120s")


def test_a_quota_is_named_and_a_larger_one_lets_the_service_run(
    scenario: Scenario, installation: Installation, kubectl: Kubectl
) -> None:
    quota = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {{name: pods}}\nspec: {{hard: {{pods: '{}'}}}}\n"
    with namespace(kubectl, installation, "halimede-quota"):
        kubectl.apply(quota.format(1), "-n", "halimede-quota")
        kubectl.run("apply", "-n", "halimede-quota", "-f", str(ROOT / EXAMPLE))
        installation.names("exceeded quota", "halimede-quota")
        kubectl.apply(quota.format(10), "-n", "halimede-quota")
        installation.running("digits", "halimede-quota")
        with scenario("quota", load=installation.load("halimede-quota")):
            pass


def test_a_restricted_namespace_is_served_without_the_node_cache(
    scenario: Scenario, installation: Installation, kubectl: Kubectl
) -> None:
    level = "pod-security.kubernetes.io/enforce=restricted"
    try:
        with namespace(kubectl, installation, "halimede-restricted", level):
            kubectl.run("apply", "-n", "halimede-restricted", "-f", str(ROOT / EXAMPLE))
            installation.names("violates PodSecurity", "halimede-restricted")
            own = installation.folder / "own"
            own.mkdir()
            settings = json.loads((ROOT / "deploy/base/pods.json").read_text()) | {"nodeCache": ""}
            (own / "pods.json").write_text(json.dumps(settings))
            (own / "kustomization.yaml").write_text(
                "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: halimede\n"
                "resources: [../deploy/overlays/mosquitto]\n"
                "configMapGenerator: [{name: halimede-pods, behavior: replace, files: [pods.json]}]\n"
            )
            installation.type("kubectl apply -k own")
            until("GM with the setting", lambda: kubectl.ready(GM, "halimede", 2), 180)
            installation.running("digits", "halimede-restricted")
            with scenario("restricted namespace", load=installation.load("halimede-restricted")):
                pass
    finally:
        # once its pods are gone: one small node has no capacity for new pods of two services besides the old ones
        installation.type("kubectl apply -k deploy/overlays/mosquitto")
        kubectl.run("rollout", "status", "deployment/halimede-gm", "-n", "halimede", "--timeout=180s", seconds=200)
        installation.running()
