"""The cluster as controllers see it: resources to read, statuses to write, and a little that GM must remember.

Controllers, downstream and upstream know nothing else, so the same code runs on GM's own store and on an API server.
Reading is synchronous (an adapter keeps its resources in memory); writing is not. Nobody edits a resource through
``Cluster``: that is ``Editor``, which only the standalone adapter has. Where the cluster runs workers as pods, GM makes
the objects that stand for them (``ensure``, ``remove``); elsewhere nodes start workers themselves.
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
#: on resources whose deletion has to reach nodes first
FINALIZER = "halimede.io/nodes"


class ConflictError(HalimedeError):
    """The resource is not (any more) what the caller believed it to be. Read it again, then decide."""


class NotOursError(ConflictError):
    """An object of that name exists and has another owner. GM does not change it."""


class NotAcceptedError(HalimedeError):
    """The cluster rejects an object: only its author, or the author of the violated policy, can change that."""


class UnknownResourceError(HalimedeError):
    """There is no resource of this key."""

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
        """The identity that a re-created name does not share."""
        return self.resource.metadata.uid

    @property
    def resource_version(self) -> str:
        """Changes with every edit."""
        return self.resource.metadata.resource_version

    @property
    def deleting(self) -> bool:
        """Whether its deletion was asked for and still waits for the nodes."""
        return self.resource.metadata.deletion_timestamp is not None

    @property
    def held(self) -> bool:
        """Whether its deletion waits for ``Cluster.finalize``."""
        return FINALIZER in (self.resource.body["metadata"].get("finalizers") or ())


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node's last report on a resource.

    ``live`` ends when the node has forgotten the resource; its counts stay. ``edge`` is set once the node has run an
    edge worker of it: only those count inferences.
    """

    key: Key
    node: str
    status: NodeStatus
    live: bool = True
    edge: bool = False

    @property
    def task_info(self) -> TaskInfo | None:
        """What the node's workers of it have counted, added up."""
        return self.status.output.task_info if self.status.output else None


