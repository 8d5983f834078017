"""Names, addresses and folders of the cluster. All its networks exist only in network namespaces of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: what a run writes: it may be removed when no cluster runs
BUILD = ROOT / "build" / "cluster"
#: a file for each process; keys, tokens and kubeconfigs of the control plane, and etcd's data
LOGS, CONTROL = BUILD / "logs", BUILD / "control"
#: container images as archives, and what they are built from: kept from run to run
IMAGES = BUILD / "images"
#: what the suite may do to the nodes of this cluster (``power.py``)
STATE = BUILD / "state.json"

#: network namespaces are named after it, and the cgroups of the nodes stand below it
PREFIX = "halimede-cluster"
SERVICE_NETWORK = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
DOMAIN = "cluster.local"
#: of the control plane, on the bridge that all nodes are connected to
CONTROL_PLANE = "10.88.0.1"
API_PORT = 6443
API_URL = f"https://{CONTROL_PLANE}:{API_PORT}"


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node: ``number`` is in its addresses, ``label`` is what an operator sets on it."""

    name: str
    number: int
    label: str

    @property
    def address(self) -> str:
        """The node's own address."""
        return f"10.88.0.{10 + self.number}"

    @property
    def pods(self) -> str:
        """The network of its pods."""
        return f"10.244.{self.number}.0/24"

    @property
    def namespace(self) -> str:
        """Its network namespace."""
        return f"{PREFIX}-{self.name}"


NODES = (NodePlan("cloud0", 0, "halimede.io/node"), NodePlan("edge0", 1, "node-role.kubernetes.io/edge"))
#: the node that KubeEdge's edgecore runs (``kubeedge.py``): no Service and no name of the cluster is known there
PLACE = NodePlan("place0", 2, "node-role.kubernetes.io/edge")
#: names of the site's broker outside the cluster: a cloud node's address in the cluster, the place's own at the place
CLOUD_NAME, BROKER_NAME = "cloud.example.com", "broker.example.com"
#: a name server that answers what its further options say, and reads nothing of this machine
RESOLVER = (
    "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--no-daemon",
    "--user=root", "--pid-file=",
)  # fmt: skip
#: the network namespace of the control plane, in which the suite runs too
CONTROL_NAMESPACE = f"{PREFIX}-control"
