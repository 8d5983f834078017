"""Names, labels and annotations of the objects of a service; Sedna's names where Sedna has them.

The selector of a Deployment cannot be changed, so it has only labels that no edit changes: the Deployment's own name,
and the uid of the service, so that it never adopts pods of an earlier service of that name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from halimede.api import Resource, plurals
from halimede.api.base import NEPTUNE
from halimede.api.neptune import ORIGIN
from halimede.api.placement import GROUPS

Role = Literal["edge", "cloud", "serve"]
ROLES: tuple[Role, ...] = ("edge", "cloud", "serve")
Body = dict[str, Any]

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "halimede"
NAME = "jointinferenceservice.sedna.io/name"
UID = "jointinferenceservice.sedna.io/uid"
#: the same for an InferenceModel
MODEL_NAME = "inferencemodel.sedna.io/name"
MODEL_UID = "inferencemodel.sedna.io/uid"
#: the same for a MultiEdgeInferenceService
MULTI_NAME = "multiedgeinferenceservice.sedna.io/name"
MULTI_UID = "multiedgeinferenceservice.sedna.io/uid"
#: labels of pods with their owner's name and uid, by plural
OWNER_LABELS = {
    kind.plural: (f"{kind.kind.lower()}.sedna.io/name", f"{kind.kind.lower()}.sedna.io/uid") for kind in plurals()
}
#: the role of a worker of any kind
WORKER_TYPE = "jointinferenceservice.sedna.io/worker-type"
#: the worker's own name within its service, if several have one role
WORKER = "halimede.io/worker"
APP = "app.sedna.io"
#: label of pods: the digest of their template
TEMPLATE = "halimede.io/template"
#: annotation of objects: the digest of their desired content
DIGEST = "halimede.io/digest"
#: labels of pods with their owner's uid
UIDS = tuple(uid for _, uid in OWNER_LABELS.values())
#: labels of pods that GM sets, even if a template has them
OURS = frozenset({MANAGED_BY, WORKER_TYPE, WORKER, APP, TEMPLATE}.union(*OWNER_LABELS.values()))

#: valid names of services: a Service's name begins with them
name_pattern = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)


def deployment_name(service: str, worker: str, group: str = "") -> str:
    """Return the name of a worker's Deployment; in joint inference a worker is named by its role or its tier.

    ``group`` is that of workers that train: so a training may have the name of a service.
    """
    return f"{service}-deployment-{group}-{worker}" if group else f"{service}-deployment-{worker}"


def deployment_names(service: str, worker: str) -> frozenset[str]:
    """Return all names that GM may give to the Deployment of a worker."""
    return frozenset(deployment_name(service, worker, group) for group in ("", *GROUPS))


def autoscaler_name(service: str, worker: str) -> str:
    """Return the name of a worker's HorizontalPodAutoscaler."""
    return f"hpa-{deployment_name(service, worker)}"


def network_name(service: str) -> str:
    """Return the name of the Service in front of the cloud workers."""
    return f"{service}-cloud"


def session_secret_name(service: Resource[Any]) -> str:
    """Return the name of the Secret with the session key of a service: a later service of that name has another."""
    return f"{service.metadata.name}-session-{digest(service.metadata.uid)[:8]}"


def labels(service: Resource[Any], role: Role, worker: str = "") -> dict[str, str]:
    """Return the labels of a worker's objects and pods. ``worker``: its own name, if that is not its role."""
    name, uid = service.metadata.name, service.metadata.uid
    if role == "serve":
        return {MANAGED_BY: MANAGER, MODEL_NAME: name, MODEL_UID: uid, WORKER_TYPE: role, APP: name}
    if worker:
        whose = dict(zip(OWNER_LABELS[service.kind.plural], (name, uid), strict=True))
        return {MANAGED_BY: MANAGER, **whose, WORKER_TYPE: role, WORKER: worker, APP: name}
    return {MANAGED_BY: MANAGER, NAME: name, UID: uid, WORKER_TYPE: role, APP: deployment_name(name, role)}


def selector(service: Resource[Any], role: Role, worker: str = "") -> dict[str, str]:
    """Return the labels that select a worker's pods: only those that no edit changes."""
    all_labels = labels(service, role, worker)
    return {name: all_labels[name] for name in (APP, WORKER, *UIDS) if name in all_labels}


def worker_of(body: Mapping[str, Any]) -> str:
    """Return the worker that an object or pod belongs to, by its name within the service; empty: none."""
    own = (body.get("metadata") or {}).get("labels") or {}
    return own.get(WORKER) or own.get(WORKER_TYPE) or ""


def owner(service: Resource[Any]) -> Body:
    """Return the owner reference to the service, under the group in which the user wrote it."""
    return {
        "apiVersion": service.metadata.annotations.get(ORIGIN) or service.kind.api_version,
        "kind": service.kind.kind,
        "name": service.metadata.name,
        "uid": service.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_owned_by(body: Mapping[str, Any], uid: str) -> bool:
    """Whether an object's controller is the service of this uid."""
    references = (body.get("metadata") or {}).get("ownerReferences") or []
    return any(reference.get("controller") and reference.get("uid") == uid for reference in references)


def digest(value: object) -> str:
    """Return a short digest of plain data; the order of keys in mappings does not matter."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:32]


def is_translated(service: Resource[Any]) -> bool:
    """Whether the service was written in the neptune.io form."""
    return service.metadata.annotations.get(ORIGIN) == NEPTUNE
