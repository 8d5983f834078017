"""Lets go of a node that will not come back, and of all that was known of it.

Nodes are never forgotten by themselves: one that is away keeps what it was given, and its silence is a problem that
users shall see. That it is gone for good only a user can say.
"""

from __future__ import annotations

from halimede.bus import Bus
from halimede.errors import HalimedeError
from halimede.topics import NODE_STATUS, PRESENCE
from services.gm.cluster.port import Cluster, ConflictError
from services.gm.event_router import EventRouter


class UnknownNodeError(HalimedeError):
    """There is no node of this name."""

    def __init__(self, node: str) -> None:
        super().__init__(f"there is no node {node}: see `halimede nodes`")


async def remove_node(node: str, bus: Bus, cluster: Cluster, engine: EventRouter) -> None:
    """Forget a node. Raises UnknownNodeError, ConflictError while it is there, BusError while the broker is away."""
    if node not in engine.nodes:
        raise UnknownNodeError(node)
    _refuse_online(node, engine)
    # the broker first: what it keeps would bring the node back, and were GM killed in between, it can be asked again
    for key in engine.downstream.keys(node) | engine.reports.keys(node):
        await bus.clear(NODE_STATUS.at(node=node, ns=key.namespace, plural=key.plural, name=key.name))
    await bus.clear(PRESENCE.at(node=node))
    _refuse_online(node, engine)
    concerned = engine.downstream.remove(node) | engine.reports.drop_node(node)
    engine.nodes.remove(node)
    concerned |= engine.index.node_changed(node)
    await cluster.forget_node(node)
    await cluster.record("Normal", "NodeDeleted", f"node/{node}", "the node was deleted by a user")
    for key in concerned:
        engine.queue.add(key)


def _refuse_online(node: str, engine: EventRouter) -> None:
    if engine.nodes.online(node):
        raise ConflictError(f"node {node} is online: stop its local controller first, or it would be back at once")
