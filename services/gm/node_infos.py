"""What GM answers about its nodes: to users (``halimede nodes``), and to the checks of the system."""

from __future__ import annotations

from collections.abc import Iterator

from halimede.api.placement import SERVICES
from halimede.messages import NodeInfo
from halimede.names import Key
from halimede.topics import PRESENCE
from services.gm.cluster.port import Cluster
from services.gm.downstream import Downstream
from services.gm.nodes import Node, Nodes
from services.gm.reference_index import ReferenceIndex
from services.gm.reports import NodeReports

#: most resources that only the node holds in the answer about a node
SHOWN_UNKNOWN = 20


class NodeInfos:
    """Describes nodes from GM's state at the time of the call."""

    def __init__(
        self, cluster: Cluster, nodes: Nodes, reports: NodeReports, index: ReferenceIndex, downstream: Downstream
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._reports = reports
        self._index = index
        self._downstream = downstream

    def describe(self, name: str = "") -> Iterator[NodeInfo]:
        """Yield all nodes in the order of their names, or only the node ``name``; nothing if it is not known."""
        workers = self._reports.workers()
        for node_name, node in sorted(self._nodes.items()):
            if name in {"", node_name}:
                yield self._describe(node, workers[node_name])

    def _describe(self, node: Node, workers: int) -> NodeInfo:
        """Return the answer about a node; ``workers``: the number of workers that it runs."""
        presence = node.presence
        return NodeInfo(
            name=node.name,
            online=node.online and not node.unready,
            epoch=node.epoch,
            version=presence.version if presence else "",
            cpus=presence.cpus if presence else 0,
            memory_bytes=presence.memory_bytes if presence else 0,
            labels=presence.labels if presence else {},
            resources=len(self._services(node.name)),
            drained=node.drained,
            unknown=self._unknown_resources(node.name),
            workers=workers,
            http=presence.http if presence else "",
            trouble=_trouble(node),
            refused=_refused_to(node),
        )

    def _services(self, node: str) -> set[Key]:
        """Return the services that are placed on a node, or that it has not deleted yet."""
        assigned = {key for key in self._downstream.keys(node) if key.plural in SERVICES}
        index = self._index
        return assigned.union(key for key in index.keys_on(node) if (entry := index.get(key)) and entry.roles)

    def _unknown_resources(self, node: str) -> list[str]:
        """Return the resources that only a node holds, as texts: GM's store was lost, and nobody deletes them."""
        surplus = self._downstream.surplus_versions(node)
        unknown = [key for key, version in surplus.items() if not self._cluster.exists(key, version.uid)]
        return [str(key) for key in sorted(unknown)[:SHOWN_UNKNOWN]]


def _trouble(node: Node) -> str:
    """Return what is wrong with a node, by Kubernetes or by its local controller; empty: nothing."""
    if node.unready:
        return f"Kubernetes takes it as not ready ({node.unready})"
    return node.presence.trouble if node.presence and node.online else ""


def _refused_to(node: Node) -> list[str]:
    """Return the topics and filters that the broker refuses to a node's local controller.

    A refused presence does not arrive: then there was only a sync from the present connection.
    """
    if not node.online:
        return []
    if node.presence is None or node.presence.epoch < node.epoch:
        return [PRESENCE.at(node=node.name).text]
    return node.presence.refused
