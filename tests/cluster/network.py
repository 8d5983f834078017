"""Network namespaces: one for the control plane with a bridge, one for each node, and routes between all pods.

Nothing of it has a way out of the machine: no namespace has an interface of the host.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.cluster.processes import ClusterError, in_namespace, run
from tests.cluster.settings import CONTROL_NAMESPACE, CONTROL_PLANE, NODES, PLACE, SERVICE_NETWORK, NodePlan

BRIDGE = "nodes"
#: the interface of a node
UPLINK = "eth0"


def create() -> None:
    """Create the control plane's namespace and those of all nodes, with addresses and routes. Raises ClusterError."""
    _namespace(CONTROL_NAMESPACE)
    _ip(CONTROL_NAMESPACE, "link", "add", BRIDGE, "type", "bridge")
    _ip(CONTROL_NAMESPACE, "address", "add", f"{CONTROL_PLANE}/24", "dev", BRIDGE)
    _ip(CONTROL_NAMESPACE, "link", "set", BRIDGE, "up")
    for node in NODES:
        add(node)
        for other in NODES:
            if other != node:
                _ip(node.namespace, "route", "add", other.pods, "via", other.address)
    # addresses of Services are replaced before a packet leaves (``service_proxy``): the route only has to exist
    _ip(CONTROL_NAMESPACE, "route", "add", SERVICE_NETWORK, "dev", BRIDGE)
    # cloudcore takes the address of the default route for its own; nobody answers on it
    _ip(CONTROL_NAMESPACE, "route", "add", "default", "dev", BRIDGE)


def add(node: NodePlan) -> None:
    """Create the namespace of a node, connected to the control plane's bridge. Raises ClusterError."""
    _namespace(node.namespace)
    peer = ("peer", "name", UPLINK, "netns", node.namespace)
    _ip(CONTROL_NAMESPACE, "link", "add", node.name, "type", "veth", *peer)
    _ip(CONTROL_NAMESPACE, "link", "set", node.name, "master", BRIDGE, "up")
    _ip(node.namespace, "address", "add", f"{node.address}/24", "dev", UPLINK)
    _ip(node.namespace, "link", "set", UPLINK, "up")
    _ip(node.namespace, "route", "add", "default", "via", CONTROL_PLANE)
    _ip(CONTROL_NAMESPACE, "route", "add", node.pods, "via", node.address)


def _namespace(name: str) -> None:
    run("ip", "netns", "add", name)
    _ip(name, "link", "set", "lo", "up")
    # a namespace has its own settings: the host's stay as they are
    run(*in_namespace(name, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0"))


def remove(*names: str) -> None:
    """Remove namespaces that exist, by default all, and with them their interfaces."""
    for name in names or (*namespaces(), PLACE.namespace):
        if Path("/run/netns", name).exists():
            run("ip", "netns", "delete", name)


def set_uplink(node: str, *, up: bool) -> None:
    """Cut a node off from everything, or connect it again."""
    _ip(CONTROL_NAMESPACE, "link", "set", node, "up" if up else "down")


def namespaces() -> list[str]:
    """Return the names of the namespaces in which Services of the cluster are reached."""
    return [CONTROL_NAMESPACE, *(node.namespace for node in NODES)]


def usable() -> str:
    """Return why namespaces cannot be made here; empty if they can."""
    probe = f"{CONTROL_NAMESPACE}-probe"
    try:
        run("ip", "netns", "add", probe)
    except ClusterError as error:
        return str(error)
    with contextlib.suppress(ClusterError):
        run("ip", "netns", "delete", probe)
    return ""


def _ip(namespace: str, *words: str) -> None:
    run("ip", "-netns", namespace, *words)
