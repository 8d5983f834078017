"""What has to be written so that the cluster has what a service wants. Nothing, if it has it: no write is made twice.

An object carries the digest of what we wrote last. While it is that of what we want, only what was lost or changed is
a difference, and what others have added may stay (a sidecar that a webhook puts in). Once we want something else, what
is ours is written whole: fields that stand there and are not wanted any more are removed. That may name fields which
the server had filled in; it fills them in again.

No last state is kept for that. What is ours whole: a Deployment's pod template, the spec of an autoscaler, a Service's
selector and ports. Other fields of a spec are not touched unless wanted: an autoscaler's ``replicas``, ``clusterIP``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from halimede.api.quantity import amount
from services.gm.cluster.port import Ref
from services.gm.workloads.deployments import Built
from services.gm.workloads.object_names import (
    DIGEST,
    ROLES,
    WORKER,
    Body,
    autoscaler_name,
    deployment_name,
    owned_by,
    worker_of,
)  # fmt: skip

#: the parts of a spec that nobody else writes, by kind; () is the whole spec
WHOLE: Mapping[str, tuple[str, ...]] = {
    "Deployment": ("template",),
    "Service": ("selector", "ports"),
    "Ingress": ("ingressClassName", "rules", "tls"),
    "HorizontalPodAutoscaler": ("scaleTargetRef", "minReplicas", "maxReplicas", "metrics", "behavior"),
}
#: written into templates by `kubectl rollout restart`: removing it would start all pods again
FOREIGN = "kubectl.kubernetes.io/"
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


@dataclass(frozen=True, slots=True)
class Ensure:
    """Create the object, or update it to the body."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Remove:
    """The cluster shall not have this object (any more)."""

    ref: Ref
    uid: str


def differences(built: Built, existing: Mapping[Ref, Body], service_uid: str) -> Iterator[Ensure | Remove]:
    """Yield what is to be written and removed. What is being deleted is waited for.

    All that we make and may come to want no more are autoscalers, ingresses, and the Deployments of workers that an
    edit has taken out of a service. Another object that names the service as its owner, such as a copy of
    ours that somebody made by hand, is his own: GM leaves it alone, and its service goes on.
    """
    wanted = {Ref.of(body): body for body in built.objects}
    for ref, body in existing.items():
        if ref not in wanted and not _leaving(body) and _is_unkept(ref, body, built, service_uid):
            yield Remove(ref, body["metadata"]["uid"])
    for ref, body in wanted.items():
        there = existing.get(ref)
        if there is None or (not _leaving(there) and patch_for(there, body) is not None):
            yield Ensure(body)


def patch_for(existing: Body, body: Body) -> Body | None:
    """Return the JSON merge patch that brings ``existing`` to hold ``body``; None if it does."""
    metadata = existing.get("metadata") or {}
    marks = {name: body["metadata"].get(name) or {} for name in ("labels", "annotations")}
    same = (metadata.get("annotations") or {}).get(DIGEST) == marks["annotations"].get(DIGEST)
    if (
        same
        and holds(existing.get("spec"), body["spec"], "spec")
        and all(holds(metadata.get(name) or {}, wanted, name) for name, wanted in marks.items())
    ):
        return None
    spec = existing.get("spec") or {}
    whole = WHOLE.get(body["kind"], ())
    patch = {field: _replacing(spec.get(field), body["spec"].get(field)) for field in whole}
    patch = {field: value for field, value in patch.items() if value is not None or field in spec}
    patch |= {field: value for field, value in body["spec"].items() if field not in whole}
    return {"metadata": {name: wanted for name, wanted in marks.items() if wanted}, "spec": patch}


def _replacing(existing: Any, wanted: Any, field: str = "") -> Any:
    """Return the merge patch that makes ``existing`` into ``wanted`` and nothing else; lists go whole."""
    if not isinstance(wanted, Mapping) or not isinstance(existing, Mapping):
        return wanted
    removed = {
        key: None
        for key in existing.keys() - wanted.keys()
        if not (field == "annotations" and str(key).startswith(FOREIGN))
    }
    return removed | {key: _replacing(existing.get(key), value, str(key)) for key, value in wanted.items()}


def _leaving(body: Mapping[str, Any]) -> bool:
    return bool(body["metadata"].get("deletionTimestamp"))


def _is_unkept(ref: Ref, body: Body, built: Built, service_uid: str) -> bool:
    """Whether it is what we have made for a worker, under the name that we give it, of whom nothing is kept."""
    if ref.kind not in {"Deployment", "HorizontalPodAutoscaler", "Ingress"} or not owned_by(body, service_uid):
        return False
    owners = {owner["name"] for owner in body["metadata"]["ownerReferences"] if owner.get("uid") == service_uid}
    if ref.kind == "Ingress":
        return "serve" not in built.kept and ref.name in owners
    if ref.kind == "Deployment":
        named = {worker} if (worker := (body["metadata"].get("labels") or {}).get(WORKER)) else set()
        return any(ref.name == deployment_name(name, worker) for name in owners for worker in named - built.kept)
    named = {worker_of(body), *ROLES}
    return any(ref.name == autoscaler_name(name, worker) for name in owners for worker in named - built.kept)


def holds(existing: Any, wanted: Any, field: str = "", parent: str = "") -> bool:
    """Whether ``existing`` is what the server makes of ``wanted``. ``field`` in ``parent`` is where they are.

    It accepts what was just written. The server fills in defaults, writes quantities in its own form, leaves out what
    is zero or empty, and drops fields that its version does not know. So a field that only the server has is no
    difference. A field that only we have is one if every server that we support keeps it (``KEPT``): what people
    removed there is put back.
    """
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
