"""Converts objects of the API to the parts that GM keeps, and changes to patches. Pure.

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

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
POD_METADATA = (
    "name", "namespace", "uid", "resourceVersion", "labels", "creationTimestamp", "deletionTimestamp",
    "ownerReferences",
)  # fmt: skip
POD_STATUS = (
    "phase", "reason", "message", "startTime", "conditions", "initContainerStatuses", "containerStatuses", "hostIP",
)  # fmt: skip
#: owners of pods that a Deployment leads to: usually a ReplicaSet stands in between
MAKERS = {("apps/v1", "ReplicaSet"), ("apps/v1", "Deployment")}
CONTAINER_STATUS = ("name", "ready", "restartCount", "state", "lastState")


@dataclass(frozen=True, slots=True)
class Custom:
    """A resource in the API, readable or not.

    ``stored`` is None for a resource that ``parse`` refuses; ``problem`` has the reason. ``written`` are the fields
    that its status has in the API.
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
    """Return an object without the fields that GM does not need."""
    metadata = body["metadata"]
    metadata.pop("managedFields", None)
    if annotations := metadata.get("annotations"):
        annotations.pop(LAST_APPLIED, None)
    return body


def trim_pod(body: Object) -> Object:
    """Return the parts of a pod that its status is made from."""
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
    """Return a node's labels, and why it is not ready by its condition ``Ready``."""
    conditions = (body.get("status") or {}).get("conditions") or []
    ready: Object = next((condition for condition in conditions if condition.get("type") == "Ready"), {})
    why = ""
    if ready.get("status", "True") != "True":
        why = ": ".join(part for part in (ready.get("reason"), ready.get("message")) if part) or "it is not ready"
    return RegisteredNode(body["metadata"].get("labels") or {}, why)


def custom(api: ApiResource, body: Object) -> Custom:
    """Convert an object of the API to a resource."""
    raw = trim(body).pop("status", None) or {}
    metadata = body["metadata"]
    status = _status(raw)
    stored, problem = None, ""
    try:
        # what is being deleted needs no more than its name: it must still be removed from the nodes
        stored = StoredResource(parse(body) if metadata.get("deletionTimestamp") else admit(body), status)
    except InvalidFieldError as error:
        problem = "; ".join(map(str, (error, *error.others)))
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
    """Return the merge-patch that replaces a resource's whole status, if the resource still has that version."""
    fields = _non_empty(msgspec.to_builtins(status))
    # a merge-patch keeps fields that it does not name
    removed = dict.fromkeys(field for field in written if field not in fields)
    return {"metadata": {"resourceVersion": version}, "status": {**removed, **fields}}


def finalizer_patch(of: Custom, finalizers: Collection[str]) -> Object:
    """Return the merge-patch that sets the finalizers of this uid, if the resource still has that version."""
    return {"metadata": {"resourceVersion": of.version, "uid": of.uid, "finalizers": list(finalizers) or None}}


def service_of(body: Object) -> tuple[Key, str] | None:
    """Return the service that controls an object, in the same namespace, and the service's uid."""
    if (owner := _controller(body)) is None:
        return None
    for kind in kinds():
        if (kind.api_version, kind.kind) == (owner["apiVersion"], owner["kind"]):
            return Key(kind.plural, body["metadata"].get("namespace", ""), owner["name"]), owner["uid"]
    return None


def service_of_pod(body: Object) -> tuple[Key, str] | None:
    """Return the service that a pod's labels name, and its uid: only if a Deployment has made the pod.

    Any user who may create pods may copy labels, so labels count only within their namespace (see ``OwnedObjects``).
    """
    owner, labels = _controller(body), body["metadata"].get("labels") or {}
    if owner is None or (owner["apiVersion"], owner["kind"]) not in MAKERS:
        return None
    for plural, (name, uid) in OWNER_LABELS.items():
        if labels.get(name) and labels.get(uid):
            return Key(plural, body["metadata"].get("namespace", ""), labels[name]), labels[uid]
    return None


def _controller(body: Object) -> Object | None:
    """Return the reference to an object's controller, which is always in the object's namespace."""
    return next((owner for owner in body["metadata"].get("ownerReferences") or () if owner.get("controller")), None)


def _status(raw: object) -> Status | None:
    """Return a status as last written; None if there is none, or if GM did not write it."""
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
    return {field: value[field] for field in fields if field in value}
