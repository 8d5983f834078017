"""What all controllers share: what they see, what they ask for, the registry, and how a resource leaves.

A controller decides and does nothing. Its ``deliver`` says who shall hold a resource, its ``plan`` adds the status;
both give the same answer to the same input, so running them again is always safe. A new kind is one new file with
``@register``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from halimede.api import Resource
from halimede.api.placement import matches
from halimede.messages import Status
from halimede.names import Key
from services.gm.cluster.port import ClusterWorkers, EventType, NodeReport, Ref, StoredResource
from services.gm.nodes import Node
from services.gm.reference_index import ReferenceEntry, Roles, WorkerPlacement
from services.gm.service_status import UPDATING, Problem, Readiness, Share, conclude
from services.gm.workloads.deployments import Built
from services.gm.workloads.diff import Ensure, Remove, differences
from services.gm.workloads.pod_settings import PodSettings

__all__ = [
    "Action",
    "ClearStatus",
    "Delivery",
    "Ensure",
    "Finalize",
    "Forget",
    "Hold",
    "Keep",
    "RecordEvent",
    "Remove",
    "Send",
    "WriteStatus",
]


@dataclass(frozen=True, slots=True)
class Send:
    """The node shall hold this resource in this generation."""

    node: str
    resource: Resource[Any]


@dataclass(frozen=True, slots=True)
class Keep:
    """The node shall keep what it holds of this uid, in whichever generation: the present one has to wait."""

    node: str
    key: Key
    uid: str


@dataclass(frozen=True, slots=True)
class Forget:
    """The node shall not hold this resource (any more)."""

    node: str
    key: Key
    uid: str
    generation: int


@dataclass(frozen=True, slots=True)
class Hold:
    """The resource's deletion shall wait for the nodes: before anything of it is sent to one."""

    key: Key
    uid: str


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replace the resource's status and show it; that of ``second`` (see ``Cluster.seconds``) is not shown."""

    key: Key
    status: Status
    second: StoredResource | None = None


@dataclass(frozen=True, slots=True)
class ClearStatus:
    """Take the resource's status off its topic."""

    key: Key


@dataclass(frozen=True, slots=True)
class Finalize:
    """Let a deleted resource go."""

    key: Key
    uid: str


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Add to the event log."""

    type: EventType
    reason: str
    about: str
    message: str


Delivery = Send | Keep | Forget
Action = Delivery | Hold | Ensure | Remove | WriteStatus | ClearStatus | Finalize | RecordEvent


@dataclass(frozen=True, slots=True)
class Pods:
    """A service in a cluster that runs its workers as pods: what there is of it, and how pods are made.

    ``troubles`` kept objects from being made when that was last tried.
    """

    workers: ClusterWorkers
    settings: PodSettings
    troubles: tuple[Problem, ...] = ()

    def planned(self, built: Built) -> dict[Ref, dict[str, Any]]:
        """Return the objects as they shall be: what is just being written is not in the cluster's memory yet."""
        objects = self.workers.objects
        return {ref: {**objects.get(ref, {}), **body} for body in built.objects for ref in [Ref.of(body)]}


@dataclass(frozen=True, slots=True)
class Observed:
    """What GM sees of one resource.

    Attributes:
        now: the time, to be shown.
        asked: the resource as its user wrote it; None: as it is planned for.
        status: as last written.
        placed: the nodes where it belongs, with its roles there.
        holders: nodes that may hold it.
        nodes: what is known of nodes; a name that is missing was never seen.
        reports: the last report of each node on this uid.
        references: what it names; None: missing, or on its way out.
        models: where it chooses among them, the Models of its namespace.
        unheld: it or what it names, where a deletion would not wait for the nodes yet.
        as_pods: whether the cluster runs workers as pods; nodes' local controllers then only prepare and count.
        pods: what there is of a service then.

    """

    now: str = ""
    asked: Resource[Any] | None = None
    status: Status | None = None
    placed: Mapping[str, Roles] = field(default_factory=dict)
    holders: frozenset[str] = frozenset()
    nodes: Mapping[str, Node] = field(default_factory=dict)
    reports: Mapping[str, NodeReport] = field(default_factory=dict)
    references: Mapping[Key, Resource[Any] | None] = field(default_factory=dict)
    models: tuple[Resource[Any], ...] = ()
    unheld: tuple[StoredResource, ...] = ()
    as_pods: bool = False
    pods: Pods | None = None

    @property
    def shares(self) -> list[Share]:
        """The part of each node where it belongs."""
        return [
            Share(node, roles, self.nodes.get(node), self.reports.get(node))
            for node, roles in sorted(self.placed.items())
        ]

    def online(self, node: str) -> bool:
        """Whether a node is there now."""
        known = self.nodes.get(node)
        return known is not None and known.online


