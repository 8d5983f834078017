"""The differences between the desired Kubernetes objects of a service and the existing ones (``differences``).

An object carries the digest of GM's last write. While it is also the digest of the desired object, only fields that
were lost or changed are a difference, and additions by others stay (such as a sidecar that a webhook adds). When the
desired object changes, GM's own fields are written as a whole, and existing fields that are no longer desired are
removed. Such a field may be a default of the server, which then sets it again.

So no write is made twice, and no last state is stored. Some fields belong to GM alone (``WHOLE``), such as a
Deployment's pod template. Other fields of a spec are written only if desired: so ``replicas`` of an autoscaled
Deployment and ``clusterIP`` stay.
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
    deployment_names,
    is_owned_by,
    worker_of,
)  # fmt: skip

#: the fields of a spec that only GM writes, by kind
WHOLE: Mapping[str, tuple[str, ...]] = {
    "Deployment": ("template",),
    "Service": ("selector", "ports"),
    "Ingress": ("ingressClassName", "rules", "tls"),
    "HorizontalPodAutoscaler": ("scaleTargetRef", "minReplicas", "maxReplicas", "metrics", "behavior"),
}
#: prefix of the annotation that `kubectl rollout restart` writes: its removal would restart all pods
FOREIGN = "kubectl.kubernetes.io/"
#: fields that hold maps: the server keeps each entry
MAPS = frozenset({"labels", "annotations", "matchLabels", "nodeSelector", "selector", "limits", "requests"})
#: fields that every supported API server keeps, by their parent field
PERSISTENT: Mapping[str, frozenset[str]] = {
    "": frozenset({"spec"}),
    "spec": frozenset({
        "template", "scaleTargetRef", "minReplicas", "maxReplicas", "metrics", "ports", "selector", "replicas",
        "containers", "initContainers", "volumes", "nodeSelector", "affinity", "tolerations", "imagePullSecrets",
        "schedulingGates", "rules", "tls",
    }),
    "template": frozenset({"metadata", "spec"}),
    "affinity": frozenset({"nodeAffinity"}),
    "nodeAffinity": frozenset({"requiredDuringSchedulingIgnoredDuringExecution"}),
    "containers": frozenset({
        "image", "command", "args", "env", "envFrom", "volumeMounts", "resources", "securityContext", "livenessProbe",
        "readinessProbe", "ports",
    }),
    "resources": frozenset({"limits", "requests"}),
    "env": frozenset({"value", "valueFrom"}),
    "volumes": frozenset({"hostPath", "secret"}),
    "volumeMounts": frozenset({"readOnly", "subPathExpr"}),
}  # fmt: skip
#: lists whose elements are identified by a name: others may add elements
NAMED = frozenset({"containers", "initContainers", "volumes", "env", "volumeMounts", "imagePullSecrets"})
#: fields whose entries are quantities such as ``500m``, and fields that are quantities
QUANTITIES = frozenset({"limits", "requests", "overhead"})
QUANTITY_FIELDS = frozenset({"sizeLimit", "divisor", "averageValue", "storage"})
#: the server rounds quantities up to thousandths, and has this maximum
MILLI, MOST_OF_QUANTITY = 1000, Fraction(2**63 - 1)


@dataclass(frozen=True, slots=True)
class Ensure:
    """Create the object, or update it to ``body``."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete the object of this name and uid."""

    ref: Ref
    uid: str


def differences(built: Built, existing: Mapping[Ref, Body], service_uid: str) -> Iterator[Ensure | Remove]:
    """Yield the objects of a service to write and to remove; nothing for an object that is being deleted.

    ``service_uid``: uid of the service. GM removes autoscalers and Ingresses that an edit has removed, and Deployments
    of workers that it has removed. Another object that names the service as its owner, such as a copy that a user made,
    is not changed.
    """
    yield from map(Ensure, built.secrets)  # first: pods that start before have no session key
    desired = {Ref.of(body): body for body in built.objects}
    for ref, body in existing.items():
        if ref not in desired and not _is_being_deleted(body) and _is_obsolete(ref, body, built, service_uid):
            yield Remove(ref, body["metadata"]["uid"])
    for ref, body in desired.items():
        there = existing.get(ref)
        if there is None or (not _is_being_deleted(there) and patch_for(there, body) is not None):
            yield Ensure(body)


def patch_for(existing: Body, body: Body) -> Body | None:
    """Return the JSON merge-patch that changes ``existing`` to contain ``body``; None: it does already."""
    metadata = existing.get("metadata") or {}
    maps = {name: body["metadata"].get(name) or {} for name in ("labels", "annotations")}
    same = (metadata.get("annotations") or {}).get(DIGEST) == maps["annotations"].get(DIGEST)
    if (
        same
        and contains(existing.get("spec"), body["spec"], "spec")
        and all(contains(metadata.get(name) or {}, desired, name) for name, desired in maps.items())
    ):
        return None
    spec = existing.get("spec") or {}
    whole = WHOLE.get(body["kind"], ())
    patch = {field: _merge_patch(spec.get(field), body["spec"].get(field)) for field in whole}
    patch = {field: value for field, value in patch.items() if value is not None or field in spec}
    patch |= {field: value for field, value in body["spec"].items() if field not in whole}
    return {"metadata": {name: desired for name, desired in maps.items() if desired}, "spec": patch}


