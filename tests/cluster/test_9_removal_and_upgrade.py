"""Removal and upgrade by the lines of the guide: nothing is left; frames are answered by both versions and between."""

from __future__ import annotations

import json
import sys
import time

import pytest

from tests.cluster.conftest import Scenario
from tests.cluster.images import FORMER
from tests.cluster.installation import BROKER, GUIDE, Installation, typed_lines
from tests.cluster.kubectl import Kubectl, until
from tests.cluster.report import Report
from tests.cluster.settings import BUILD

pytestmark = pytest.mark.timeout(900)
#: the overlay of the former version with the images of that version
OWN = """\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: halimede
resources: [../former/deploy/overlays/mosquitto]
images: [{{name: halimede/gm, newTag: {tag}}}, {{name: halimede/lc, newTag: {tag}}}]
configMapGenerator: [{{name: halimede-pods, behavior: replace, files: [pods.json]}}]
"""


def test_removal_leaves_nothing(installation: Installation, kubectl: Kubectl, report: Report) -> None:
    installation.remove_load()
    began = time.monotonic()
    for line in typed_lines(GUIDE, "Removal"):
        # the last line is for a resource that stays, and there is none
        if not line.startswith("kubectl patch"):
            installation.type(line)
    report.figures["removal_s"] = round(time.monotonic() - began, 1)
    report.write()
    left = kubectl.run("get", "namespaces,customresourcedefinitions,clusterroles,clusterrolebindings", "-o", "name")
    assert [name for name in left.split() if "halimede" in name or "sedna.io" in name or "neptune.io" in name] == []

    def own() -> list[str]:
        names = kubectl.run("get", "all,configmaps,secrets", "-n", "default", "-o", "name").split()
        return [name for name in names if "digits" in name or "halimede" in name]

    # pods have their grace
    until("nothing in `default`", lambda: not own(), 60)
    labels = {key for node in kubectl.items("nodes") for key in node["metadata"]["labels"]}
    assert [key for key in labels if key.startswith("halimede.io/")] == []


@pytest.fixture
def former(installation: Installation, kubectl: Kubectl) -> Installation:
    """The former version, installed from its own manifests, with its own command, and its example Running."""
    source = BUILD / FORMER
    images = {
        name
        for node in kubectl.items("nodes")
        for image in node["status"]["images"]
        for name in image.get("names") or []
    }
    if not source.exists() or not any(name.endswith(f"halimede/gm:{FORMER}") for name in images):
        pytest.skip(f"the nodes have no images of {FORMER}: only `make test-cluster KUBE_BINARIES=...` builds them")
    if len(kubectl.items("nodes")) == 1:
        pytest.skip(f"{FORMER} does not start on one node: its GM and its broker never run on an edge node")
    # the upgrade may run alone
    installation.remove()
    folder = installation.folder
    (folder / "former").symlink_to(source)
    own = folder / "own-former"
    own.mkdir()
    (own / "kustomization.yaml").write_text(OWN.format(tag=FORMER))
    settings = json.loads((source / "deploy/base/pods.json").read_text())
    settings |= {"workerImage": f"halimede/worker:{FORMER}", "fetcherImage": f"halimede/lc:{FORMER}"}
    (own / "pods.json").write_text(json.dumps(settings))
    example = (source / "examples/kubernetes/digits.yaml").read_text()
    (folder / "digits.yaml").write_text(example.replace("halimede/worker:0.1.0", f"halimede/worker:{FORMER}"))
    command = f"PYTHONPATH={source} {sys.executable} -c 'from halimede.cli import main; main()' certs"
    for line in (
        "kubectl label --overwrite node edge0 node-role.kubernetes.io/edge=",
        "kubectl label --overwrite node cloud0 halimede.io/node=",
        "kubectl apply -k own-former",
        f"{command} init --passwords --pools --node edge0 --node cloud0 site-former/",
        f"{command} secrets site-former/ | kubectl apply --server-side -f -",
        "kubectl create configmap digits-models --from-file=examples/digits/models",
        "kubectl apply -f examples/kubernetes/models.yaml",
        "kubectl apply -f digits.yaml",
    ):
        installation.type(line)
    installation.running()
    installation.broker = BROKER
    installation.prepare_load("default", folder / "site-former/operators/admin")
    return installation


def test_an_upgrade_from_a_former_version(former: Installation, scenario: Scenario, kubectl: Kubectl) -> None:
    lines = typed_lines(GUIDE, "Upgrades")
    services = next(number for number, line in enumerate(lines) if "rollout resume" in line)
    with scenario("upgrade", recovery_s=240):
        for line in lines[:services]:
            former.type(line)
        kubectl.run("-n", "halimede", "rollout", "status", "daemonset/halimede-lc", "--timeout=180s", seconds=200)
        former.type("kubectl apply -f examples/kubernetes/")
        until("the service with the new images", former.runs_as_edited, 240)
        for line in lines[services:]:
            former.type(line)
    former.remove_load()
    former.remove()
