"""Names, addresses and folders of the cluster. All its networks exist only in network namespaces of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "cluster"

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
#: the network namespace of the control plane, in which the suite runs too
CONTROL_NAMESPACE = f"{PREFIX}-control"


@dataclass(frozen=True, slots=True)
class Folders:
    """What one run writes: ``base`` may be removed when no cluster runs."""

    base: Path = BUILD

    @property
    def logs(self) -> Path:
        """A file for each process."""
        return self.base / "logs"

    @property
    def control(self) -> Path:
        """Keys, tokens and kubeconfigs of the control plane, and etcd's data."""
        return self.base / "control"

    @property
    def images(self) -> Path:
        """Container images as archives, and what they are built from: kept from run to run."""
        return self.base / "images"

    @property
    def state(self) -> Path:
        """What the suite may do to the nodes of this cluster (``power.py``)."""
        return self.base / "state.json"

    def node(self, name: str) -> Path:
        """All files of a node."""
        return self.base / "nodes" / name