class Controller(Protocol):
    """One kind's rules. All methods are pure. Those given here are of a kind without workers."""

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:
        """Return the resource in the form that nodes understand, with its roles and references.

        ``status`` is as last written: what GM has chosen for it stands there.
        """

    def deliver(self, desired: Resource[Any], observed: Observed) -> Iterator[Delivery]:
        """Say who shall hold what, of the nodes in ``placed`` and ``holders``: all where it is placed."""
        for node in observed.placed:
            yield Send(node, desired)
        yield from forget(desired, observed)

    def build(self, desired: Resource[Any], observed: Observed) -> Built | None:
        """Return the objects that shall stand for it in a cluster that runs pods; None: it has none."""

    def secret_names(self, desired: Resource[Any], observed: Observed) -> frozenset[str]:
        """Return the Secrets of its namespace that ``build`` wants to know of; asked of kinds with workers alone."""
        raise NotImplementedError

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Say how it stands."""


CONTROLLERS: dict[str, Controller] = {}
#: fields of a status that hold times, or what another field says as well
TIMED = frozenset({"conditions", "update_time", "number_of_samples"})


def register(plural: str) -> Callable[[type[Controller]], type[Controller]]:
    """Register a class without arguments as the controller of a plural."""

    def add(controller: type[Controller]) -> type[Controller]:
        CONTROLLERS[plural] = controller()
        return controller

    return add


def plan(desired: Resource[Any], observed: Observed) -> list[Action]:
    """Return all that has to be done about a resource; nothing if all is as it should be."""
    return [*first(desired, observed), *then(desired, observed)]


def first(desired: Resource[Any], observed: Observed) -> list[Action]:
    """Return what comes first: who shall hold it, or all that is to be done about one that is to go."""
    if desired.metadata.deletion_timestamp is not None:
        return _retire(desired, observed)
    deliveries = list(CONTROLLERS[desired.kind.plural].deliver(desired, observed))
    unheld = {each.key: each for each in observed.unheld}
    sent = {action.resource.key for action in deliveries if isinstance(action, Send)} if unheld else set()
    return [*(Hold(key, each.uid) for key, each in unheld.items() if key in sent), *deliveries]


def then(desired: Resource[Any], observed: Observed) -> list[Action]:
    """Return what comes behind it: the objects that shall stand, and how the resource stands."""
    if desired.metadata.deletion_timestamp is not None:
        return []
    actions: list[Action] = []
    controller = CONTROLLERS[desired.kind.plural]
    built = controller.build(desired, observed)
    if built is not None and observed.pods is not None:
        actions += differences(built, observed.pods.workers.objects, desired.metadata.uid)
    status = controller.status(desired, observed, built)
    if same(status, observed.status):
        return actions
    actions.append(WriteStatus(desired.key, status))
    current = status.conditions[-1]
    if news(status, observed.status):
        trouble = status.phase in {"Failed", "Degraded"} and current.reason != UPDATING
        text = f"{current.reason}: {current.message}" if current.message else current.reason
        actions.append(RecordEvent("Warning" if trouble else "Normal", status.phase, str(desired.key), text))
    return actions


def conflicts(seconds: Iterable[StoredResource], first: StoredResource, now: str) -> Iterator[WriteStatus]:
    """Say of resources that stand behind another one of the same name, in another group, that they are left alone."""
    group = first.resource.kind.api_version
    for second in seconds:
        text = f"{group} {first.key} has that name already, and both would use the same topics: delete one of the two"
        verdict = Readiness("Failed", "NameConflict", text)
        status = conclude(Status(), verdict, second.status, second.resource.metadata.generation, now)
        if not same(status, second.status):
            yield WriteStatus(second.key, status, second)


def forget(desired: Resource[Any], observed: Observed) -> Iterator[Forget]:
    """Take a resource away wherever it is and does not belong.

    The generation is one below the present: a node never takes again what it was told to forget, but this one it
    shall take if it belongs there once more.
    """
    meta = desired.metadata
    for node in sorted(observed.holders - observed.placed.keys()):
        yield Forget(node, desired.key, meta.uid, max(0, meta.generation - 1))


def same(new: Status, old: Status | None) -> bool:
    """Whether two statuses say the same, heartbeats aside."""
    return old is not None and _timeless(new) == _timeless(old)


def news(new: Status, old: Status | None) -> bool:
    """Whether a status has another phase, or another reason for it."""
    return old is None or (new.phase, new.conditions[-1].reason) != (old.phase, old.conditions[-1].reason)


def _timeless(status: Status) -> tuple[object, ...]:
    conditions = [
        (c.type, c.status, c.observed_generation, c.last_transition_time, c.reason, c.message)
        for c in status.conditions
    ]
    return conditions, *(getattr(status, name) for name in status.__struct_fields__ if name not in TIMED)


def _retire(desired: Resource[Any], observed: Observed) -> list[Action]:
    """Take it from every node; once those that are there have let go, let it go. The others learn by their sync."""
    meta, key = desired.metadata, desired.key
    actions: list[Action] = [Forget(node, key, meta.uid, meta.generation) for node in sorted(observed.holders)]
    if not any(observed.online(node) for node in observed.holders):
        # the topic first: were GM killed in between, it would do both again
        actions += [ClearStatus(key), Finalize(key, meta.uid), RecordEvent("Normal", "Deleted", str(key), "")]
    return actions


def unplaced(roles: Sequence[WorkerPlacement], observed: Observed) -> Iterator[Problem]:
    """Name the roles that no node has: the one that they name is not there, or none fits. It heals by itself."""
    placed = {name for names in observed.placed.values() for name in names}
    for role in roles:
        at = role.at
        if role.pod.node_name:
            if role.pod.node_name not in observed.nodes:
                yield Problem("NodeNotFound", f"{at}.nodeName: node {role.pod.node_name} has never been seen")
            elif observed.nodes[role.pod.node_name].drained:
                yield _drained(f"{at}.nodeName", [role.pod.node_name])
        elif not role.pod.node_selector:
            yield Problem("NoNode", f"{at} gives neither nodeName nor nodeSelector")
        elif role.name not in placed:
            wanted = ", ".join(f"{k}={v}" for k, v in sorted(role.pod.node_selector.items()))
            away = (node for node in observed.nodes.values() if node.drained)
            if drained := [node.name for node in away if matches(role.pod, node.name, node.labels)]:
                yield _drained(f"{at}.nodeSelector", drained)
            else:
                yield Problem("NoNode", f"{at}.nodeSelector: no node has {wanted}")


def nowhere(roles: Sequence[WorkerPlacement], observed: Observed) -> Iterator[Problem]:
    """Say which node a role names that there is not; where a selector leads, the cluster's scheduler says."""
    for role in roles:
        if role.pod.node_name and role.pod.node_name not in observed.nodes:
            yield Problem("NodeNotFound", f"{role.at}.nodeName: there is no node {role.pod.node_name}")


def _drained(field: str, nodes: Sequence[str]) -> Problem:
    """Say that only drained nodes are left for a role: it heals when one of them is given back."""
    first, more = min(nodes), f" (and {len(nodes) - 1} more)" if len(nodes) > 1 else ""
    return Problem("NodeDrained", f"{field}: node {first} is drained{more}: `halimede uncordon {first}` gives it back")
