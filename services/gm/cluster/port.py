"""The port to the cluster (``Cluster``): resources to read, statuses to write, and the state that GM must persist.

The rest of GM uses only this port, so the same code runs on GM's own store (``LocalCluster``, standalone) and on a
Kubernetes API server (``KubernetesCluster``). Reads are synchronous, because an adapter keeps its resources in memory;
writes are not. Users edit resources through ``Editor``, which only the standalone adapter implements. If the cluster
runs workers as pods, GM makes their objects (``ensure``, ``remove``); otherwise nodes start workers themselves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import msgspec

from halimede.api import Resource
from halimede.api.placement import SERVICES
from halimede.errors import HalimedeError
from halimede.messages import Event, NodeStatus, Presence, ResourceBody, Status, TaskInfo
from halimede.names import Key

#: Kubernetes' two types of events
EventType = Literal["Normal", "Warning"]
#: name in a resource's metadata because of which its deletion waits until no online node holds the resource
FINALIZER = "halimede.io/nodes"


class ConflictError(HalimedeError):
    """A resource has changed since the caller read it: the caller must read it again, and decide again."""


class NotOursError(ConflictError):
    """An object of the same name exists and has another owner: GM does not change it."""


class NotAcceptedError(HalimedeError):
    """The cluster refuses an object: only its author, or the author of the violated policy, can change that."""


class UnknownResourceError(HalimedeError):
    """There is no resource of the key."""

    def __init__(self, key: Key) -> None:
        super().__init__(f"there is no {key}")


@dataclass(frozen=True, slots=True)
class StoredResource:
    """A resource as the cluster stores it, with its status (None: it has none yet)."""

    resource: Resource[Any]
    status: Status | None = None

    @property
    def key(self) -> Key:
        """Plural, namespace and name."""
        return self.resource.key

    @property
    def uid(self) -> str:
        """The identity of this life of the resource: a later one of the same name has another uid."""
        return self.resource.metadata.uid

    @property
    def resource_version(self) -> str:
        """A text that changes with each edit, and on Kubernetes with each write of the status."""
        return self.resource.metadata.resource_version

    @property
    def deleting(self) -> bool:
        """Whether its deletion was requested and still waits for the nodes."""
        return self.resource.metadata.deletion_timestamp is not None

    @property
    def has_finalizer(self) -> bool:
        """Whether it has ``FINALIZER``: its deletion waits for ``Cluster.finalize``."""
        return FINALIZER in (self.resource.body["metadata"].get("finalizers") or ())


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node's last report on a resource.

    Attributes:
        key: of the resource.
        node: name of the node.
        status: the report.
        live: whether the node still holds the resource; if not, only the counts are of interest.
        edge: whether the node has ever run an edge worker of it: only edge workers count inferences.

    """

    key: Key
    node: str
    status: NodeStatus
    live: bool = True
    edge: bool = False

    @property
    def task_info(self) -> TaskInfo | None:
        """The sum of the counts of the node's workers of this resource; None: none has been reported."""
        return self.status.output.task_info if self.status.output else None


@dataclass(frozen=True, slots=True)
class Memory:
    """GM's state that must persist across a restart, because offline nodes cannot report it again.

    Attributes:
        reports: the last reports of nodes.
        nodes: the last births of nodes, each with whether the node is online.
        drained: names of nodes that users have drained; ``Editor.mark_drained`` stores them, ``remember`` does not.

    """

    reports: tuple[NodeReport, ...] = ()
    nodes: tuple[Presence, ...] = ()
    drained: frozenset[str] = frozenset()


