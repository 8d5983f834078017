"""Each pod of the system is killed under load: frames are answered, or their publisher is told."""

from __future__ import annotations

import pytest

from tests.cluster.conftest import Scenario
from tests.cluster.installation import CLOUD, EDGE, GM, LC, MOSQUITTO, Installation
from tests.cluster.kubectl import Body, Kubectl, until
from tests.cluster.power import Power

HALIMEDE, DEFAULT = "halimede", "default"
pytestmark = pytest.mark.timeout(400)


def container_of(pod: Body) -> str:
    """Return the id of a pod's container, its first one; empty if it never ran."""
    status = pod["status"].get("containerStatuses") or [{}]
    return str(status[0].get("containerID", ""))


@pytest.mark.parametrize(
    ("what", "where"),
    [
        ("gm", (GM, HALIMEDE)),
        ("lc", (LC, HALIMEDE)),
        ("broker", (MOSQUITTO, HALIMEDE)),
        ("edge worker", (EDGE, DEFAULT)),
        ("cloud worker", (CLOUD, DEFAULT)),
    ],
)
def test_a_pod_is_killed(scenario: Scenario, kubectl: Kubectl, power: Power, what: str, where: tuple[str, str]) -> None:
    selector, namespace = where
    before = kubectl.pods(selector, namespace)
    killed = container_of(before[0])

    def another() -> bool:
        there = {container_of(pod) for pod in kubectl.pods(selector, namespace)}
        return killed not in there and kubectl.ready(selector, namespace, len(before))

    with scenario(f"kill {what}"):
        if before[0]["spec"]["nodeName"] in power.nodes:
            power.kill(killed)
        else:
            # from here no process can be killed: the kubelet sends SIGTERM
            kubectl.run("delete", "pod", before[0]["metadata"]["name"], "-n", namespace, "--grace-period=0", "--force")
        until(f"another {what}", another, 180)


def test_another_gm_leads_when_the_leader_ends(
    scenario: Scenario, kubectl: Kubectl, installation: Installation
) -> None:
    def leader() -> str:
        return str(kubectl.body("lease", "halimede-gm", "-n", HALIMEDE)["spec"].get("holderIdentity") or "")

    first = leader()
    with scenario("leader change"):
        kubectl.run("delete", "pod", first, "-n", HALIMEDE)
        until("another leader", lambda: leader() not in {"", first}, 60)
        until("two replicas", lambda: kubectl.ready(GM, HALIMEDE, 2), 120)
    # the new leader carries out what is asked for
    installation.edit("0.06")


def test_the_broker_restarts(scenario: Scenario, kubectl: Kubectl) -> None:
    with scenario("broker restart"):
        kubectl.run("rollout", "restart", "deployment/halimede-broker", "-n", HALIMEDE)
        kubectl.run("rollout", "status", "deployment/halimede-broker", "-n", HALIMEDE, "--timeout=120s")
