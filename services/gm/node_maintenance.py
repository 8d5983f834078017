"""Node maintenance: drain a node, give it back, or remove it for good.

A drained node is kept out of every placement until a user gives it back: the mark outlives GM and the node's own coming
and going. Its workers finish what they have, as on any node from which a service is removed. What has no other node
waits, and its status says so.

A node is never removed by itself: one that is offline keeps what it was given, and its silence is a problem that users
shall see. Only a user can say that it is gone for good.
"""

from __future__ import annotations

from typing import Any

from halimede.bus import Bus
from halimede.errors import HalimedeError
from halimede.topics import NODE_STATUS, PRESENCE
from services.gm.cluster.port import Cluster, ConflictError, Editor
from services.gm.control_plane import ControlPlane
from services.gm.nodes import Change

EVENTS = {
    True: ("NodeDrained", "a user asked for it to be empty"),
    False: ("NodeUncordoned", "a user gave it back"),
}


class UnknownNodeError(HalimedeError):
    """There is no node of this name."""

    def __init__(self, node: str) -> None:
        super().__init__(f"there is no node {node}: see `halimede nodes`")


async def mark(node: str, *, drained: bool, cluster: Cluster, editor: Editor, plane: ControlPlane) -> dict[str, Any]:
    """Drain a node or give it back; return what of it has no other node now. Raises UnknownNodeError, StoreError.

    The answer is ``{"online": ..., "stranded": [{"service": "default/helmet", "role": "edge"}, ...]}``.
    """
    if node not in plane.nodes and not plane.nodes.drained(node):
        raise UnknownNodeError(node)
    if plane.nodes.drained(node) is not drained:
        # the store first: what a user was told must outlive us
        await editor.mark_drained(node, drained=drained)
        change: Change = plane.nodes.mark(node, drained=drained)
        await plane.node_changed(node, change)
        reason, message = EVENTS[drained]
        await cluster.record("Normal", reason, f"node/{node}", message)
    stranded = [
        {"service": f"{key.namespace}/{key.name}", "role": role} for key, role in plane.index.stranded(node) if drained
    ]
    return {"online": plane.nodes.online(node), "stranded": stranded}


async def remove_node(node: str, bus: Bus, cluster: Cluster, plane: ControlPlane) -> None:
    """Forget a node. Raises UnknownNodeError, ConflictError while it is there, BusError while the broker is away."""
    if node not in plane.nodes:
        raise UnknownNodeError(node)
    _refuse_online(node, plane)
    # the broker first: what it keeps would bring the node back, and were GM killed in between, it can be asked again
    for key in plane.downstream.keys(node) | plane.reports.keys(node):
        await bus.clear(NODE_STATUS.at(node=node, ns=key.namespace, plural=key.plural, name=key.name))
    await bus.clear(PRESENCE.at(node=node))
    _refuse_online(node, plane)
    concerned = plane.downstream.remove(node) | plane.reports.drop_node(node)
    plane.nodes.remove(node)
    concerned |= plane.index.node_changed(node)
    await cluster.forget_node(node)
    await cluster.record("Normal", "NodeDeleted", f"node/{node}", "the node was deleted by a user")
    for key in concerned:
        plane.queue.add(key)


def _refuse_online(node: str, plane: ControlPlane) -> None:
    if plane.nodes.online(node):
        raise ConflictError(f"node {node} is online: stop its local controller first, or it would be back at once")