@dataclass(frozen=True, order=True, slots=True)
class Ref:
    """The name of a Kubernetes object: ``api_version`` (such as ``apps/v1``), ``kind``, namespace and name."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Ref:
        """Return the name of an object, given as the API has it."""
        metadata = body["metadata"]
        return cls(body["apiVersion"], body["kind"], metadata["namespace"], metadata["name"])

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ClusterWorkers:
    """The objects and pods of one service, as the API returns them, in a cluster that runs workers as pods.

    Attributes:
        objects: Deployments, Services, autoscalers and Ingresses, by name.
        pods: the service's pods, also ended ones.
        secrets: metadata of the Secrets that the service names, never their data; None: it does not exist.

    """

    objects: Mapping[Ref, dict[str, Any]] = field(default_factory=dict)
    pods: tuple[dict[str, Any], ...] = ()
    secrets: Mapping[str, dict[str, Any] | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkersChanged:
    """An object or a pod of the service ``key`` has changed."""

    key: Key


@dataclass(frozen=True, slots=True)
class RegisteredNode:
    """A node as Kubernetes has it: labels, and why it is not ready (empty: it is ready, or that is not known yet)."""

    labels: Mapping[str, str] = field(default_factory=dict)
    unready: str = ""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node of the cluster is new or has changed; ``node`` is None: it was deleted."""

    name: str
    node: RegisteredNode | None


#: a change in a cluster: the key of a resource that was created, edited or deleted, or a change of workers or a node
Happening = Key | WorkersChanged | NodeSeen


class Cluster(Protocol):
    """The interface of both adapters. Unless a method says otherwise, writes raise StoreError or KubernetesApiError."""

    @property
    def epoch(self) -> int:
        """The number of GM's life, at each start higher than ever before: nodes follow the highest epoch."""

    async def overtake(self, epoch: int) -> bool:
        """Raise the epoch above one that nodes follow; return False, and do nothing, if this GM must not do that.

        It may if no other GM can exist: then nodes have followed a GM whose store is gone. An outdated leader may not.
        """

    @property
    def leads(self) -> bool:
        """Whether no other GM can be at work now. If one can, it has the same client ids on the broker as this GM."""

    @property
    def identity(self) -> str:
        """The identity of the store or the Lease: two GMs with the same identity have the same resources."""

    @property
    def complete(self) -> bool:
        """Whether each resource that is missing here was deleted.

        False if a store may have been lost: then GM leaves resources alone that only nodes hold.
        """

    @property
    def failures(self) -> int:
        """The number of writes that failed since the start."""

    def check(self) -> str:
        """Return why nothing can be written now; empty: writes succeed."""

    @property
    def quarantined(self) -> str:
        """Which files of a damaged store were moved aside and still exist, and why; empty: none."""

    async def repair(self) -> None:
        """Check the files on disk, and if they are damaged begin a new store from memory. Raises nothing."""

    def session_key(self, uid: str) -> str:
        """Return the secret of a service's MQTT sessions, which GM sends to its nodes; empty: pods get it elsewhere."""

    def get(self, key: Key) -> StoredResource | None:
        """Return a resource; None: there is none, or it cannot be read."""

    def exists(self, key: Key, uid: str = "") -> bool:
        """Whether a resource exists with this uid (empty: any), readable or not."""

    def resources(self, plural: str = "", namespace: str = "") -> Iterator[StoredResource]:
        """Yield the readable resources, all or only those of a kind (by its plural) or of a namespace."""

    def namesakes(self, key: Key) -> tuple[StoredResource, ...]:
        """Return the resources of the same name in another API group, which are not reconciled."""

    def changes(self) -> AsyncIterator[Happening]:
        """Yield changes as they happen, without end, to one caller; several edits of one resource may be one key."""

    async def write_status(self, stored: StoredResource, status: Status) -> None:
        """Replace a resource's status. Raises ConflictError if it was edited since ``stored`` was read."""

    async def edit(self, stored: StoredResource, fields: Mapping[str, Any]) -> None:
        """Set fields of a resource's spec, by their names in JSON, as its user would.

        Raises ConflictError if it was edited since ``stored`` was read, InvalidFieldError if the spec would be invalid.
        """

    async def add_finalizer(self, key: Key, uid: str) -> None:
        """Make a resource's deletion wait for ``finalize``. Called before the resource is sent to a node."""

    async def finalize(self, key: Key, uid: str) -> None:
        """Remove a resource whose deletion was requested. Does nothing if it is gone or has another uid."""

    def workers(self, key: Key) -> ClusterWorkers:
        """Return a service's objects and pods, without Secrets; nothing where nodes start workers themselves."""

    async def secrets(self, namespace: str, names: Collection[str]) -> Mapping[str, dict[str, Any] | None]:
        """Return the metadata of Secrets by their names; None: the Secret does not exist."""

    async def pod_warnings(self, namespace: str, uids: Collection[str]) -> Mapping[str, tuple[str, str]]:
        """Return reason and message of each pod's last warning, by uid; without pods that have none. Raises nothing."""

    async def ensure(self, body: dict[str, Any]) -> None:
        """Create an object, or update it to ``body``.

        Raises NotOursError if it has another owner, NotAcceptedError if the cluster refuses it, ConflictError if it was
        changed in between.
        """

    async def remove(self, ref: Ref, uid: str) -> None:
        """Delete an object. Does nothing if it is gone or has another uid."""

    async def bury(self, uid: str, generation: int) -> None:
        """Store that a uid was deleted, up to a generation, although only nodes held it."""

    def deleted_generation(self, uid: str) -> int | None:
        """Return the last generation of a deleted uid; None: its deletion is not known. Used if not ``complete``."""

    async def record(self, type_: EventType, reason: str, about: str, message: str) -> None:
        """Add an event to the log, if possible; repeats in a row raise the count of the event. Raises nothing.

        ``about``: a resource's key, or another name such as ``node/edge0`` or ``gm``. ``reason``: one word.
        """

    async def remember(self, memory: Memory) -> None:
        """Store reports and nodes, each in place of the earlier one of the same node and resource."""

    async def forget_node(self, node: str) -> None:
        """Drop the stored data of a node that a user removed."""

    async def recall(self) -> Memory:
        """Return what ``remember`` has stored, also before this start of GM, and the drained nodes."""


