"""Names, labels and annotations of the Kubernetes objects of a service; those of Sedna where Sedna has them.

The selector of a Deployment cannot be changed, so it has only labels that no edit of the service changes: the name of
the Deployment, or those of service and worker, and the uid of the service, so that it never adopts pods of an earlier
service of that name.
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

#: the role of a worker; ``serve``: the server of an InferenceModel
Role = Literal["edge", "cloud", "serve"]
ROLES: tuple[Role, ...] = ("edge", "cloud", "serve")
#: an object as JSON has it
Body = dict[str, Any]
#: metadata of Secrets by their names; None: the Secret does not exist
SecretsMetadata = Mapping[str, Body | None]

#: label of all objects that GM makes, and its value
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "halimede"
#: labels with the name and uid of a joint inference service, on objects of workers that have no own name
NAME = "jointinferenceservice.sedna.io/name"
UID = "jointinferenceservice.sedna.io/uid"
#: labels with the name and uid of an object's owner, by the owner's plural
OWNER_LABELS = {
    kind.plural: (f"{kind.kind.lower()}.sedna.io/name", f"{kind.kind.lower()}.sedna.io/uid") for kind in plurals()
}
#: label with the role of a worker of any kind
WORKER_TYPE = "jointinferenceservice.sedna.io/worker-type"
#: label with the worker's own name within its service, if several workers may have one role
WORKER = "halimede.io/worker"
#: label that selects pods: the name of their Deployment, or of their service if its workers have the label WORKER
APP = "app.sedna.io"
#: label of pods: the digest of their template
TEMPLATE = "halimede.io/template"
#: annotation of objects: the digest of their desired content
DIGEST = "halimede.io/digest"
#: labels with the owner's uid, of all kinds
UIDS = tuple(uid for _, uid in OWNER_LABELS.values())
#: labels of pods that GM sets, whatever a template has for them
OURS = frozenset({MANAGED_BY, WORKER_TYPE, WORKER, APP, TEMPLATE}.union(*OWNER_LABELS.values()))

#: valid names of services: a Service's name begins with them
name_pattern = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)


def deployment_name(service: str, worker: str, group: str = "") -> str:
    """Return the name of a worker's Deployment.

    ``worker``: its own name in the service; in joint inference its role or tier. ``group``: a word for workers that
    train, so that a training may have the name of a service; else empty.
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
    """Return the name of the Secret with the key of a service's MQTT sessions; each uid of a service has another."""
    return f"{service.metadata.name}-session-{digest(service.metadata.uid)[:8]}"


def labels(service: Resource[Any], role: Role, worker: str = "") -> dict[str, str]:
    """Return the labels of a worker's objects and pods. ``worker``: its own name; empty: its role is its name."""
    name, uid = service.metadata.name, service.metadata.uid
    if worker or role == "serve":
        whose = dict(zip(OWNER_LABELS[service.kind.plural], (name, uid), strict=True))
        own_name = {WORKER: worker} if worker else {}
        return {MANAGED_BY: MANAGER, **whose, WORKER_TYPE: role, **own_name, APP: name}
    return {MANAGED_BY: MANAGER, NAME: name, UID: uid, WORKER_TYPE: role, APP: deployment_name(name, role)}


def selector(service: Resource[Any], role: Role, worker: str = "") -> dict[str, str]:
    """Return the labels that select a worker's pods: only those that no edit of the service changes."""
    all_labels = labels(service, role, worker)
    return {name: all_labels[name] for name in (APP, WORKER, *UIDS) if name in all_labels}


def worker_of(body: Mapping[str, Any]) -> str:
    """Return the worker that an object or pod belongs to, by its name within the service; empty: it has no label."""
    own = (body.get("metadata") or {}).get("labels") or {}
    return own.get(WORKER) or own.get(WORKER_TYPE) or ""


def owner(service: Resource[Any]) -> Body:
    """Return the owner reference to a service, with the API group in which its user wrote it."""
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
    """Return a digest of plain data, 32 hexadecimal digits; the order of keys in mappings does not matter."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:32]


def is_translated(service: Resource[Any]) -> bool:
    """Whether the service was written in the neptune.io form."""
    return service.metadata.annotations.get(ORIGIN) == NEPTUNE
