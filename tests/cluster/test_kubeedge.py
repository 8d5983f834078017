"""A place on KubeEdge: cut off for ten minutes, with a restart of edgecore, a power cut and an edit meanwhile.

Runs last: it has a site of its own, with certificates and the broker of the place.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import Scenario
from tests.cluster.installation import EDGE, PICTURES, Installation, typed_lines
from tests.cluster.kubectl import Body, Kubectl, KubectlError, until
from tests.cluster.kubeedge import KubeEdge
from tests.cluster.power import Power
from tests.cluster.report import Report
from tests.cluster.requirements import has_kubeedge
from tests.cluster.settings import BROKER_NAME, CLOUD_NAME, NODES, PLACE, ROOT
from tests.cluster.traffic import FPS, Load, ProcessProgram
from tests.e2e.running import digits

pytestmark = pytest.mark.timeout(1800)
PAGE = ROOT / "docs/kubeedge.md"
CLOUD = NODES[0]
#: the node port of the cloud's broker, and so the port of the place's
PORT = 31883
#: seconds: the cut; in it the restart of edgecore, the power cut with its length, the edit
CUT_S, RESTART_AT_S, POWER_AT_S, OFF_S, EDIT_AT_S = 600.0, 120.0, 240.0, 10.0, 360.0
#: seconds between two writes of counts by the local controller
STORED_EVERY_S = 5
COUNTS = ("inferenceNumber", "edgeInferenceNumber", "cloudInferenceNumber", "hardExampleNumber", "lost", "unreceived")
OVERLAY = f"""\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: halimede
resources: [../deploy/overlays/tls]
configMapGenerator:
  - name: halimede
    behavior: merge
    literals:
      - node-broker=mqtts://{BROKER_NAME}:{PORT}
      - worker-broker=mqtts://{BROKER_NAME}:{PORT}
patches:
  - target: {{kind: Service, name: halimede-broker}}
    patch: |-
      - {{op: add, path: /spec/type, value: NodePort}}
      - {{op: add, path: /spec/ports/0/nodePort, value: {PORT}}}
"""
BRIDGES = f"""\
bridges:
  - name: factory
    nodes: [{PLACE.name}]
    cameras: [cam0]
    broker: [{BROKER_NAME}, {PLACE.address}]
    install: /etc/halimede/place
    data: /var/lib/halimede-place
"""


@pytest.fixture
def place(kubectl: Kubectl, power: Power) -> Iterator[KubeEdge]:
    """A node run by edgecore."""
    if power.binaries is None or not has_kubeedge(power.binaries):
        pytest.skip("KubeEdge is not among the binaries of `make test-cluster KUBE_BINARIES=...` (docs/cluster.md)")
    with KubeEdge(power.binaries, power.images, kubectl) as found:
        yield found


@pytest.fixture
def site(place: KubeEdge, kubectl: Kubectl, power: Power, tmp_path: Path) -> Iterator[Installation]:
    """Halimede with certificates, a broker at the place, and the README's example whose edge worker is there."""
    site = Installation(kubectl, tmp_path)
    site.remove()
    (tmp_path / "own").mkdir()
    (tmp_path / "own/kustomization.yaml").write_text(OVERLAY)
    brokers = f"--broker {CLOUD_NAME} --broker {BROKER_NAME} --broker halimede-broker.halimede.svc"
    there = [node for node in NODES if node.name in power.nodes]
    nodes = " ".join(f"--node {node.name}" for node in (*there, PLACE))
    for line in (
        *(f"kubectl label --overwrite node {node.name} {node.label}=" for node in there),
        "kubectl apply -k own",
        f"halimede certs init --pools {nodes} --camera cam0 {brokers} --port {PORT} site-places/",
    ):
        site.type(line)
    with (tmp_path / "site-places/site.yaml").open("a") as file:
        file.write(BRIDGES)
    port_of_place(tmp_path)
    address = f"http://{CLOUD.address}:31080"
    models = [re.sub(r"http://192\.0\.2\.10:\d+", address, line) for line in typed_lines(PAGE, "Addresses")]
    for line in (
        "halimede certs init site-places/",
        "halimede certs secrets site-places/ | kubectl apply --server-side -f -",
        f"kubectl label --overwrite node {PLACE.name} halimede.io/place=factory",
        "kubectl apply -k own-place",
        "kubectl create configmap digits-models --from-file=examples/digits/models",
        "kubectl apply -f examples/kubernetes/",
        *models,
        f"kubectl patch ji digits --type merge -p '{json.dumps(at_the_place())}'",
    ):
        site.type(line)
    site.running(seconds=400)
    yield site
    site.remove()
    kubectl.run("delete", "-k", str(tmp_path / "own-place"), "--ignore-not-found")