@dataclass(frozen=True, slots=True)
class Memory:
    """GM's state that must persist across a restart, since offline nodes cannot report it."""

    reports: tuple[NodeReport, ...] = ()
    nodes: tuple[Presence, ...] = ()
    #: nodes that users have drained; kept by ``Editor.mark_drained``, never by ``remember``
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
    """What a cluster that runs workers as pods has of one service: bodies as the API gives them.

    ``secrets`` holds the metadata of Secrets that the service names (None: there is none), never their data.
    """

    objects: Mapping[Ref, dict[str, Any]] = field(default_factory=dict)
    pods: tuple[dict[str, Any], ...] = ()
    secrets: Mapping[str, dict[str, Any] | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkersChanged:
    """Something about a service's objects or pods has changed."""

    key: Key


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node of the cluster has appeared or has other labels; None: it is gone."""

    name: str
    labels: Mapping[str, str] | None


#: what happens in a cluster: a resource was created, edited or deleted (its key), or one of the others
Happening = Key | WorkersChanged | NodeSeen


class Cluster(Protocol):
    """What every adapter gives."""

    @property
    def epoch(self) -> int:
        """Higher at every start of GM than ever before: nodes follow the highest."""

    async def overtake(self, epoch: int) -> bool:
        """Make our epoch higher than one that nodes follow; return whether that is ours to do.

        It is where no other GM can be there: nodes followed one on a store that is gone. It is not for an old leader.
        """

    @property
    def leads(self) -> bool:
        """Whether no other GM can be at work now. Once it can, what is ours is its, such as our name on the bus."""

    @property
    def identity(self) -> str:
        """Tells this source of truth from any other."""

    @property
    def complete(self) -> bool:
        """Whether a resource that is not here is known to be deleted. False once a store was lost: then what nodes
        hold beyond it is left alone.
        """

    @property
    def failures(self) -> int:
        """Writes that failed since the start."""

    def check(self) -> str:
        """Return why nothing can be written now, empty when it can."""

    @property
    def quarantined(self) -> str:
        """What of a damaged store was put aside and is still to be looked at; empty: nothing."""

    async def repair(self) -> None:
        """Look whether what is kept on disk is whole, and begin anew from memory where it is not. Raises nothing."""

    def get(self, key: Key) -> StoredResource | None:
        """Return a resource."""

    def exists(self, key: Key, uid: str) -> bool:
        """Whether there is that very resource, be it one that cannot be read."""

    def resources(self, plural: str = "", namespace: str = "") -> Iterator[StoredResource]:
        """Return all resources (of one kind, of one namespace)."""

    def seconds(self, key: Key) -> tuple[StoredResource, ...]:
        """Return resources that stand behind the one of that key: the same name in another group, left alone."""

    def changes(self) -> AsyncIterator[Happening]:
        """Yield what happens; several edits of one resource may be one key."""

    async def write_status(self, stored: StoredResource, status: Status) -> None:
        """Replace a resource's status. Raises ConflictError if it was edited since ``stored`` was read."""

    async def hold(self, key: Key, uid: str) -> None:
        """Have the resource's deletion wait for ``finalize``: before anything of it is sent to a node."""

    async def finalize(self, key: Key, uid: str) -> None:
        """Let a resource go whose deletion was asked for. Nothing happens if it is gone, or is another one by now."""

    def workers(self, key: Key) -> ClusterWorkers:
        """Return a service's objects and pods, without secrets."""

    async def secrets(self, namespace: str, names: Collection[str]) -> Mapping[str, dict[str, Any] | None]:
        """Return the metadata of Secrets; None for those that there are not."""

    async def ensure(self, body: dict[str, Any]) -> None:
        """Create an object, or bring it to hold what ``body`` says.

        Raises NotOursError if it is somebody else's, NotAcceptedError if the cluster does not take it, ConflictError
        if it was changed meanwhile.
        """

    async def remove(self, ref: Ref, uid: str) -> None:
        """Delete an object. Nothing happens if it is gone, or is another one by now."""

    async def bury(self, uid: str, generation: int) -> None:
        """Remember that a uid was deleted which only nodes knew."""

    def buried(self, uid: str) -> int | None:
        """Return the last generation of a uid that is known to be deleted, where not all that is gone is (see
        ``complete``).
        """

    async def record(self, type_: EventType, reason: str, about: str, message: str) -> None:
        """Add to the event log, if that can be done; the same again in a row raises its count. Raises nothing."""

    async def remember(self, memory: Memory) -> None:
        """Keep reports and nodes, each in place of the earlier one."""

    async def forget_node(self, node: str) -> None:
        """Drop what was remembered of a node that is gone for good."""

    async def recall(self) -> Memory:
        """Return what was remembered."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What an apply did."""

    outcome: Literal["created", "configured", "unchanged"]
    stored: StoredResource


class Editor(Protocol):
    """What the standalone API edits. In Kubernetes mode there is none: ``kubectl`` does that."""

    async def apply(self, resource: Resource[Any]) -> Applied:
        """Create or edit. Raises ConflictError (stale version, name taken by another group, being deleted)."""

    async def delete(self, key: Key) -> StoredResource:
        """Ask for deletion. Raises UnknownResourceError."""

    async def mark_drained(self, node: str, *, drained: bool) -> None:
        """Keep whether a node is to be empty."""

    def events(self, after: int, about: str, limit: int, before: int = 0) -> list[Event]:
        """Return events with a sequence above ``after`` (and below ``before``, unless that is 0), oldest first; the
        newest ``limit`` of them.
        """


def body_of(stored: StoredResource) -> ResourceBody:
    """Return the object as users see it."""
    body = {k: v for k, v in stored.resource.body.items() if k != "status"}
    return body if stored.status is None else {**body, "status": msgspec.to_builtins(stored.status)}


def utc_now() -> str:
    """Return the time as RFC 3339 text. It is shown, never compared."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
