"""Converts objects of the Kubernetes API to the parts that GM keeps (``Custom`` of a resource), and changes to patches.

Fields that GM does not read are dropped at once (managed fields, the copy that ``kubectl apply`` adds, most of a pod):
a thousand pods and as many Deployments must fit into little memory.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from halimede.api import admit, kinds, parse
from halimede.errors import InvalidFieldError
from halimede.messages import Status
from halimede.names import Key
from services.gm.cluster.kubernetes.api_paths import ApiResource, Object
from services.gm.cluster.port import FINALIZER, RegisteredNode, StoredResource
from services.gm.workloads.object_names import OWNER_LABELS

#: annotation with the copy that ``kubectl apply`` adds
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
#: fields of a pod's metadata and status, and of its containers' statuses, that GM keeps
POD_METADATA = (
    "name", "namespace", "uid", "resourceVersion", "labels", "creationTimestamp", "deletionTimestamp",
    "ownerReferences",
)  # fmt: skip
POD_STATUS = (
    "phase", "reason", "message", "startTime", "conditions", "initContainerStatuses", "containerStatuses", "hostIP",
)  # fmt: skip
CONTAINER_STATUS = ("name", "ready", "restartCount", "state", "lastState")
#: kinds that make the pods of a Deployment
MAKERS = {("apps/v1", "ReplicaSet"), ("apps/v1", "Deployment")}


@dataclass(frozen=True, slots=True)
class Custom:
    """A resource (custom resource of halimede) in the API, readable or not.

    Attributes:
        api: its kind in the API.
        namespace, name, uid: of the object.
        version: its resource version, which each write changes.
        generation: the version of its spec.
        created: time of its creation in RFC 3339; empty: unknown.
        deleting: whether its deletion was requested.
        finalizers: names because of which its deletion waits, GM's own and others.
        status: as GM wrote it last; None: GM has not written it.
        written: the names of the fields that its status has in the API.
        stored: the resource as GM reads it; None: it is not valid.
        problem: why it is not valid; empty: it is.

    """

    api: ApiResource
    namespace: str
    name: str
    uid: str
    version: str
    generation: int
    created: str
    deleting: bool
    finalizers: tuple[str, ...]
    status: Status | None
    written: frozenset[str]
    stored: StoredResource | None
    problem: str = ""

    @property
    def key(self) -> Key:
        """Plural, namespace and name."""
        return Key(self.api.plural, self.namespace, self.name)

    @property
    def has_finalizer(self) -> bool:
        """Whether its deletion waits for GM's finalizer."""
        return FINALIZER in self.finalizers


def trim(body: Object) -> Object:
    """Remove the fields that GM does not need from an object; return the same object."""
    metadata = body["metadata"]
    metadata.pop("managedFields", None)
    if annotations := metadata.get("annotations"):
        annotations.pop(LAST_APPLIED, None)
    return body


def trim_pod(body: Object) -> Object:
    """Return the parts of a pod from which GM makes the status of a service."""
    status = _only(body.get("status") or {}, POD_STATUS)
    for field in ("initContainerStatuses", "containerStatuses"):
        if field in status:
            status[field] = [_only(container, CONTAINER_STATUS) for container in status[field] or []]
    node = (body.get("spec") or {}).get("nodeName")
    return {
        "metadata": _only(body["metadata"], POD_METADATA),
        "spec": {"nodeName": node} if node else {},
        "status": status,
    }


def registered_node(body: Object) -> RegisteredNode:
    """Convert a Node of the API: its labels, and by its condition ``Ready`` why it is not ready."""
    conditions = (body.get("status") or {}).get("conditions") or []
    ready: Object = next((condition for condition in conditions if condition.get("type") == "Ready"), {})
    why = ""
    if ready.get("status", "True") != "True":
        why = ": ".join(part for part in (ready.get("reason"), ready.get("message")) if part) or "it is not ready"
    return RegisteredNode(body["metadata"].get("labels") or {}, why)


def custom(api: ApiResource, body: Object) -> Custom:
    """Convert a custom resource of the API, whose status is removed from ``body``; an invalid one has a ``problem``."""
    raw = trim(body).pop("status", None) or {}
    metadata = body["metadata"]
    status = _status(raw)
    stored, problem = None, ""
    try:
        # what is being deleted needs no more than its name: it must still be removed from the nodes
        stored = StoredResource(parse(body) if metadata.get("deletionTimestamp") else admit(body), status)
    except InvalidFieldError as error:
        problem = "; ".join(map(str, (error, *error.further_errors)))
    return Custom(
        api=api,
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        generation=metadata.get("generation", 0),
        created=metadata.get("creationTimestamp") or "",
        deleting=bool(metadata.get("deletionTimestamp")),
        finalizers=tuple(metadata.get("finalizers") or ()),
        status=status,
        written=frozenset(raw),
        stored=stored,
        problem=problem,
    )


def status_patch(status: Status, version: str, written: Collection[str]) -> Object:
    """Return the merge-patch that replaces a resource's whole status, if the resource still has that version.

    ``written``: the fields that the status in the API has.
    """
    fields = _non_empty(msgspec.to_builtins(status))
    # a merge-patch keeps fields that it does not name
    removed = dict.fromkeys(field for field in written if field not in fields)
    return {"metadata": {"resourceVersion": version}, "status": {**removed, **fields}}


def finalizer_patch(claim: Custom, finalizers: Collection[str]) -> Object:
    """Return the merge-patch that sets a resource's finalizers, if it still has the uid and version of ``claim``."""
    return {"metadata": {"resourceVersion": claim.version, "uid": claim.uid, "finalizers": list(finalizers) or None}}


def service_of(body: Object) -> tuple[Key, str] | None:
    """Return the key and uid of the service that controls an object, in the same namespace; None: no service does."""
    if (owner := _controller(body)) is None:
        return None
    for kind in kinds():
        if (kind.api_version, kind.kind) == (owner["apiVersion"], owner["kind"]):
            return Key(kind.plural, body["metadata"].get("namespace", ""), owner["name"]), owner["uid"]
    return None


def service_of_pod(body: Object) -> tuple[Key, str] | None:
    """Return the key and uid of the service that a pod's labels name; None: none, or no Deployment has made the pod.

    Any user who may create pods may copy labels, so callers must take the labels as true only within their namespace.
    """
    owner, labels = _controller(body), body["metadata"].get("labels") or {}
    if owner is None or (owner["apiVersion"], owner["kind"]) not in MAKERS:
        return None
    for plural, (name, uid) in OWNER_LABELS.items():
        if labels.get(name) and labels.get(uid):
            return Key(plural, body["metadata"].get("namespace", ""), labels[name]), labels[uid]
    return None


def _controller(body: Object) -> Object | None:
    """Return the owner reference to an object's controller, in the object's namespace; None: it has none."""
    return next((owner for owner in body["metadata"].get("ownerReferences") or () if owner.get("controller")), None)


def _status(raw: object) -> Status | None:
    """Return a status as GM wrote it last; None: there is none, or not in a form that GM writes."""
    try:
        return msgspec.convert(raw, Status) if raw else None
    except msgspec.ValidationError:
        return None


def _non_empty(value: Any) -> Any:
    """Return plain data without nulls and empty times: the API accepts neither."""
    if isinstance(value, dict):
        return {k: _non_empty(v) for k, v in value.items() if v is not None and not (v == "" and k.endswith("Time"))}
    return [_non_empty(item) for item in value] if isinstance(value, list) else value


def _only(value: Object, fields: Collection[str]) -> Object:
    """Return only these fields of an object, as far as it has them."""
    return {field: value[field] for field in fields if field in value}
