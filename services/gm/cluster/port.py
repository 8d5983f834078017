"""The cluster as controllers see it: resources to read, statuses to write, and the state that GM must persist.

Controllers, downstream and upstream use only this port, so the same code runs on GM's own store and on an API server.
Reads are synchronous (an adapter keeps its resources in memory); writes are not. ``Cluster`` cannot edit a resource:
``Editor`` does, which only the standalone adapter implements. If the cluster runs workers as pods, GM makes their
objects (``ensure``, ``remove``); otherwise nodes start workers themselves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import msgspec

from halimede.api import Resource
from halimede.errors import HalimedeError
from halimede.messages import Event, NodeStatus, Presence, ResourceBody, Status, TaskInfo
from halimede.names import Key

EventType = Literal["Normal", "Warning"]
#: set on resources whose deletion must reach nodes first
FINALIZER = "halimede.io/nodes"


class ConflictError(HalimedeError):
    """The resource has changed since the caller read it. Read it again, then decide."""


class NotOursError(ConflictError):
    """An object of that name exists and has another owner. GM does not change it."""


class NotAcceptedError(HalimedeError):
    """The cluster rejects an object: only its author, or the author of the violated policy, can change that."""


class UnknownResourceError(HalimedeError):
    """The resource of this key does not exist."""

    def __init__(self, key: Key) -> None:
        super().__init__(f"there is no {key}")


@dataclass(frozen=True, slots=True)
class StoredResource:
    """A resource as stored in the cluster, and its status."""

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
        """Changes with every edit."""
        return self.resource.metadata.resource_version

    @property
    def deleting(self) -> bool:
        """Whether its deletion was requested and still waits for the nodes."""
        return self.resource.metadata.deletion_timestamp is not None

    @property
    def has_finalizer(self) -> bool:
        """Whether its deletion waits for ``Cluster.finalize``."""
        return FINALIZER in (self.resource.body["metadata"].get("finalizers") or ())


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node's last report on a resource.

    ``live`` is False once the node no longer holds the resource; its counts stay. ``edge`` is set once the node has run
    an edge worker of it: only those count inferences.
    """

    key: Key
    node: str
    status: NodeStatus
    live: bool = True
    edge: bool = False

    @property
    def task_info(self) -> TaskInfo | None:
        """The sum of the counts of the node's workers of this resource."""
        return self.status.output.task_info if self.status.output else None


@dataclass(frozen=True, slots=True)
class Memory:
    """GM's state that must persist across a restart, since offline nodes cannot report it."""

    reports: tuple[NodeReport, ...] = ()
    nodes: tuple[Presence, ...] = ()
    #: nodes that users have drained; ``Editor.mark_drained`` stores them, ``remember`` does not
    drained: frozenset[str] = frozenset()


@dataclass(frozen=True, order=True, slots=True)
class Ref:
    """Names an object that GM made: a Deployment, a Service, a HorizontalPodAutoscaler."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Ref:
        """Return the name of an object."""
        metadata = body["metadata"]
        return cls(body["apiVersion"], body["kind"], metadata["namespace"], metadata["name"])

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ClusterWorkers:
    """The objects and pods of one service, as the API returns them, in a cluster that runs workers as pods.

    ``secrets`` has the metadata of Secrets that the service names (None: it does not exist), never their data.
    """

    objects: Mapping[Ref, dict[str, Any]] = field(default_factory=dict)
    pods: tuple[dict[str, Any], ...] = ()
    secrets: Mapping[str, dict[str, Any] | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkersChanged:
    """An object or a pod of a service has changed."""

    key: Key


@dataclass(frozen=True, slots=True)
class RegisteredNode:
    """A node as the cluster has it: its labels, and why it is not ready (empty: it is, or that is not known yet)."""

    labels: Mapping[str, str] = field(default_factory=dict)
    unready: str = ""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node of the cluster is new or has changed; None: it was deleted."""

    name: str
    node: RegisteredNode | None


#: a change in a cluster: the key of a resource that was created, edited or deleted, or one of the others
Happening = Key | WorkersChanged | NodeSeen