def _merge_patch(existing: Any, desired: Any, field: str = "") -> Any:
    """Return the merge-patch that makes ``existing`` equal to ``desired``; lists are replaced as a whole.

    ``field``: the name of their field.
    """
    if not isinstance(desired, Mapping) or not isinstance(existing, Mapping):
        return desired
    removed = {
        key: None
        for key in existing.keys() - desired.keys()
        if not (field == "annotations" and str(key).startswith(FOREIGN))
    }
    return removed | {key: _merge_patch(existing.get(key), value, str(key)) for key, value in desired.items()}


def _is_being_deleted(body: Mapping[str, Any]) -> bool:
    """Whether the deletion of an object was requested."""
    return bool(body["metadata"].get("deletionTimestamp"))


def _is_obsolete(ref: Ref, body: Body, built: Built, service_uid: str) -> bool:
    """Whether GM made an object, which is not desired, for this service, and its worker is not in ``built.unchanged``.

    GM's objects are recognized by their names: a copy that a user made has another name.
    """
    if ref.kind not in {"Deployment", "HorizontalPodAutoscaler", "Ingress"} or not is_owned_by(body, service_uid):
        return False
    owners = {owner["name"] for owner in body["metadata"]["ownerReferences"] if owner.get("uid") == service_uid}
    if ref.kind == "Ingress":
        return "serve" not in built.unchanged and ref.name in owners
    if ref.kind == "Deployment":
        named = {worker} if (worker := (body["metadata"].get("labels") or {}).get(WORKER)) else set()
        return any(ref.name in deployment_names(name, worker) for name in owners for worker in named - built.unchanged)
    named = {worker_of(body), *ROLES}
    return any(ref.name == autoscaler_name(name, worker) for name in owners for worker in named - built.unchanged)


def contains(existing: Any, desired: Any, field: str = "", parent: str = "") -> bool:
    """Whether ``existing`` is the server's form of ``desired``. They are values of ``field`` in the field ``parent``.

    It accepts what was just written: the server fills in defaults, writes quantities in its own form, leaves out zero
    and empty values, and drops fields that its version does not know. So a field that only the server has is not a
    difference. A field that only the desired object has is a difference if every supported server keeps it
    (``PERSISTENT``): a field that a person removed is then restored.
    """
    if not desired and desired is not False:
        return True  # nothing is desired: the server's value is its default
    if isinstance(desired, Mapping) and isinstance(existing, Mapping):
        kind = "containers" if field == "initContainers" else field
        persistent = PERSISTENT.get(kind, frozenset())
        return all(
            contains(existing[key], value, key, field)
            if key in existing
            else _is_zero(value) or not (field in MAPS or key in persistent)
            for key, value in desired.items()
        )
    if isinstance(desired, list) and isinstance(existing, list):
        if field in NAMED:
            there = _by_name(existing)
            return all(
                len(there[name]) >= len(ours)
                and all(contains(b, a, field, parent) for a, b in zip(ours, there[name], strict=False))
                for name, ours in _by_name(desired).items()
            )
        return len(existing) == len(desired) and all(
            contains(b, a, field, parent) for a, b in zip(desired, existing, strict=True)
        )
    if parent in QUANTITIES or field in QUANTITY_FIELDS or (field == "value" and parent == "target"):
        return is_same_quantity(existing, desired)
    return bool(existing == desired)


def is_same_quantity(existing: object, desired: object) -> bool:
    """Whether two quantities, such as ``0.5`` and ``500m``, have the same value for the API server."""
    first, second = amount(existing), amount(desired)
    if first is None or second is None:
        return existing == desired
    return _round_up(first) == _round_up(second)


def _round_up(value: Fraction) -> int:
    """Return a quantity in thousandths, rounded away from zero as the server does."""
    bounded = max(-MOST_OF_QUANTITY, min(MOST_OF_QUANTITY, value)) * MILLI
    return math.ceil(bounded) if bounded >= 0 else math.floor(bounded)


def _by_name(elements: list[Any]) -> dict[str, list[Any]]:
    """Return elements by their names and mount paths, in their order: each may stand twice.

    Each element is visited once: users write thousands of them, and the event loop waits meanwhile.
    """
    groups: dict[str, list[Any]] = defaultdict(list)
    for element in elements:
        is_mapping = isinstance(element, Mapping)
        groups[repr((element.get("name"), element.get("mountPath"))) if is_mapping else ""].append(element)
    return groups


def _is_zero(value: Any) -> bool:
    """Whether the server may leave out a value: it is zero or empty, or consists of such values."""
    if isinstance(value, Mapping):
        return all(map(_is_zero, value.values()))
    return not value