@dataclass(frozen=True, slots=True)
class LostVersion:
    """The uid and the highest generation of a resource that nodes hold and GM's store does not.

    The store was lost, or restored from an older copy.
    """

    uid: str
    generation: int


#: what an apply does
Outcome = Literal["created", "configured", "unchanged"]


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of an apply: what it did, and the resource as it is stored now."""

    outcome: Outcome
    stored: StoredResource


class Editor(Protocol):
    """Edits resources for GM's own API. On Kubernetes there is none: users edit with ``kubectl``.

    All writes raise StoreError if the store fails.
    """

    async def apply(self, resource: Resource[Any], lost: LostVersion | None = None) -> Applied:
        """Create or edit a resource.

        The resource continues the uid of ``lost``, with a higher generation. Raises ConflictError if the
        resource is based on an outdated version, is being deleted, or another API group has its name.
        """

    def try_apply(self, resource: Resource[Any], lost: LostVersion | None = None) -> Outcome:
        """Return what ``apply`` would do, and change nothing. Raises ConflictError as ``apply`` does."""

    async def delete(self, key: Key) -> StoredResource:
        """Request the deletion of a resource; return it. Raises UnknownResourceError."""

    async def mark_drained(self, node: str, *, drained: bool) -> None:
        """Store whether a user has drained a node."""

    def events(self, after: int, about: str, limit: int, before: int = 0) -> list[Event]:
        """Return the newest ``limit`` events about an object (empty: about all), oldest first.

        Their sequence numbers are above ``after``, and below ``before`` unless that is 0.
        """


def body_of(stored: StoredResource) -> ResourceBody:
    """Return a resource as users see it: plain data, with its status if it has one."""
    body = {k: v for k, v in stored.resource.body.items() if k != "status"}
    return body if stored.status is None else {**body, "status": msgspec.to_builtins(stored.status)}


def services_of(cluster: Cluster) -> Iterator[StoredResource]:
    """Yield the services of a cluster: the readable resources of all kinds with workers."""
    for plural in SERVICES:
        yield from cluster.resources(plural)


def utc_now() -> str:
    """Return the present time in RFC 3339 with milliseconds: for display only, never for comparisons."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
