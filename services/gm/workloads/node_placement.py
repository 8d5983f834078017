"""Places pods on nodes through Kubernetes' scheduler (``bind_pod``).

``spec.nodeName`` in a pod would bypass the scheduler: then a node refuses what does not fit, the pod has failed, and
Kubernetes makes the next one at once. Nor could ``kubectl drain`` empty the node. So a named node becomes a required
affinity to its name.

A pod that can run on no other node, or whose samples are there, gains nothing by an eviction: it tolerates that its
node is not ready or not reachable, for as long as that lasts, unless its template has its own toleration for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from halimede.errors import InvalidFieldError
from services.gm.workloads.object_names import Body

#: the field of a node affinity that must hold
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
#: taints of a node that is cut off, or whose kubelet is not ready: by default they evict a pod after five minutes
CUT_OFF = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
#: the effect of a taint that ends running pods
EVICTS = "NoExecute"
#: taints that keep other pods off the nodes which users name; a cordon is none of them
EDGE_TAINT, CONTROL_PLANE_TAINT = "node-role.kubernetes.io/edge", "node-role.kubernetes.io/control-plane"
#: what a user can do about a field of another form than Kubernetes'
SHAPE_FIX = "write it as Kubernetes has it: kubectl explain pod.spec.affinity.nodeAffinity"


def bind_pod(pod: Body, node: str, *, edge: bool) -> None:
    """Bind a pod to a node: change ``pod``, the spec of a pod, which ``check_placement`` has accepted.

    ``node``: empty: the scheduler chooses. ``edge``: whether the pod runs at the edge. A pod that is bound or at the
    edge gets tolerations, so that it stays on a node that is cut off.
    """
    pod.pop("nodeName", None)
    if node:
        affinity = pod["affinity"] = dict(pod.get("affinity") or {})
        nodes = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
        required = nodes[REQUIRED] = dict(nodes.get(REQUIRED) or {})
        required["nodeSelectorTerms"] = list(_with_node_name(required.get("nodeSelectorTerms") or [], node))
    if node or edge:
        tolerations = list(pod.get("tolerations") or [])
        pod["tolerations"] = [*tolerations, *(t for t in _tolerations(node) if not _is_covered(t, tolerations))]


def check_placement(pod: Mapping[str, Any], at: str) -> Iterator[InvalidFieldError]:
    """Yield an error for each field of a pod's spec whose form ``bind_pod`` cannot add to; ``at``: its path."""
    field, value = f"{at}.affinity", pod.get("affinity")
    for name in ("nodeAffinity", REQUIRED):
        if value is not None and not isinstance(value, Mapping):
            yield InvalidFieldError(field, value, SHAPE_FIX)
            return
        field, value = f"{field}.{name}", (value or {}).get(name)
    if value is not None and not isinstance(value, Mapping):
        yield InvalidFieldError(field, value, SHAPE_FIX)
        return
    lists = {f"{field}.nodeSelectorTerms": (value or {}).get("nodeSelectorTerms")}
    lists[f"{at}.tolerations"] = pod.get("tolerations")
    for where, items in lists.items():
        if items is not None and not (isinstance(items, list) and all(isinstance(item, Mapping) for item in items)):
            yield InvalidFieldError(where, items, "write a list of mappings")
            continue
        for i, item in enumerate(items or []):
            yield from _check_item(item, f"{where}[{i}]")


def _check_item(item: Mapping[str, Any], at: str) -> Iterator[InvalidFieldError]:
    """Yield an error for each field that ``bind_pod`` cannot read in a node selector term or a toleration."""
    if not isinstance(fields := item.get("matchFields"), list | None):
        yield InvalidFieldError(f"{at}.matchFields", fields, SHAPE_FIX)
    for name in ("key", "effect"):
        if not isinstance(value := item.get(name), str | None):
            yield InvalidFieldError(f"{at}.{name}", value, "write a text")


def _with_node_name(terms: list[Mapping[str, Any]], node: str) -> Iterator[Body]:
    """Yield the terms, of which one must hold, each with the node's name; an empty term never holds and stays so."""
    requirement = {"key": "metadata.name", "operator": "In", "values": [node]}
    for term in terms:
        yield {**term, "matchFields": [*(term.get("matchFields") or []), requirement]} if term else {}
    if not terms:
        yield {"matchFields": [requirement]}


def _tolerations(node: str) -> Iterator[Body]:
    """Yield the tolerations of a pod that stays; ``node``: the named node, empty: none is named."""
    yield {"key": EDGE_TAINT, "operator": "Exists"}
    if node:
        yield {"key": CONTROL_PLANE_TAINT, "operator": "Exists", "effect": "NoSchedule"}
    for taint in CUT_OFF:
        yield {"key": taint, "operator": "Exists", "effect": EVICTS}


def _is_covered(ours: Mapping[str, Any], tolerations: list[Mapping[str, Any]]) -> bool:
    """Whether a template's tolerations have one for the taint of ``ours``, maybe one that ends after some seconds."""
    effect = ours.get("effect")
    return any(
        t.get("key") in {None, "", ours["key"]} and (not t.get("effect") or t["effect"] == effect) for t in tolerations
    )
