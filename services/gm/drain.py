"""Empties a node for maintenance, and gives it back.

A mark keeps a node out of every placement until a user takes the mark away: it outlives GM and the node's own coming
and going. What was there is taken away as from any node where it has no place any more, so its workers finish what
they have. What has no other node waits, and says so.
"""

from __future__ import annotations

from typing import Any

from services.gm.cluster.port import Cluster, Editor
from services.gm.event_router import EventRouter
from services.gm.nodes import Change
from services.gm.removal import UnknownNodeError

EVENTS = {
    True: ("NodeDrained", "a user asked for it to be empty"),
    False: ("NodeUncordoned", "a user gave it back"),
}


async def mark(node: str, *, drained: bool, cluster: Cluster, editor: Editor, engine: EventRouter) -> dict[str, Any]:
    """Drain a node or give it back; return what of it has no other node now. Raises UnknownNodeError, StoreError.

    The answer is ``{"online": ..., "stranded": [{"service": "default/helmet", "role": "edge"}, ...]}``.
    """
    if node not in engine.nodes and not engine.nodes.drained(node):
        raise UnknownNodeError(node)
    if engine.nodes.drained(node) is not drained:
        # the store first: what a user was told must outlive us
        await editor.mark_drained(node, drained=drained)
        change: Change = engine.nodes.mark(node, drained=drained)
        await engine.node_changed(node, change)
        reason, message = EVENTS[drained]
        await cluster.record("Normal", reason, f"node/{node}", message)
    stranded = [
        {"service": f"{key.namespace}/{key.name}", "role": role} for key, role in engine.index.stranded(node) if drained
    ]
    return {"online": engine.nodes.online(node), "stranded": stranded}
