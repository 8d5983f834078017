"""Nodes: drained, cut off from the API server for longer than the eviction time, cut off from everything."""

from __future__ import annotations

import time

import pytest

from tests.cluster.conftest import Scenario
from tests.cluster.installation import EDGE, Installation
from tests.cluster.kubectl import Body, Kubectl, condition, until
from tests.cluster.power import Power
from tests.cluster.report import Report

pytestmark = pytest.mark.timeout(1200)
#: Kubernetes' own time until a node that is silent is NotReady, with room
NOT_READY_S = 180.0


def edge_node(kubectl: Kubectl) -> str:
    """Return the node of the example's edge worker. Skips the test if that is the cloud node too."""
    node = str(kubectl.pods(EDGE)[0]["spec"]["nodeName"])
    if "halimede.io/node" in kubectl.body("node", node)["metadata"]["labels"]:
        pytest.skip(f"node {node} is edge and cloud: GM, the broker and the load run there, and would go with it")
    return node


def eviction_s(pod: Body) -> float:
    """Return how long this pod may stay on a node that is not reached; for ever is given as 0."""
    for each in pod["spec"].get("tolerations", []):
        if each.get("key") == "node.kubernetes.io/unreachable" and each.get("effect") in {"NoExecute", None}:
            return float(each.get("tolerationSeconds", 0))
    return 0.0


def test_a_node_is_drained_and_comes_back(scenario: Scenario, kubectl: Kubectl) -> None:
    node = edge_node(kubectl)
    with scenario("drain", recovery_s=180):
        try:
            kubectl.run("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s", seconds=120)
            left = [pod for pod in kubectl.pods(EDGE) if pod["spec"].get("nodeName") == node]
            assert left == [], "the drained node has a worker"
        finally:
            kubectl.run("uncordon", node)
        until("an edge worker", lambda: kubectl.ready(EDGE), 180)


def test_a_node_without_the_api_server_for_longer_than_the_eviction_time(
    scenario: Scenario, kubectl: Kubectl, power: Power, report: Report, installation: Installation
) -> None:
    node = edge_node(kubectl)
    power.need(node)
    (pod,) = kubectl.pods(EDGE)
    # what any other pod of this cluster gets
    (other,) = kubectl.pods("app=digits-models")
    eviction = eviction_s(other)
    assert eviction > 0, "the cluster evicts no pod of an unreachable node: nothing to outlast"
    with scenario("edge without API server") as load:
        with power.without_api(node):
            until("NotReady", lambda: condition(kubectl.body("node", node), "Ready") == "Unknown", NOT_READY_S)
            began = time.monotonic()
            phases = set()
            while time.monotonic() < began + eviction + 45:
                status = installation.status()
                conditions = status.get("conditions") or [{}]
                phases.add(f"{status.get('phase')} {conditions[-1].get('reason', '')}")  # type: ignore[index]
                time.sleep(2.0)
            load.wait_answered(100)
        until("Ready", lambda: condition(kubectl.body("node", node), "Ready") == "True", 120)
        until("an edge worker", lambda: kubectl.ready(EDGE), 120)
    # an evicted pod is still listed while it ends
    same = pod["metadata"]["uid"] in {each["metadata"]["uid"] for each in kubectl.pods(EDGE)}
    report.figures["evictions_while_cut_off"] = int(not same)
    report.write()
    print("seen meanwhile:", sorted(phases))
    assert same, f"the pod that answered was evicted; seen meanwhile: {sorted(phases)}"
    assert "Degraded NodeUnreachable" in phases, f"GM did not tell of the cut: {sorted(phases)}"
    assert not [each for each in phases if each.startswith(("Pending", "Failed"))], phases


def test_a_node_that_is_cut_off_from_everything(scenario: Scenario, kubectl: Kubectl, power: Power) -> None:
    node = edge_node(kubectl)
    power.need(node)
    with scenario("edge cut off", recovery_s=180):
        with power.cut(node):
            until("NotReady", lambda: condition(kubectl.body("node", node), "Ready") == "Unknown", NOT_READY_S)
        until("Ready", lambda: condition(kubectl.body("node", node), "Ready") == "True", 120)
