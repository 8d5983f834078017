"""Each pod of the system is killed under load: frames are answered, or their publisher is told."""

from __future__ import annotations

import pytest

from tests.cluster.conftest import Scenario
from tests.cluster.installation import GM, LC, MOSQUITTO, Installation
from tests.cluster.kubectl import Kubectl, until

EDGE, CLOUD = (
    f"jointinferenceservice.sedna.io/name=digits,jointinferenceservice.sedna.io/worker-type={role}"
    for role in ("edge", "cloud")
)
HALIMEDE, DEFAULT = "halimede", "default"
pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize(
    ("what", "selector", "namespace"),
    [
        ("gm", GM, HALIMEDE),
        ("lc", LC, HALIMEDE),
        ("broker", MOSQUITTO, HALIMEDE),
        ("edge worker", EDGE, DEFAULT),
        ("cloud worker", CLOUD, DEFAULT),
    ],
)
def test_a_pod_is_killed(scenario: Scenario, kubectl: Kubectl, what: str, selector: str, namespace: str) -> None:
    before = kubectl.pods(selector, namespace)
    with scenario(f"kill {what}"):
        # without grace: the kernel ends it, as when a machine takes its memory back
        kubectl.run("delete", "pod", before[0]["metadata"]["name"], "-n", namespace, "--grace-period=0", "--force")
        until(f"another {what}", lambda: kubectl.ready(selector, namespace, len(before)), 180)
    after = {pod["metadata"]["uid"] for pod in kubectl.pods(selector, namespace)}
    assert before[0]["metadata"]["uid"] not in after


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
