"""Where a pod must run, as the scheduler reads it from the pod's required node affinity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def named_node(pod: Mapping[str, Any]) -> str:
    """Return the node that a pod's spec requires by its name; empty: none. Fails if it goes past the scheduler."""
    assert not pod.get("nodeName"), "it goes past the scheduler"
    terms = pod.get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED, {}).get("nodeSelectorTerms", [])
    names = {
        tuple(field["values"])
        for term in terms
        for field in term.get("matchFields", [])
        if (field["key"], field["operator"]) == ("metadata.name", "In")
    }
    assert len(names) <= 1, names
    return next(iter(names), ("",))[0]
