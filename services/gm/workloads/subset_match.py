"""Checks whether an API server's object already contains the desired body. It must accept what was just written.

The server fills in defaults, writes quantities in its own way, leaves out what is zero or empty, and drops fields that
its version does not know. So what it has and we did not write is no difference; nor is a field that it does not have,
unless every server that we support keeps it (``KEPT``): what people remove from there by hand is put back.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from halimede.api.quantity import amount

#: parents of maps: each of their entries is kept
MAPS = frozenset({"labels", "annotations", "matchLabels", "nodeSelector", "selector", "limits", "requests"})
#: fields that every API server keeps, by the field that they are in
KEPT: Mapping[str, frozenset[str]] = {
    "": frozenset({"spec"}),
    "spec": frozenset({
        "template", "scaleTargetRef", "minReplicas", "maxReplicas", "metrics", "ports", "selector", "replicas",
        "containers", "initContainers", "volumes", "nodeName", "nodeSelector", "imagePullSecrets", "rules", "tls",
    }),
    "template": frozenset({"metadata", "spec"}),
    "containers": frozenset({
        "image", "command", "args", "env", "envFrom", "volumeMounts", "resources", "securityContext", "livenessProbe",
        "readinessProbe", "ports",
    }),
    "resources": frozenset({"limits", "requests"}),
    "env": frozenset({"value", "valueFrom"}),
    "volumes": frozenset({"hostPath", "secret"}),
    "volumeMounts": frozenset({"readOnly", "subPathExpr"}),
}  # fmt: skip
#: lists whose elements are told apart by a name: others may add to them
NAMED = frozenset({"containers", "initContainers", "volumes", "env", "volumeMounts", "imagePullSecrets"})
QUANTITIES = frozenset({"limits", "requests", "overhead"})
QUANTITY_FIELDS = frozenset({"sizeLimit", "divisor", "averageValue", "storage"})
#: the server rounds resources up to thousandths, and knows no more than this
MILLI, MOST = 1000, Fraction(2**63 - 1)


def holds(existing: Any, wanted: Any, field: str = "", parent: str = "") -> bool:
    """Whether ``existing`` is what the server makes of ``wanted``. ``field`` in ``parent`` is where they are."""
    if not wanted and wanted is not False:
        return True  # nothing is asked: where the server has something, it is its default
    if isinstance(wanted, Mapping) and isinstance(existing, Mapping):
        place = "containers" if field == "initContainers" else field
        kept = KEPT.get(place, frozenset())
        return all(
            holds(existing[key], value, key, field)
            if key in existing
            else _zero(value) or not (field in MAPS or key in kept)
            for key, value in wanted.items()
        )
    if isinstance(wanted, list) and isinstance(existing, list):
        if field in NAMED:
            there = _by_name(existing)
            return all(
                len(there[name]) >= len(ours)
                and all(holds(b, a, field, parent) for a, b in zip(ours, there[name], strict=False))
                for name, ours in _by_name(wanted).items()
            )
        return len(existing) == len(wanted) and all(
            holds(b, a, field, parent) for a, b in zip(wanted, existing, strict=True)
        )
    if parent in QUANTITIES or field in QUANTITY_FIELDS or (field == "value" and parent == "target"):
        return same_quantity(existing, wanted)
    return bool(existing == wanted)


def same_quantity(one: object, other: object) -> bool:
    """Whether two quantities are of one value for the API server."""
    first, second = amount(one), amount(other)
    if first is None or second is None:
        return one == other
    return _rounded(first) == _rounded(second)


def _rounded(value: Fraction) -> int:
    """Round away from zero, as the server does."""
    bounded = max(-MOST, min(MOST, value)) * MILLI
    return math.ceil(bounded) if bounded >= 0 else math.floor(bounded)


def _by_name(elements: list[Any]) -> dict[str, list[Any]]:
    """Group elements that are meant to be one. A name may stand twice: which is which, their order tells.

    Each element is looked at once: users write thousands of them, and everything else waits for us.
    """
    groups: dict[str, list[Any]] = defaultdict(list)
    for element in elements:
        known = isinstance(element, Mapping)
        groups[repr((element.get("name"), element.get("mountPath"))) if known else ""].append(element)
    return groups


def _zero(value: Any) -> bool:
    """Whether the server may leave out a value: it is nothing, or made of nothing."""
    if isinstance(value, Mapping):
        return all(map(_zero, value.values()))
    return not value