def port_of_place(folder: Path) -> None:
    """Copy the place's manifests with the site's port, as docs/deploy.md describes."""
    own = folder / "own-place"
    own.mkdir()
    source = ROOT / "deploy/site-broker"
    (own / "broker.yaml").write_text((source / "broker.yaml").read_text())
    (own / "kustomization.yaml").write_text((source / "kustomization.yaml").read_text() + "components: [passwords]\n")
    (own / "passwords").mkdir()
    component = (source / "passwords/kustomization.yaml").read_text()
    (own / "passwords/kustomization.yaml").write_text(component.replace("value: 1883", f"value: {PORT}"))


def at_the_place() -> Body:
    """Return the change that binds the example's edge worker to the place."""
    return {"spec": {"edgeWorker": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": PLACE.name}}}}}}


class Observer(threading.Thread):
    """Records what the cloud shows of the service, once a second, until ``stop``."""

    def __init__(self, site: Installation) -> None:
        super().__init__(name="observer", daemon=True)
        self._site, self._end = site, threading.Event()
        self.counts: list[dict[str, float]] = []
        self.phases: dict[str, None] = {}
        self.deleted: set[str] = set()

    def run(self) -> None:
        """Read service and pods."""
        while not self._end.wait(1.0):
            try:
                status = self._site.status()
                pods = self._site.kubectl.items("pods", "-l", EDGE)
            except (KubectlError, subprocess.TimeoutExpired, ValueError):
                continue
            last = (status.get("conditions") or [{}])[-1]
            self.phases[f"{status.get('phase')} {last.get('reason', '')}"] = None
            self.counts.append({each["key"]: float(each["value"]) for each in status.get("metrics", [])})
            for pod in pods:
                if pod["metadata"].get("deletionTimestamp"):
                    self.deleted.add(pod["metadata"]["uid"])

    def stop(self) -> None:
        """End, and wait for it. Raises AssertionError if it has not observed until now."""
        assert self.is_alive(), "the observer has failed"
        self._end.set()
        self.join()

    def falls(self) -> list[tuple[str, float, float]]:
        """Return counts that became smaller: name, before, after."""
        return [
            (name, before.get(name, 0), after.get(name, 0))
            for before, after in itertools.pairwise(self.counts)
            for name in COUNTS
            if after.get(name, 0) < before.get(name, 0)
        ]


def sleep_until(moment: float) -> None:
    """Sleep until a moment of the monotonic clock."""
    time.sleep(max(0.0, moment - time.monotonic()))


def test_a_place_on_kubeedge_is_cut_off_for_ten_minutes(
    scenario: Scenario, place: KubeEdge, site: Installation, report: Report
) -> None:
    pictures = site.folder / "pictures"
    pictures.mkdir()
    for number, picture in enumerate(digits()[:PICTURES]):
        (pictures / f"{number:03}.png").write_bytes(picture)
    program = ProcessProgram(
        place.command(),
        pictures,
        {
            "HALIMEDE_BROKER": f"mqtts://{PLACE.address}:{PORT}",
            "HALIMEDE_CREDENTIALS": str(site.folder / "site-places/operators/admin"),
        },
    )
    figures = report.figures
    observer = Observer(site)
    with scenario("kubeedge cut off", recovery_s=240, load=Load(site.kubectl, program)) as load:
        load.wait_answered(250)
        observer.start()
        began = time.monotonic()
        place.cut_uplink()
        try:
            until("NotReady", lambda: not place.ready(), 120)
            figures["kubeedge_not_ready_s"] = round(time.monotonic() - began, 1)
            sleep_until(began + RESTART_AT_S)
            place.restart_edgecore()
            sleep_until(began + POWER_AT_S)
            place.cut_power(OFF_S)
            sleep_until(began + EDIT_AT_S)
            # nobody confirms it while the place is cut off
            site.change_threshold("0.05")
            sleep_until(began + CUT_S)
            # then the place's own reports of this time arrive one after the other, those of the power cut too
            there, evicted, phases = load.now(), set(observer.deleted), list(observer.phases)
        finally:
            place.heal_uplink()
        healed = time.monotonic()
        until("converged", lambda: site.runs_as_edited() and place.ready(), 240)
        figures["kubeedge_converged_s"] = round(time.monotonic() - healed, 1)
    observer.stop()
    # the place's counts of the whole time are in the cloud, but for the last seconds before the power cut
    assert load.raw["counted_as_answered"] >= load.raw["answered"] - STORED_EVERY_S * FPS
    figures["kubeedge_evictions"] = len(evicted)
    figures["kubeedge_answered_meanwhile"] = there["answered"]
    report.write()
    print("phases:", *observer.phases, sep="\n  ")
    print("gaps [length, begin]:", load.raw["gaps"])
    # later the edit replaces it
    assert not evicted, "the working pod was evicted"
    assert observer.falls() == []
    assert "Degraded NodeUnreachable" in phases
    assert not [each for each in phases if each.startswith(("Pending", "Failed"))]
