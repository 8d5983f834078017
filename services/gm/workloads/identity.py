"""By which names, labels and marks the objects of a service are known. Sedna's where Sedna has one.

The selector of a Deployment can never be changed, so it holds only what no edit changes: its own name, and the uid of
the service, by which it never takes over pods of an earlier service of that name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from halimede.api import Resource
from halimede.api.base import NEPTUNE
from halimede.api.neptune import ORIGIN

Role = Literal["edge", "cloud", "serve"]
#: of a joint inference service, and of all that have workers
PAIR: tuple[Role, ...] = ("edge", "cloud")
ROLES: tuple[Role, ...] = (*PAIR, "serve")
Body = dict[str, Any]

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "halimede"
NAME = "jointinferenceservice.sedna.io/name"
UID = "jointinferenceservice.sedna.io/uid"
#: the same of an InferenceModel
MODEL_NAME = "inferencemodel.sedna.io/name"
MODEL_UID = "inferencemodel.sedna.io/uid"
WORKER_TYPE = "jointinferenceservice.sedna.io/worker-type"
APP = "app.sedna.io"
#: label of pods: which template they were made from
TEMPLATE = "halimede.io/template"
#: annotation of objects: which wish they hold
DIGEST = "halimede.io/digest"
#: labels of pods that are ours to set, whatever a template says
OURS = frozenset({MANAGED_BY, NAME, UID, MODEL_NAME, MODEL_UID, WORKER_TYPE, APP, TEMPLATE})

#: of a service: it begins the name of a Service
name_pattern = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)


def deployment_name(service: str, role: Role) -> str:
    """Return the name of a role's Deployment."""
    return f"{service}-deployment-{role}"


def autoscaler_name(service: str, role: Role) -> str:
    """Return the name of a role's HorizontalPodAutoscaler."""
    return f"hpa-{deployment_name(service, role)}"


def network_name(service: str) -> str:
    """Return the name of the Service in front of the cloud workers."""
    return f"{service}-cloud"


def labels(service: Resource[Any], role: Role) -> dict[str, str]:
    """Return the labels of a role's objects and pods."""
    name = service.metadata.name
    if role == "serve":
        uid = service.metadata.uid
        return {MANAGED_BY: MANAGER, MODEL_NAME: name, MODEL_UID: uid, WORKER_TYPE: role, APP: name}
    return {
        MANAGED_BY: MANAGER,
        NAME: name,
        UID: service.metadata.uid,
        WORKER_TYPE: role,
        APP: deployment_name(name, role),
    }


def selector(service: Resource[Any], role: Role) -> dict[str, str]:
    """Return by which labels a role's pods are found: none that an edit changes."""
    known = labels(service, role)
    return {name: known[name] for name in (APP, UID, MODEL_UID) if name in known}


def owner(service: Resource[Any]) -> Body:
    """Return the reference to the service as the API server knows it: under the group in which it was written."""
    return {
        "apiVersion": service.metadata.annotations.get(ORIGIN) or service.kind.api_version,
        "kind": service.kind.kind,
        "name": service.metadata.name,
        "uid": service.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def owned_by(body: Mapping[str, Any], uid: str) -> bool:
    """Whether an object's controller is the service of this uid."""
    references = (body.get("metadata") or {}).get("ownerReferences") or []
    return any(reference.get("controller") and reference.get("uid") == uid for reference in references)


def digest(value: object) -> str:
    """Return a short mark of plain data: the same for the same data, in whichever order its mappings are."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:32]


def translated(service: Resource[Any]) -> bool:
    """Whether the service was written in the neptune.io form."""
    return service.metadata.annotations.get(ORIGIN) == NEPTUNE
