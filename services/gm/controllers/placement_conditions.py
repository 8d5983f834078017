"""Why a role is nowhere: it names a node that there is not, or no node fits. All of it heals by itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from halimede.api.placement import matches
from services.gm.controllers.base import Observed
from services.gm.reference_index import WorkerPlacement
from services.gm.worker_readiness import Problem


def unplaced(roles: Sequence[WorkerPlacement], observed: Observed) -> Iterator[Problem]:
    """Name the roles that no node has."""
    placed = {name for names in observed.placed.values() for name in names}
    for role in roles:
        at = role.at
        if role.pod.node_name:
            if role.pod.node_name not in observed.nodes:
                yield Problem("NodeNotFound", f"{at}.nodeName: node {role.pod.node_name} has never been seen")
            elif observed.nodes[role.pod.node_name].drained:
                yield _drained(f"{at}.nodeName", [role.pod.node_name])
        elif not role.pod.node_selector:
            yield Problem("NoNode", f"{at} gives neither nodeName nor nodeSelector")
        elif role.name not in placed:
            wanted = ", ".join(f"{k}={v}" for k, v in sorted(role.pod.node_selector.items()))
            away = (node for node in observed.nodes.values() if node.drained)
            if drained := [node.name for node in away if matches(role.pod, node.name, node.labels)]:
                yield _drained(f"{at}.nodeSelector", drained)
            else:
                yield Problem("NoNode", f"{at}.nodeSelector: no node has {wanted}")


def nowhere(roles: Sequence[WorkerPlacement], observed: Observed) -> Iterator[Problem]:
    """Say which node a role names that there is not; where a selector leads, the cluster's scheduler says."""
    for role in roles:
        if role.pod.node_name and role.pod.node_name not in observed.nodes:
            yield Problem("NodeNotFound", f"{role.at}.nodeName: there is no node {role.pod.node_name}")


def _drained(field: str, nodes: Sequence[str]) -> Problem:
    """Say that only drained nodes are left for a role: it heals when one of them is given back."""
    first, more = min(nodes), f" (and {len(nodes) - 1} more)" if len(nodes) > 1 else ""
    return Problem("NodeDrained", f"{field}: node {first} is drained{more}: `halimede uncordon {first}` gives it back")