class Cluster(Protocol):
    """The interface of every adapter."""

    @property
    def epoch(self) -> int:
        """Higher at each start of GM than ever before: nodes follow the highest epoch."""

    async def overtake(self, epoch: int) -> bool:
        """Raise the epoch above one that nodes follow; return False if this GM must not do that.

        It may if no other GM can exist: nodes then followed a GM whose store is gone. An outdated leader may not.
        """

    @property
    def leads(self) -> bool:
        """Whether no other GM can be at work now. Otherwise the other GM uses this GM's client id on the bus."""

    @property
    def identity(self) -> str:
        """Identifies the store or Lease: two GMs of one identity have the same resources."""

    @property
    def complete(self) -> bool:
        """Whether each resource that is missing here was deleted. False once a store was lost: then unknown resources
        on nodes are left alone.
        """

    @property
    def failures(self) -> int:
        """The number of writes that failed since the start."""

    def check(self) -> str:
        """Return why nothing can be written now; empty when writes succeed."""

    @property
    def quarantined(self) -> str:
        """Files of a damaged store that were moved aside and still exist; empty: none."""

    async def repair(self) -> None:
        """Check the files on disk, and if they are damaged begin a new store from memory. Raises nothing."""

    def session_key(self, uid: str) -> str:
        """Return the secret for the sessions of a service, which GM sends to its nodes; empty if its pods get it."""

    def get(self, key: Key) -> StoredResource | None:
        """Return a resource."""

    def exists(self, key: Key, uid: str) -> bool:
        """Whether the resource exists with this uid, readable or not."""

    def resources(self, plural: str = "", namespace: str = "") -> Iterator[StoredResource]:
        """Return all resources (of one kind, of one namespace)."""

    def namesakes(self, key: Key) -> tuple[StoredResource, ...]:
        """Return resources of the same name in another group, which are not reconciled."""

    def changes(self) -> AsyncIterator[Happening]:
        """Yield changes; several edits of one resource may be one key."""

    async def write_status(self, stored: StoredResource, status: Status) -> None:
        """Replace a resource's status. Raises ConflictError if it was edited since ``stored`` was read."""

    async def edit(self, stored: StoredResource, fields: Mapping[str, Any]) -> None:
        """Set fields of a resource's spec as its user would.

        Raises ConflictError if it was edited since ``stored`` was read, InvalidFieldError if the spec would be invalid.
        """

    async def add_finalizer(self, key: Key, uid: str) -> None:
        """Make the resource's deletion wait for ``finalize``: called before it is sent to a node."""

    async def finalize(self, key: Key, uid: str) -> None:
        """Remove a resource whose deletion was requested. Does nothing if it is gone or has another uid."""

    def workers(self, key: Key) -> ClusterWorkers:
        """Return a service's objects and pods, without secrets."""

    async def secrets(self, namespace: str, names: Collection[str]) -> Mapping[str, dict[str, Any] | None]:
        """Return the metadata of Secrets; None for those that do not exist."""

    async def pod_warnings(self, namespace: str, uids: Collection[str]) -> Mapping[str, tuple[str, str]]:
        """Return the last warning about each pod that has one: its reason and its message. Raises nothing."""

    async def ensure(self, body: dict[str, Any]) -> None:
        """Create an object, or update it to ``body``.

        Raises NotOursError if it has another owner, NotAcceptedError if the cluster refuses it, ConflictError if it was
        changed in between.
        """

    async def remove(self, ref: Ref, uid: str) -> None:
        """Delete an object. Does nothing if it is gone or has another uid."""

    async def bury(self, uid: str, generation: int) -> None:
        """Store that a uid was deleted which only nodes knew."""

    def deleted_generation(self, uid: str) -> int | None:
        """Return the last generation of a deleted uid, None if the deletion is not known. Used where ``complete`` is
        False.
        """

    async def record(self, type_: EventType, reason: str, about: str, message: str) -> None:
        """Add to the event log, if possible; repeats in a row raise the count of the event. Raises nothing."""

    async def remember(self, memory: Memory) -> None:
        """Store reports and nodes, each in place of the earlier one."""

    async def forget_node(self, node: str) -> None:
        """Drop the stored data of a node that a user removed."""

    async def recall(self) -> Memory:
        """Return what was remembered."""


@dataclass(frozen=True, slots=True)
class LostVersion:
    """The version with which nodes hold a resource that was lost with an earlier store."""

    uid: str
    generation: int


#: what an apply does
Outcome = Literal["created", "configured", "unchanged"]


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of an apply."""

    outcome: Outcome
    stored: StoredResource


class Editor(Protocol):
    """Edits resources for the standalone API. Kubernetes mode has none: users edit with ``kubectl``."""

    async def apply(self, resource: Resource[Any], lost: LostVersion | None = None) -> Applied:
        """Create or edit. Raises ConflictError (stale version, name taken by another group, being deleted).

        A resource that is created continues the uid of ``lost``, with a higher generation.
        """

    def try_apply(self, resource: Resource[Any]) -> Outcome:
        """Return what ``apply`` would do, and change nothing. Raises the same ConflictError."""

    async def delete(self, key: Key) -> StoredResource:
        """Request deletion. Raises UnknownResourceError."""

    async def mark_drained(self, node: str, *, drained: bool) -> None:
        """Store whether a node is drained."""

    def events(self, after: int, about: str, limit: int, before: int = 0) -> list[Event]:
        """Return events with a sequence above ``after`` (and below ``before``, unless that is 0), oldest first; the
        newest ``limit`` of them.
        """


def body_of(stored: StoredResource) -> ResourceBody:
    """Return the object as users see it, with its status."""
    body = {k: v for k, v in stored.resource.body.items() if k != "status"}
    return body if stored.status is None else {**body, "status": msgspec.to_builtins(stored.status)}


def utc_now() -> str:
    """Return the time as RFC 3339 text: for display only, never for comparisons."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
